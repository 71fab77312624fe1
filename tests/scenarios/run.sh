#!/bin/bash
# Hangs and mismatches, and their legal twins: real processes, real agents, a real psd that is not told what to expect.
# The verdict, its ranks and its lines are read from `psctl why --json`.
#   tests/scenarios/run.sh BUILD [NAME]
set -u
build=$1 only=${2:-}
bin=$build/bin program=$build/tests/scenarios/scenario source=tests/scenarios/scenario.c
work=$(mktemp -d)
passed=0 failed=0 number=0
"$bin/psd" --listen tcp://127.0.0.1:0 --state "$work/state" >"$work/psd.out" 2>"$work/psd.log" &
psd=$!
trap 'kill "$psd" 2>/dev/null; wait "$psd" 2>/dev/null; rm -rf "$work"' EXIT
address=
for _ in $(seq 100); do
    address=$(grep -ohE 'tcp://127\.0\.0\.1:[1-9][0-9]*' "$work/psd.out" "$work/psd.log" | head -1)
    [ -n "$address" ] && break
    sleep 0.05 # until psd has told its address
done
[ -n "$address" ] || { cat "$work/psd.log"; echo "0 passed, 1 failed"; exit 1; }
export PSD_COORDINATOR=$address

result() { # ok? what
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $2"
        sed 's/^/    /' "$work/out" "$work/why" 2>/dev/null | head -40
    fi
}

# wrong NAME RANKS CLASS TEXT...: it must fail with this class; every text and every marked line must be in the report.
wrong() {
    local name=$1 ranks=$2 class=$3 ok=0 job line
    [ -z "$only" ] || [ "$only" = "$name" ] || return 0
    shift 3
    job=w$((++number))
    timeout 60 "$bin/psrun" --job $job -n "$ranks" --timeout 30s -- "$program" "$name" wrong >"$work/out" 2>&1
    [ $? = 7 ] || ok=1
    # Who failed soonest had come last: from its block to its error.
    grep -oE 'failed after [0-9.]+' "$work/out" | cut -d' ' -f3 | sort -n | head -1 >>"$work/times"
    "$bin/psctl" why --job $job --json >"$work/why" 2>&1
    grep -q "\"class\":\"$class\"" "$work/why" || ok=1
    for text in "$@"; do
        grep -qF -- "$text" "$work/why" || { echo "    not in the report: $text"; ok=1; }
    done
    for line in $(grep -nE "@$name( |\$)" "$source" | cut -d: -f1); do
        grep -q "scenario.c:$line" "$work/why" || { echo "    not in the report: line $line"; ok=1; }
    done
    result $ok "$name wrong"
}

# twin NAME RANKS [slow|stopped]: it must succeed, without an incident.
twin() {
    local name=$1 ranks=$2 form=${3:-twin} ok=0 job
    [ -z "$only" ] || [ "$only" = "$name" ] || return 0
    job=t$((++number))
    timeout 60 "$bin/psrun" --job $job -n "$ranks" --timeout 30s -- "$program" "$name" "$form" >"$work/out" 2>&1 || ok=1
    "$bin/psctl" incidents --job $job --json >"$work/why" 2>&1 || ok=1
    grep -q '"class"' "$work/why" && ok=1
    result $ok "$name $form"
}

wrong head_to_head 2 deadlock '"waits_for":1' '"tensor":"x"' 'psd_sendrecv'
wrong head_to_head 4 deadlock
wrong both_receive 2 deadlock '"op":"recv"' 'sends first'
wrong lonely_batch 2 orphan 'rank 1'
wrong two_orphans 3 orphan 'rank 1'
wrong reduce_and_send 3 deadlock '"op":"all_reduce"' 'swap the order'
wrong two_groups 2 deadlock 'same order'
wrong two_groups 3 deadlock 'same order'
wrong counts 2 mismatch 'count 99' 'count 100'
wrong dtypes 2 mismatch bf16 f32
wrong broadcasts 2 mismatch i64 f32
wrong kinds 3 mismatch barrier all_reduce
wrong one_more 2 orphan barrier
wrong tags 2 deadlock 'same tag'
wrong ring 4 deadlock
wrong any_source 3 deadlock 'from any rank'
export PSD_EAGER_LIMIT=0
wrong head_to_head 3 deadlock
wrong reduce_and_send 2 deadlock
twin head_to_head 2
unset PSD_EAGER_LIMIT
for name in head_to_head both_receive lonely_batch two_orphans reduce_and_send two_groups counts dtypes broadcasts kinds one_more ring any_source; do
    twin $name 3
done
for name in head_to_head reduce_and_send ring any_source; do
    twin $name 3 slow
    twin $name 3 stopped
done
sort -n "$work/times" 2>/dev/null | awk '{ t[NR] = $1; late += $1 >= 1 }
    END { if (NR) printf "from the last block to the error that explains it, %d runs: median %.3f s, largest %.3f s; 1 s or more: %d\n",
                         NR, t[int((NR + 1) / 2)], t[NR], late }'
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
