#!/bin/bash
# What runs on any backend, on nccl over the device simulator: the conformance suite, tables, the examples, the demo; and the
# kernels against the processor, compiled for it, and over the simulator. No measure of any GPU.
#   tests/gpu/run.sh BUILD
# Ends with "N passed, N failed". Skipped, with the reason, where the simulator could not be built.
set -u
build=$(cd "$1" && pwd)
here=$(dirname "$0")
sim=$build/tests/gpu/sim
plugin=$build/lib/psd/psd_backend_nccl.so
passed=0 failed=0

cudart=$(ls "$sim"/libcudart.so.* 2>/dev/null | head -1)
for needed in "$plugin" "${cudart:-$sim/libcudart.so}" "$sim/libnccl.so.2" "$build/lib/psd/psd_kernels_sim.so"; do
    if [ ! -e "$needed" ]; then
        echo "SKIP: nccl over the device simulator: $needed is not there; it is built where the headers of CUDA and NCCL are"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done

# From before the simulator's libraries are in the environment: the kernels, compiled for the processor.
tmp=$(mktemp -d)
output=$tmp/output
trap 'rm -rf "$tmp"' EXIT

check() { # name pattern command...: passes if the command does and its output has the pattern
    local name=$1 pattern=$2 start=$SECONDS status
    shift 2
    timeout -k 10 120 "$@" >"$output" 2>&1
    status=$?
    if [ "$status" = 0 ] && grep -qE -- "$pattern" "$output"; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL $name: exit status $status"
        tail -40 "$output"
    fi
}

emulated=$build/tests/gpu/psd_kernels_emulated.so
if [ -e "$emulated" ]; then
    check "kernels.cu, compiled for the processor, bit by bit" ' 0 failed$' \
        env PSD_CUDART_LIBRARY="$emulated" PSD_KERNELS_LIBRARY="$emulated" "$build/tests/gpu/check_kernels" --bits
fi

export PSD_CUDART_LIBRARY=$cudart PSD_NCCL_LIBRARY=$sim/libnccl.so.2
export PSD_KERNELS_LIBRARY=$build/lib/psd/psd_kernels_sim.so PSD_BACKEND=nccl
psrun=("$build/bin/psrun" --standalone --no-prefix)

# Without a look for leaks under a sanitizer: the default stream's thread, which lives as long as the process, stops the search.
check "kernels over the simulator" ' 0 failed$' env ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" \
    "$build/tests/gpu/check_kernels" --bits

cat >"$tmp/logs" <<'END'
#!/bin/sh
# A rank that lives until its log was asked for.
"$1/examples/overlap" >/dev/null &
while kill -0 $! 2>/dev/null; do
    "$1/bin/psctl" logs --rank 0 2>&1 && break
done
wait
END
chmod +x "$tmp/logs"
check "psctl logs of a rank" 'device simulator' env PSD_NCCL_DEBUG=INFO "${psrun[@]}" -n 1 -- "$tmp/logs" "$build"

cat >"$tmp/ranks" <<'END'
#!/bin/sh
# A server that lives until psd has been told what its communicators take.
"$1/bin/psworker" --role server >/dev/null &
server=$!
until "$1/bin/psctl" ranks --json 2>&1 | grep -oE '"comms": ?1, ?"comm_budget": ?64, ?"comm_bytes": ?[0-9]+'; do sleep 0.2; done
kill "$server"
wait "$server"
END
chmod +x "$tmp/ranks"
check "psctl ranks: communicators" '"comm_bytes"' "${psrun[@]}" -n 1 --role server -- "$tmp/ranks" "$build"

for ranks in 1 2 4; do
    extent=--reduced
    [ "$ranks" = 2 ] && extent=--quick
    check "conformance $extent, $ranks ranks" ' 0 failed, ' \
        "${psrun[@]}" -n "$ranks" -- "$build/tests/conformance/conformance" $extent
    sed -n '/^backend nccl/,/^refused, /p' "$output"
done

check "streams of the caller's own" 'rank 0: [0-9]+ passed, 0 failed' "${psrun[@]}" -n 2 -- "$build/tests/gpu/streams"
check "a hang is ended, a new group works" 'ended after .* works' "${psrun[@]}" -n 2 -- "$build/tests/programs/hang"

table() { # servers trainers kind pattern
    check "table $3, $1 servers, $2 trainers" "$4" "${psrun[@]}" -n "$1" --role server -- "$build/bin/psworker" --role server : \
        -n "$2" --role trainer -- "$build/tests/programs/table" "$3" "$1"
}
table 1 1 values 'momentum: 0 wrong'
table 2 3 values 'momentum: 0 wrong'

for example in hello_all_reduce send_recv isend_irecv batch_p2p ring broadcast_all_reduce ring_plan reduce_scatter_gather overlap; do
    for ranks in 1 3; do
        check "$example, $ranks ranks" "rank 0 of $ranks" "${psrun[@]}" -n "$ranks" -- "$build/examples/$example"
    done
done
check "ddp_linear, 4 ranks" 'workers=4' "${psrun[@]}" -n 4 -- "$build/examples/ddp_linear"
check "demo" '^demo: accuracy=0\.9[6-9] ' "$here/../../deploy/demo.sh" "$build"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
