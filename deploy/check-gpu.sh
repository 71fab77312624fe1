#!/bin/bash
# Proves psd on a machine with GPUs, from the folder that `make gpu-bundle` made: conformance with 1, 2 and 4 ranks, the kernels
# bit by bit and their share of the device's own bandwidth, the host's time for an operation, a hang that is ended, tables,
# and the demo. One table, and the same as JSON. At most five minutes.
#   check-gpu.sh [--json FILE] [--simulator DIR]
# One rank has one GPU; where there are fewer GPUs than ranks they share the first, each with a NCCL_HOSTID of its own, so
# that NCCL takes them for different hosts. --simulator: over psd's device simulator in DIR, to test this script; no measure
# of any GPU. Exit status: 0 all passed, 1 something failed, 3 there is no GPU or a library is missing.
set -u
root=$(cd "$(dirname "$0")" && pwd)
json=$root/check-gpu.json
simulator=
while [ $# -gt 0 ]; do
    case $1 in
        --json) json=${2:?--json needs a file}; shift 2 ;;
        --simulator) simulator=$(cd "${2:?--simulator needs a folder}" && pwd) || exit 2; shift 2 ;;
        *) echo "usage: check-gpu.sh [--json FILE] [--simulator DIR]" >&2; exit 2 ;;
    esac
done
tmp=$(mktemp -d "${TMPDIR:-/tmp}/psd-check-gpu.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
output=$tmp/output
export PSD_BACKEND=nccl PSD_RUN_DIR=$tmp/run NCCL_DEBUG=${NCCL_DEBUG:-WARN}
names=() results=() values=()
began=$SECONDS most_seconds=285 limit=0

stop() {
    echo "check-gpu: $1" >&2
    exit 3
}

note() { # name result value
    names+=("$1") results+=("$2") values+=("$3")
    printf '%-4s %-42s %s\n' "$2" "$1" "$3"
}

# ---- the machine

if ! "$root/bin/psctl" --version >"$output" 2>&1; then
    LD_LIBRARY_PATH=$root/lib/system${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    "$root/bin/psctl" --version >"$output" 2>&1 || stop "the programs do not start here: $(tail -1 "$output")"
fi
if [ -n "$simulator" ]; then
    PSD_NCCL_LIBRARY=$simulator/libnccl.so.2
    PSD_CUDART_LIBRARY=$(ls "$simulator"/libcudart.so.* | head -1)
    export PSD_NCCL_LIBRARY PSD_CUDART_LIBRARY
    export PSD_KERNELS_LIBRARY=${PSD_KERNELS_LIBRARY:-$simulator/../../../lib/psd/psd_kernels_sim.so}
    devices=${PSD_GPUSIM_DEVICES:-8}
    machine="psd's device simulator: no GPU, and no measure of one"
    driver=-
else
    # shellcheck source=deploy/gpu-libraries.sh
    . "$root/deploy/gpu-libraries.sh"
    gpu_find_libraries
    [ -z "$libraries_missing" ] || stop "$libraries_missing"
    devices=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || devices=0
    [ "$devices" -gt 0 ] || stop "nvidia-smi shows no GPU"
    machine=$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | sed 's/^ *//' | paste -sd, -)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
fi
export PSD_KERNELS_LIBRARY=${PSD_KERNELS_LIBRARY:-$root/lib/psd/psd_kernels.so}
echo "devices: $machine; driver $driver"
echo "NCCL: $PSD_NCCL_LIBRARY"
echo "CUDA: $PSD_CUDART_LIBRARY"

# Ranks that share a GPU tell NCCL that they are on hosts of their own.
cat >"$tmp/apart" <<'END'
#!/bin/sh
PSD_DEVICE=0 NCCL_HOSTID=psd-check-$PSD_RANK exec "$@"
END
chmod +x "$tmp/apart"

wrap_for() { # ranks: what starts one of them
    if [ "$1" -gt "$devices" ]; then echo "$tmp/apart"; else echo env; fi
}

place_of() {
    if [ "$1" -gt "$devices" ]; then echo "sharing a GPU"; else echo "a GPU each"; fi
}

# ---- checks

# Within its own seconds and those that are left of all: `limit` is what it got.
run() { # seconds command...
    local left=$((most_seconds - SECONDS + began))
    limit=$(($1 < left ? $1 : left))
    shift
    : >"$output"
    [ "$limit" -gt 0 ] || return 124
    timeout -k 5 "$limit" "$@" >"$output" 2>&1
}

reason() { # the last line that says why
    grep -vE '^(info|trace) |NCCL version' "$output" | grep -E 'psd|conformance|check|rank|hang|demo|error|fail' | tail -1 | cut -c1-300
}

check_line() { # name seconds pattern-of-the-value command...
    local name=$1 seconds=$2 pattern=$3 status value
    shift 3
    run "$seconds" "$@"
    status=$?
    value=$(grep -oE -- "$pattern" "$output" | tail -1)
    if [ "$status" = 0 ] && [ -n "$value" ]; then
        note "$name" ok "$value"
        return 0
    fi
    value=
    if [ "$limit" -le 0 ]; then
        value="no time was left for it; "
    elif [ "$status" = 124 ] || [ "$status" = 137 ]; then
        value="did not end in $limit s; "
    fi
    note "$name" FAIL "${value:-exit status $status; }$(reason)"
    cp "$output" "$tmp/failed.$(echo "$name" | tr -c 'a-z0-9\n' -)"
    return 1
}

psrun=("$root/bin/psrun" --standalone --no-prefix)
can_share=yes
check_line "the first program, 1 rank" 60 'the sum of the ranks is 0' "${psrun[@]}" -n 1 -- "$root/examples/hello_all_reduce" ||
    stop "nccl does not work here: $(reason)"
check_line "kernels, bit by bit" 60 '[0-9]+ passed, 0 failed' "$root/tests/gpu/check_kernels" --bits
if [ -n "$simulator" ]; then
    note "kernels, share of the copy's bandwidth" skip "not on a simulator"
elif run 60 "$root/tests/gpu/check_kernels"; then
    sed -n '/bytes\/element/s/^/     /p' "$output"
    share=$(sed -n 's/.*least_share=\([0-9.]*\).*/\1/p' "$output")
    value=$(grep -o 'least_share=.*' "$output")
    if awk -v s="$share" 'BEGIN { exit !(s >= 0.9) }'; then note "kernels, least share of the copy (goal 0.9)" ok "$value"; else
        note "kernels, least share of the copy (goal 0.9)" low "$value"; fi
else
    note "kernels, share of the copy's bandwidth" FAIL "$(reason)"
fi

for ranks in 1 2 4; do
    if [ "$ranks" -gt "$devices" ] && [ "$can_share" = no ]; then
        note "conformance, $ranks ranks" skip "there are $devices GPUs, and ranks cannot share one"
        continue
    fi
    check_line "conformance, $ranks ranks, $(place_of "$ranks")" 100 '[0-9]+ passed, 0 failed, [0-9]+ skipped' \
        "${psrun[@]}" -n "$ranks" -- "$(wrap_for "$ranks")" "$root/tests/conformance/conformance" --reduced || {
        if [ "$ranks" -gt "$devices" ]; then can_share=no; fi
    }
done

two_can_run() { [ "$devices" -ge 2 ] || [ "$can_share" = yes ]; }
if two_can_run; then
    check_line "a hang is ended, a new group works" 60 'ended after .* works' \
        "${psrun[@]}" -n 2 -- "$(wrap_for 2)" "$root/tests/programs/hang"
    check_line "streams of the caller's own" 60 'rank 0: [0-9]+ passed, 0 failed' \
        "${psrun[@]}" -n 2 -- "$(wrap_for 2)" "$root/tests/gpu/streams"
    check_line "tables bit by bit, 1 server, 1 trainer" 60 'momentum: 0 wrong' \
        "${psrun[@]}" -n 1 --role server -- "$(wrap_for 2)" "$root/bin/psworker" --role server : \
        -n 1 --role trainer -- "$(wrap_for 2)" "$root/tests/programs/table" values 1
    servers=1 trainers=1
    [ "$devices" -ge 6 ] && servers=2 trainers=4
    check_line "the demo, $servers servers, $trainers trainers" 100 'accuracy=.*' env DEMO_SERVERS=$servers DEMO_TRAINERS=$trainers \
        DEMO_WRAP="$(wrap_for $((servers + trainers)))" "$root/deploy/demo.sh" "$root"
else
    for name in "a hang is ended" "streams" "tables" "the demo"; do note "$name" skip "needs two GPUs, or ranks that can share one"; done
fi

# ---- the host's time for an operation, over NCCL's own calls

if [ -x "$root/tests/gpu/raw_nccl" ]; then
    ranks=1
    if two_can_run; then ranks=2; fi
    run 60 "${psrun[@]}" -n "$ranks" -- "$(wrap_for "$ranks")" "$root/tests/gpu/raw_nccl"
    status=$?
    value=$(grep -E '=' "$output" | tail -1 | cut -c1-200)
    if [ "$status" = 0 ]; then note "the host's time for an operation (goal 2 us more)" "$([ -n "$simulator" ] && echo skip || { [ "${value##* }" = met ] && echo ok || echo low; })" "$value"; else
        note "the host's time for an operation" FAIL "$(reason)"; fi
else
    note "the host's time for an operation" skip "this bundle has no tests/gpu/raw_nccl"
fi

# ---- the whole

failed=0
{
    printf '{"date": "%s", "devices": "%s", "driver": "%s", "nccl": "%s", "cudart": "%s", "simulator": %s, "seconds": %d, "checks": [' \
        "$(date -u +%FT%TZ)" "$machine" "$driver" "$PSD_NCCL_LIBRARY" "$PSD_CUDART_LIBRARY" \
        "$([ -n "$simulator" ] && echo true || echo false)" $((SECONDS - began))
    for i in "${!names[@]}"; do
        [ "$i" = 0 ] || printf ', '
        printf '{"name": "%s", "result": "%s", "value": "%s"}' "${names[$i]}" "${results[$i]}" \
            "$(printf '%s' "${values[$i]}" | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"
    done
    printf ']}\n'
} >"$json"
for result in "${results[@]}"; do [ "$result" != FAIL ] || failed=$((failed + 1)); done
[ "$failed" = 0 ] || for file in "$tmp"/failed.*; do
    echo "---- ${file##*/failed.}" && tail -30 "$file"
done
echo "check-gpu: $((${#names[@]} - failed)) fine or skipped, $failed failed, $((SECONDS - began)) s; $json"
[ "$failed" = 0 ]
