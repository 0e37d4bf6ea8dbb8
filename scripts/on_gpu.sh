#!/usr/bin/env bash
# Installs the package on a machine with a GPU, runs its tests there and measures it.
#
#   scripts/on_gpu.sh FOLDER [--parts tests,latency,fixed,loops] [--repeat N] [--loops a,b]
#                            [--programs a,b] [--again] [--seconds S] [--python PYTHON]
#                            [--bench 'ARGUMENTS'] [--have FILE]
#
# FOLDER gets, for each part, PART.log and PART.json (tests: a JUnit file), and summary.txt. The
# parts, of which the first four are the default:
#   tests        tests/gpu
#   latency      torch.empty and its free, by size
#   fixed        loops of fixed shapes
#   loops        the five training loops, N runs of each
#   tracking     what `track` costs them
#   bench        `python -m benchmarks ARGUMENTS` into bench.json, going on from --have; without
#                ARGUMENTS the core, the latencies, starting up and the packing of the programs
#                written for it; then step times and smallest caps: two calls, the second with
#                --have of the first
#   spill        host memory: `python -m benchmarks spill` into spill.json, going on from --have
#   spill_rates  what sleeps, wakes and changes places at a mark, over pinned copies
#   holes        what torch's plug-in interface lacks: its tests and rows
#   pools        what a pool beside torch's own allocator takes to fill, sleep and wake
#   notebooks    each executed, with its outputs into FOLDER/notebooks
#   soak         10,000 steps of everything at once, then leaks that must be noticed
#   sanitizer    compute-sanitizer's memcheck over tests/memcheck.py, then the guarded cases
#   truth        what a context takes, then the peaks of programs that
#                benchmarks/results/truth-h200.jsonl lacks, or of all --again
#   two          two GPUs: its tests and its table; needs two
#
# Wheels in build/wheels are installed first, to be measured beside. All of it ends within S
# seconds (550): a part gets at most what it is given below, and no more than is left. Exit code 1
# where a part failed. For example:
#
#   scripts/on_gpu.sh FOLDER --parts two
#   scripts/on_gpu.sh FOLDER --parts truth
#   python -m benchmarks.truths --merge FOLDER/truth.jsonl      (anywhere, afterwards)
#   scripts/on_gpu.sh FOLDER --parts notebooks     (then copy FOLDER/notebooks over notebooks)
#   scripts/on_gpu.sh FOLDER --parts bench
#   scripts/on_gpu.sh FOLDER --parts bench --bench 'caps --programs moe' --have bench.json
#   scripts/on_gpu.sh FOLDER --parts spill
#   scripts/on_gpu.sh FOLDER --parts spill --bench '--means auto,rivals,idle' --have spill.json
set -uo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 1 && $1 != -* ]] || usage
folder=$1
shift
parts=tests,latency,fixed,loops repeat=1 loops= programs= again= seconds=550 python=python3
bench= have=
while (($#)); do
    if [[ $1 == --again ]]; then
        again=--again
        shift
        continue
    fi
    (($# >= 2)) || usage
    case $1 in
        --parts) parts=$2 ;;
        --repeat) repeat=$2 ;;
        --loops) loops=$2 ;;
        --programs) programs=$2 ;;
        --bench) bench=$2 ;;
        --have) have=$2 ;;
        --seconds) seconds=$2 ;;
        --python) python=$2 ;;
        *) usage ;;
    esac
    shift 2
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
summary=$folder/summary.txt
: >"$summary"
status=0
say() { echo "$*" | tee -a "$summary"; }

# Runs a part within its time: name, seconds, command.
part() {
    local name=$1 most=$2 begin=$SECONDS
    shift 2
    local left=$((seconds - SECONDS))
    ((left < most)) && most=$left
    if ((most < 15)); then
        say "$name: skipped, no time left"
        status=1
        return
    fi
    timeout --kill-after=10 "$most" "$@" >"$folder/$name.log" 2>&1
    local code=$?
    say "$name: exit code $code, $((SECONDS - begin)) s"
    if ((code == 124 || code == 137)); then say "$name: out of time after $most s"; fi
    if ((code != 0)); then
        status=1
        tail -n 40 "$folder/$name.log"
    fi
}

# Seconds for a command that has at most so many, less what its tables and its end take.
within() {
    local left=$((seconds - SECONDS))
    ((left < $1)) || left=$1
    echo $((left > 30 ? left - 25 : 5))
}

part install 180 "$python" -m pip install --no-build-isolation --no-deps --quiet .
((status == 0)) || exit 1
# Who is measured beside (benchmarks/README.md), where their wheels were put; none is needed.
if compgen -G "build/wheels/*.whl" >/dev/null; then
    part wheels 60 "$python" -m pip install --no-deps --no-index --quiet build/wheels/*.whl
fi
# The installed package, not the source tree, is what is tested.
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
"$python" - >"$folder/machine.txt" 2>&1 <<'END'
import platform, torch, torcharena
print(platform.platform(), "python", platform.python_version())
print("torch", torch.__version__, "CUDA", torch.version.cuda, torcharena.__file__)
for n in range(torch.cuda.device_count()):
    print(n, torch.cuda.get_device_properties(n))
END
say "$(cat "$folder/machine.txt")"

# Tests: name, seconds, arguments of pytest. Each failure has its reason in the log.
tests() {
    part "$1" "$2" "$python" -m pytest -q -rsfE --durations=8 -p no:cacheprovider \
        --junitxml="$folder/$1.xml" "${@:3}"
}
for name in ${parts//,/ }; do
    case $name in
        tests)
            tests tests 430 tests/gpu --deselect tests/gpu/test_two_gpus.py
            tail -n 12 "$folder/tests.log"
            ;;
        holes)
            tests holes_tests 150 tests/gpu/test_holes.py
            part holes_rows 200 "$python" -m tests.compat --seconds 190 --timeout 60 \
                --out "$folder/holes.jsonl" compile_reduce_overhead compile_max_autotune \
                graph_trees multiprocessing_queue mempool cupy_dlpack jax_dlpack \
                cupy_allocator cupy_on_arena profiler_memory
            cat "$folder/holes_rows.log"
            ;;
        latency)
            part latency 150 "$python" -m benchmarks latency --only floor,native,arena \
                --cases size --seconds 90 --out "$folder/latency.json"
            cat "$folder/latency.log"
            ;;
        notebooks)
            mkdir -p "$folder/notebooks"
            for path in notebooks/*.ipynb; do
                page=$folder/notebooks/$(basename "$path")
                cp "$path" "$page"
                part "$(basename "$path" .ipynb)" 200 "$python" -W ignore \
                    scripts/notebooks.py "$page" --write
            done
            ;;
        bench)
            [[ -z $have ]] || cp "$have" "$folder/bench.json"
            measure=("$python" -m benchmarks --out "$folder/bench.json")
            if [[ -n $bench ]]; then
                read -ra arguments <<<"$bench"
                part bench "$((seconds - SECONDS))" "${measure[@]}" \
                    --seconds "$((seconds - SECONDS - 40))" "${arguments[@]}"
            else
                # What FILE of --have holds is not measured again: so the same call goes on.
                part bench_latency 200 "${measure[@]}" core latency --seconds 150
                part bench_startup 150 "${measure[@]}" startup --seconds 110
                part bench_packing 240 "${measure[@]}" packing --programs new --jobs 4 \
                    --timeout 100 --seconds "$(within 240)"
                part bench_steps 260 "${measure[@]}" steps --timeout 100 \
                    --programs llama_lora,moe,gpt2_varlen --seconds "$(within 260)"
                part bench_caps "$((seconds - SECONDS))" "${measure[@]}" caps --jobs 4 \
                    --only arena,expandable --timeout 100 \
                    --seconds "$(within "$seconds")"
            fi
            cat "$folder"/bench*.log
            ;;
        spill_rates)
            part spill_rates 240 "$python" -m benchmarks.spill_rates
            cat "$folder/spill_rates.log"
            ;;
        spill)
            [[ -z $have ]] || cp "$have" "$folder/spill.json"
            read -ra arguments <<<"$bench"
            part spill "$((seconds - SECONDS))" "$python" -m benchmarks spill \
                --out "$folder/spill.json" --seconds "$((seconds - SECONDS - 30))" "${arguments[@]}"
            cat "$folder/spill.log"
            ;;
        pools)
            part pools 200 "$python" -m benchmarks.pools --out "$folder/pools.json"
            cat "$folder/pools.log"
            ;;
        fixed)
            part fixed 120 "$python" -m benchmarks.fixed_shapes --timeout 60 \
                --out "$folder/fixed.json"
            grep -v '^{' "$folder/fixed.log"
            ;;
        loops)
            part loops 520 "$python" -m benchmarks.loops --repeat "$repeat" --timeout 120 \
                ${loops:+--loops "$loops"} --out "$folder/loops.json"
            tail -n 20 "$folder/loops.log"
            ;;
        soak)
            part soak 420 "$python" -m tests.soak --steps 10000 --prove --seconds 340 \
                --out "$folder/soak.json"
            tail -n 12 "$folder/soak.log"
            ;;
        sanitizer)
            # It may not tell what lies in a mapping of the driver's own making from what does
            # not (to be seen here), so the guarded cases come after it, with a kernel that writes
            # too far.
            PATH=$PATH:/usr/local/cuda/bin
            if command -v compute-sanitizer >/dev/null; then
                for case in basic streams graphs oom; do
                    part "memcheck_$case" 60 compute-sanitizer --tool memcheck \
                        --target-processes all --error-exitcode 86 --launch-timeout 40 \
                        "$python" -m tests.memcheck "$case"
                    tail -n 4 "$folder/memcheck_$case.log"
                done
            else
                say "sanitizer: no compute-sanitizer here (it comes with the CUDA Toolkit)"
                status=1
            fi
            tests guard 100 tests/gpu/test_guard.py
            tail -n 4 "$folder/guard.log"
            ;;
        tracking)
            part tracking 240 "$python" -m benchmarks.tracking --within 230 --timeout 90 \
                ${loops:+--loops "$loops"} --out "$folder/tracking.json"
            tail -n 20 "$folder/tracking.log"
            ;;
        two)
            tests two_tests 280 -s tests/gpu/test_two_gpus.py \
                "tests/gpu/test_gpu_hooks.py::test_two_gpus" \
                tests/gpu/test_pools.py::test_two_devices
            grep -v '^$' "$folder/two_tests.log" | tail -n 40
            part two 250 "$python" -m benchmarks.two_gpus --timeout 60 \
                --out "$folder/two.json"
            grep -v '^{' "$folder/two.log"
            ;;
        truth)
            part context 100 "$python" -m benchmarks.context --out "$folder/context.json"
            cat "$folder/context.log"
            # A row is in the file as soon as it is measured; none is begun too late to end.
            part truth 520 "$python" -m benchmarks.truths --out "$folder/truth.jsonl" \
                --seconds "$((seconds - SECONDS - 45))" --timeout 120 $again \
                --record "$folder/traces" \
                ${programs:+--programs "$programs"}
            cat "$folder/truth.log"
            ;;
        *) say "$name: no such part" && status=1 ;;
    esac
done
say "in all $SECONDS s, exit code $status"
exit $status
