#!/bin/bash
# psd between two hosts beside one plain TCP stream over the same cable, in interleaved rounds; a Markdown table.
#   tests/hosts/bench.sh BUILD
# Measures and prints; fails only when something does not run. ROUNDS (default 7), BYTES (default 67108864).
if [ -z "${PSD_BENCH_INSIDE-}" ]; then
    PSD_BUILD=$(realpath "${1:-build}")
    export PSD_BUILD PSD_BENCH_INSIDE=1
    exec "$(dirname "$(realpath "$0")")/sandbox.sh" "$(realpath "$0")"
fi
# shellcheck source=tests/hosts/check.sh
. "$(dirname "$0")/check.sh"

rounds=${ROUNDS:-7}
bytes=${BYTES:-67108864}
stream=$PSD_BUILD/tests/hosts/stream

plain() { # BUFFER_BYTES: microseconds of one transfer
    on_host h2
    "${on[@]}" "$stream" listen 6000 "$bytes" "$1" 5 > "$work/listener" &
    wait_for 5 grep -qs listening "$work/listener" || return 1
    on_host h1
    "${on[@]}" "$stream" 10.77.0.2 6000 "$bytes" "$1" 5 && wait $!
}

with_psd() { # HOSTS OPERATION OPTIONS: the same; in place where that is possible
    local where=$1
    shift
    on_host h1
    "${on[@]}" "$bin/psrun" --timeout 60s --hosts "$where" --rsh "$rsh_template" --no-prefix -n 2 -- \
        "$bin/psd-bench" "$@" -b "$bytes" -e "$bytes" --json -c 0 -w 1 -i 5 2> "$work/psd-bench" |
        sed -nE 's/.*"time_us":([0-9.]+).*/\1/p' | tail -1 | grep .
}

# The ratio is of times of one round, so that what disturbs the machine for a while disturbs both; its median, and its
# least and greatest.
row() { # NAME FILE
    paste "$2" "$work/plain" | awk -v name="$1" -v bytes="$bytes" '
        function sort(v, n,    i, j, x) {
            for (i = 2; i <= n; i++) {
                x = v[i]
                for (j = i - 1; j > 0 && v[j] > x; j--) v[j + 1] = v[j]
                v[j + 1] = x
            }
        }
        { us[NR] = $1; ratio[NR] = $2 / $1 }
        END {
            sort(us, NR); sort(ratio, NR); m = int((NR + 1) / 2)
            printf "| %s | %.0f [%.0f-%.0f] | %.2f | %.2f [%.2f-%.2f] |\n", name, us[m], us[1], us[NR], bytes / us[m] / 1000,
                ratio[m], ratio[1], ratio[NR]
        }'
}

hosts_up 2 && start_psd h1 || exit 1
for ((i = 0; i < rounds; i++)); do
    { plain "$bytes" >> "$work/plain" && plain 262144 >> "$work/plain_reused" &&
        with_psd h1,h2 send >> "$work/send" && with_psd h1,h2 send --buffer psd >> "$work/send_psd" &&
        with_psd h1,h2 all_reduce >> "$work/all_reduce"; } ||
        { echo "bench.sh: a run failed:"; cat "$work/psd-bench" "$work/listener"; exit 1; }
done
echo "One transfer of $bytes bytes between two hosts, veth: medians [least-greatest] of $rounds interleaved rounds."
printf '\n| | us | GB/s | rate over that of one plain TCP stream |\n|---|---|---|---|\n'
row 'one TCP stream, buffers of this size' "$work/plain"
row 'one TCP stream, 256 KiB again and again' "$work/plain_reused"
row 'psd send' "$work/send"
row 'psd send, psd_tensor_alloc' "$work/send_psd"
row 'psd all_reduce' "$work/all_reduce"
