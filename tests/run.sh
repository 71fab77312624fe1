#!/bin/bash
# Runs test programs one after the other and adds up their closing lines.
#   tests/run.sh BUILD KIND...     kinds: unit sim waits mutants scenarios integration conformance tsan hosts container
#                                    mpi gpu
# Exit status 1 when anything failed, crashed, was cut off, or neither ran nor skipped a test.
set -u
build=$1
shift
export PSD_BUILD=$build
limit=${TEST_TIMEOUT:-300} # seconds for one program
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
passed=0 failed=0 skipped=0
log=$(mktemp)
# Ranks that tests kill leave their records, by design: in a directory that goes with this run. In memory where possible.
XDG_RUNTIME_DIR=$(mktemp -d /dev/shm/psd-test.XXXXXX 2>/dev/null || mktemp -d)
export XDG_RUNTIME_DIR
trap 'rm -rf "$log" "$XDG_RUNTIME_DIR"' EXIT

# Criterion's and the plain closing lines of one program's output, as "passed failed skipped".
closing() {
    sed -E 's/\x1b\[[0-9;]*m//g' "$1" | sed -nE 's/.*Synthesis: Tested: ([0-9]+) \| Passing: ([0-9]+) \| Failing: ([0-9]+) \| Crashing: ([0-9]+).*/\2 \3 \4 0/p
             s/^([a-z_]+: )?([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\2 \3 0 \5/p' |
        awk '{p += $1; f += $2 + $3; s += $4} END {if (NR) print p, f, s + 0}'
}

one() { # name command...
    local name=$1 status counts p f s start=$SECONDS
    shift
    timeout -k 10 "$limit" "$@" >"$log" 2>&1
    status=$?
    counts=$(closing "$log")
    read -r p f s <<<"${counts:-0 0 0}"
    if [ -z "$counts" ] || [ "$((p + f + s))" = 0 ]; then
        f=$((f + 1))
        echo "FAIL $name: no closing line (exit status $status)"
        tail -40 "$log"
    elif [ "$status" != 0 ] || [ "$f" != 0 ]; then
        [ "$f" = 0 ] && f=1
        echo "FAIL $name (exit status $status)"
        grep -v '^\[PASS\]' "$log" | tail -60
    else
        printf 'ok   %-44s %4d passed%s  %ds\n' "$name" "$p" "$([ "$s" = 0 ] || echo ", $s skipped")" $((SECONDS - start))
        grep -i '^skip' "$log"
        # Of conformance, for each backend: what passed, operation by dtype.
        awk '/^backend / {b = $0} /^cells ranks=2 / {print "     " b; on = 1} on {print "     " $0} /^refused, / {on = 0}' "$log"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

for kind in "$@"; do
    case $kind in
        unit | integration)
            for t in "$build"/tests/$kind/test_*; do
                [ -x "$t" ] && [ -f "tests/$kind/$(basename "$t").c" ] && one "$kind/$(basename "$t")" "$t"
            done ;;
        tsan)
            for t in "$build"/tests/tsan/tsan_*; do
                [ -x "$t" ] && [ -f "tests/tsan/$(basename "$t").c" ] && one "$kind/$(basename "$t")" "$t"
            done ;;
        sim)
            one sim/psim "$build/tests/sim/psim" tests/sim
            # Its memory bound is the product's, not a sanitizer's.
            case $build in *address* | *thread*) ;; *) one sim/scale "$build/tests/sim/psim" --scale 100000 ;; esac ;;
        conformance) one conformance tests/conformance/run.sh "$build" ;;
        waits)
            # 100,000 programs take some 20 minutes: `property 100000`. Here, as many as fit.
            one waits/property "$build/tests/waits/property" 100000 1 "${WAITS_SECONDS:-25}" ;;
        mutants) one waits/mutants tests/waits/mutants.sh "${CC:-gcc}" ;; # bugs sown into the wait-for graph
        gpu)
            # LeakSanitizer's search crashes on the live threads of a CUDA runtime, simulated or not.
            case $build in *address*) export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 ;; esac
            for t in "$build"/tests/gpu/sim/tests/test_* "$build"/tests/gpu/test_*; do
                [ -x "$t" ] && [ -f "${t#"$build"/}.c" ] && one "${t#"$build"/tests/}" "$t"
            done
            # Says so, and skips, where the simulator could not be built.
            one gpu/simulated tests/gpu/run.sh "$build" ;;
        scenarios) one scenarios tests/scenarios/run.sh "$build" ;;
        hosts) one hosts tests/hosts/run.sh "$build" ;;
        mpi) one mpi tests/mpi/run.sh "$build" ;;
        container) one container tests/container/run.sh "$build" ;;
        *) echo "run.sh: unknown kind $kind" >&2; exit 2 ;;
    esac
done
[ "$skipped" = 0 ] && tail= || tail=", $skipped skipped"
echo "$passed passed, $failed failed$tail"
[ "$failed" = 0 ] && [ "$((passed + skipped))" -gt 0 ]
