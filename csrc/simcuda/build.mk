# build.mk - builds python/torcharena/lib/libcuda.so.1, the simulated GPU. Included by the
# Makefile, or by itself: make -f csrc/simcuda/build.mk simcuda

SIMCUDA_LIB := python/torcharena/lib/libcuda.so.1
SIMCUDA_SOURCES := $(wildcard csrc/simcuda/*.c csrc/driver/sim*.c csrc/driver/oracle*.c)
SIMCUDA_HEADERS := $(wildcard csrc/simcuda/*.h csrc/driver/*.h csrc/core/driver.h csrc/include/*.h)
SIMCUDA_OBJECTS := $(patsubst csrc/%.c,build/simcuda/%.o,$(SIMCUDA_SOURCES))
CUDA_INCLUDE ?= /usr/local/cuda/include
SIMCUDA_CFLAGS := -O2 -std=c11 -fPIC -fvisibility=hidden -fexceptions \
    -Wall -Wextra -Wconversion -Wshadow -isystem $(CUDA_INCLUDE) $(SIMCUDA_EXTRA)

.PHONY: simcuda
simcuda: $(SIMCUDA_LIB) python/torcharena/lib/libnvidia-ml.so.1

build/simcuda/%.o: csrc/%.c $(SIMCUDA_HEADERS)
	@mkdir -p $(dir $@)
	$(CC) $(SIMCUDA_CFLAGS) -c $< -o $@

$(SIMCUDA_LIB): $(SIMCUDA_OBJECTS)
	@mkdir -p $(dir $@)
	$(CC) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,defs $^ -o $@ -lpthread -ldl -lm

# Whoever opens the management library by name gets the same object.
python/torcharena/lib/libnvidia-ml.so.1: $(SIMCUDA_LIB)
	ln -sf libcuda.so.1 $@
