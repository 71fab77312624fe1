#!/usr/bin/env bash
# Trains a network on handwritten digits with psd, then without, and compares: demo.sh [BUILD]
#
# A coordinator of its own on a free port, 2 servers and 4 trainers on the backend of PSD_BACKEND (host unless it is set);
# then the same training in one plain process. DEMO_SERVERS and DEMO_TRAINERS change their numbers, DEMO_WRAP is a program
# that starts each of them. The last line is
#     demo: accuracy=0.97 loss_diff=3e-07 seconds=12
# Exit code 0 if the accuracy on held-out images is at least 0.96, the largest relative difference of the epochs' mean
# losses at most 1e-5, and all took less than a minute. Ctrl-C ends everything and leaves nothing behind.
set -euo pipefail

build=${1:-build}
bin=$build/bin
examples=$build/examples
data=$(dirname "$0")/../worker/examples/data/digits.csv
servers=${DEMO_SERVERS:-2}
trainers=${DEMO_TRAINERS:-4}
wrap=${DEMO_WRAP:-env}
export PSD_BACKEND=${PSD_BACKEND:-host}

tmp=
psd_pid=
run_pid=

cleanup() {
    trap '' INT TERM HUP
    # psrun ends its ranks before it ends itself.
    for pid in $run_pid $psd_pid; do
        kill -TERM "$pid" 2>/dev/null || continue
        wait "$pid" || true
    done
    if [ -n "$tmp" ]; then rm -rf "$tmp"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fail() {
    echo "demo: $1" >&2
    for log in "$tmp/psd.log" "$tmp/run.log"; do
        if [ -s "$log" ]; then sed 's/^/  /' "$log" >&2; fi
    done
    exit 1
}

# A bar that is redrawn on a terminal; else a line now and then.
show_progress() { # epoch epochs loss accuracy
    if [ -t 1 ]; then
        local filled=$(($1 * 30 / $2)) bar
        bar=$(printf '%*s' "$filled" '')
        printf '\r[%-30s] epoch %*d/%d  loss %s  accuracy %s' "${bar// /#}" ${#2} "$1" "$2" "$3" "$4"
        if [ "$1" -eq "$2" ]; then echo; fi
    elif [ $(($1 % 10)) -eq 0 ] || [ "$1" -eq 1 ]; then
        printf 'epoch %d/%d  loss %s  accuracy %s\n' "$1" "$2" "$3" "$4"
    fi
}

show_psctl() { # when
    if [ -t 1 ]; then printf '\r%79s\r' ''; fi
    for view in status tables; do
        if [ "$view" = tables ] && [ "$1" = "at the end" ]; then break; fi
        printf -- '\n$ psctl %s    (%s)\n' "$view" "$1"
        "$bin/psctl" -c "$endpoint" "$view" || fail "psctl $view failed"
    done
    echo
}

start_psd() {
    mkfifo "$tmp/ready"
    # In a session of its own: Ctrl-C is for psrun and this script, and psd ends last.
    setsid "$bin/psd" --listen tcp://127.0.0.1:0 --ready-fd 3 3>"$tmp/ready" >"$tmp/psd.log" 2>&1 &
    psd_pid=$!
    read -r -t 20 endpoint <"$tmp/ready" || fail "psd did not start"
    echo "psd listens at $endpoint"
}

train() {
    local line epoch words
    mkfifo "$tmp/lines"
    "$bin/psrun" --coordinator "$endpoint" --job digits --timeout 55s --no-prefix \
        -n "$servers" --role server -- "$wrap" "$bin/psworker" --role server : \
        -n "$trainers" --role trainer -- "$wrap" "$examples/digits_train" --servers "$servers" --data "$data" --losses "$tmp/psd.txt" \
        >"$tmp/lines" 2>"$tmp/run.log" &
    run_pid=$!
    while IFS= read -r line; do
        case $line in
        "epoch "*)
            # epoch 1/60 loss 0.5 accuracy 0.9
            read -r -a words <<<"$line"
            epoch=${words[1]%/*}
            show_progress "$epoch" "${words[1]#*/}" "${words[3]}" "${words[5]}"
            if [ "$epoch" -eq $((${words[1]#*/} / 2)) ]; then show_psctl "while it trains"; fi
            ;;
        "digits_train: accuracy="*) accuracy=${line#*=} ;;
        *) echo "$line" ;;
        esac
    done <"$tmp/lines"
    wait "$run_pid" || fail "the job failed"
    run_pid=
}

# The largest |a - b| / b over the lines of both files; nothing if they do not have the same, positive number of lines.
largest_difference() {
    paste "$tmp/psd.txt" "$tmp/reference.txt" | awk '
        NF != 2 || !($2 > 0) { bad = 1 }
        { d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= most)) most = d }
        END { if (!bad && NR > 0) printf "%.0e\n", most }'
}

accuracy=
SECONDS=0
tmp=$(mktemp -d "${TMPDIR:-/tmp}/psd-demo.XXXXXX")
export PSD_RUN_DIR=$tmp # a rank that is killed leaves its record there, to be read; here it goes with the rest
start_psd
echo "training with $servers servers and $trainers trainers on the $PSD_BACKEND backend"
train
[ -n "$accuracy" ] || fail "the trainers told no accuracy"
show_psctl "at the end"

echo "the reference: the same training in one process, without psd"
"$examples/digits_reference" --data "$data" --losses "$tmp/reference.txt" | tail -n 1
difference=$(largest_difference)
[ -n "$difference" ] || fail "the two runs did not tell the same number of losses"

seconds=$SECONDS
result=0
awk -v a="$accuracy" 'BEGIN { exit !(a >= 0.96) }' || { echo "demo: accuracy $accuracy is below 0.96" >&2; result=1; }
awk -v d="$difference" 'BEGIN { exit !(d <= 1e-5) }' || { echo "demo: loss difference $difference is above 1e-5" >&2; result=1; }
[ "$seconds" -lt 60 ] || { echo "demo: $seconds seconds is not under a minute" >&2; result=1; }
cleanup
trap - EXIT
printf 'demo: accuracy=%.2f loss_diff=%s seconds=%d\n' "$accuracy" "$difference" "$seconds"
exit $result
