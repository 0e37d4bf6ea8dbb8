# The commands of this repository. `make help` lists them.
#
# demo and test set up all they need: an environment of their own under .venv, with the torch
# of the active environment where that serves (scripts/environments.py has the rules).
PYTHON ?= python3
CC ?= gcc
JOBS ?= 2
# Seconds that one C test program may take.
TEST_TIMEOUT ?= 180
IN_ENV = $(PYTHON) scripts/environments.py

.PHONY: help demo test test-c test-py test-long lint format bench clean distclean
.DEFAULT_GOAL := help

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1@/p' Makefile | while IFS=@ read -r name text; do \
	    printf '  make %-10s %s\n' "$$name" "$$text"; done

demo: ## train a small GPT on the arena, beside torch's own allocators
	@$(IN_ENV) demo -m torcharena demo

test: test-c test-py ## all tests that need no GPU and no long time

test-py: ## pytest, with the real torch (PYTEST= adds arguments)
	@$(IN_ENV) test -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
	    --durations=40 tests/house tests/py $(PYTEST)

test-long: ## the long tests too: more seeds, longer loops
	@TA_TEST_LONG=1 $(MAKE) --no-print-directory test-c TEST_TIMEOUT=1800
	@TA_TEST_LONG=1 $(IN_ENV) test -m pytest -q tests/house tests/py --timeout=1800 $(PYTEST)

lint: ## formats, warnings of two compilers, clang-tidy, include rules, ruff, mypy
	@$(PYTHON) scripts/lint.py

format: ## rewrite files as lint wants them
	@$(PYTHON) scripts/lint.py --fix

bench: ## the figures that need no GPU: replays of recorded traces, the core's latency
	@$(IN_ENV) test -m torcharena replay tests/traces/*.xz
	@$(IN_ENV) test -m benchmarks core

clean: ## remove what was built, keep the environments
	rm -rf build dist python/torcharena/*.so python/torcharena/lib python/*.egg-info

distclean: clean ## remove the environments too
	rm -rf .venv

# --- C tests -----------------------------------------------------------------------------
# Every program tests/c/test_*.c, built three ways: plain with the invariants checked at every
# step; as shipped under ASan and UBSan; the same under TSan.
C_SOURCES := $(wildcard csrc/core/*.c csrc/core/*/*.c csrc/driver/sim*.c \
                        csrc/driver/oracle*.c csrc/driver/replay*.c \
                        csrc/driver/nulldriver*.c csrc/driver/host_memory.c)
C_TESTS := $(wildcard tests/c/test_*.c)
# make test-c ONLY=random runs the programs whose names contain that word.
ONLY ?=
C_CHOSEN := $(if $(ONLY),$(foreach test,$(C_TESTS),\
              $(if $(findstring $(ONLY),$(test)),$(test))),$(C_TESTS))
WAYS := plain asan tsan
FLAGS_plain := -O2 -DTA_CHECKING=1
FLAGS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_tsan := -O1 -fsanitize=thread
CFLAGS_ALL := -g -std=c11 -D_GNU_SOURCE= -fvisibility=hidden -fexceptions \
              -fno-omit-frame-pointer -pthread -Wall -Wextra -Wconversion -Wshadow \
              -Icsrc/include -Icsrc/core -Icsrc -MMD -MP

define build_way
OBJECTS_$(1) := $$(patsubst %.c,build/$(1)/%.o,$$(C_SOURCES))
PROGRAMS_$(1) := $$(patsubst tests/c/%.c,build/$(1)/%,$$(C_CHOSEN))
build/$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	@$$(CC) $$(CFLAGS_ALL) $$(FLAGS_$(1)) $$(CFLAGS) -c -o $$@ $$<
build/$(1)/test_%: build/$(1)/tests/c/test_%.o $$(OBJECTS_$(1))
	@$$(CC) $$(FLAGS_$(1)) -pthread -o $$@ $$^ -lm
endef
$(foreach way,$(WAYS),$(eval $(call build_way,$(way))))
# Their warnings under the optimiser, which lint leaves to this.
build/plain/tests/c/%.o: CFLAGS += $(if $(CI),-Werror)
PROGRAMS := $(foreach way,$(WAYS),$(PROGRAMS_$(way)))
.SECONDARY:

.PHONY: build-c
build-c: $(PROGRAMS)

test-c: ## the C tests: plain, under ASan+UBSan, under TSan (ONLY=word picks)
	@$(MAKE) --no-print-directory -j$(JOBS) build-c
	@$(PYTHON) scripts/run_ctests.py --jobs $(JOBS) --timeout $(TEST_TIMEOUT) $(PROGRAMS)

-include $(shell find build -name '*.d' 2>/dev/null)
