#!/bin/bash
# Hangs and mismatches, and their legal twins: real processes, real agents, a real psd that is not told what to expect.
# The verdict, its ranks and its lines are read from `psctl why --json`.
#   tests/scenarios/run.sh BUILD [NAME]     SCENARIOS_AT_ONCE: how many at a time
set -u
build=$1 only=${2:-}
bin=$build/bin program=$build/tests/scenarios/scenario sources=tests/scenarios
work=$(mktemp -d)
number=0
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

at_once=${SCENARIOS_AT_ONCE:-8} # they mostly wait

# Starts a case in the background once there is room. Each leaves a line in $work/NUMBER.result.
start() { # command...
    while [ "$(jobs -pr | wc -l)" -gt "$at_once" ]; do # psd is one
        wait -n
    done
    number=$((number + 1))
    "$@" "$number" &
}

report() { # number ok? what
    if [ "$2" = 0 ]; then
        echo ok >"$work/$1.result"
    else
        {
            echo "FAIL $3"
            sed 's/^/    /' "$work/$1.missing" "$work/$1.out" "$work/$1.why" 2>/dev/null | head -40
        } >"$work/$1.result"
    fi
}

# FILE:LINE of the lines that are marked @NAME.
places() {
    (cd "$sources" && grep -nE "@$1( |\$)" ./*.c | sed -E 's,^\./([^:]*:[0-9]+):.*,\1,')
}

# The forms of a scenario: NAME, or NAME:KEY=VALUE:...
run() { # number form ranks scenario
    local words
    IFS=: read -ra words <<<"$4"
    timeout 60 "$bin/psrun" --job "s$1" -n "$3" --timeout 30s -- "$program" "${words[0]}" "$2" "${words[@]:1}" >"$work/$1.out" 2>&1
}

code=7 # exit status of a wrong program
check_wrong() { # scenario ranks class text... number
    local scenario=$1 ranks=$2 class=$3 me=${*: -1} ok=0 expected place status
    run "$me" wrong "$ranks" "$scenario"
    status=$?
    [ $status = $code ] || { echo "exit status $status" >>"$work/$me.missing"; ok=1; }
    # Who failed soonest had come last: from its block to its error.
    grep -oE 'failed after [0-9.]+' "$work/$me.out" | cut -d' ' -f3 | sort -n | head -1 >>"$work/times"
    "$bin/psctl" why --job "s$me" --json >"$work/$me.why" 2>&1
    if [ "$class" = none ]; then # an error of the call, no incident
        cat "$work/$me.out" >"$work/$me.text"
    else
        cat "$work/$me.why" >"$work/$me.text"
        grep -qE "\"class\":\"$class[\".]" "$work/$me.why" || ok=1
    fi
    expected=("${@:4:$#-4}" "@${scenario%%:*}")
    for text in "${expected[@]}"; do
        case $text in
            @*) for place in $(places "${text#@}"); do
                    grep -qF "$place" "$work/$me.text" || { echo "not in the report: $place"; ok=1; }
                done ;;
            !*) ! grep -qF -- "${text#!}" "$work/$me.text" || { echo "in the report: ${text#!}"; ok=1; } ;;
            *) grep -qF -- "$text" "$work/$me.text" || { echo "not in the report: $text"; ok=1; } ;;
        esac
    done >>"$work/$me.missing"
    report "$me" $ok "$scenario wrong, $ranks ranks"
}

check_twin() { # scenario ranks form number
    local ok=0
    run "$4" "$3" "$2" "$1" || ok=1
    "$bin/psctl" incidents --job "s$4" --json >"$work/$4.why" 2>&1 || ok=1
    grep -q '"class"' "$work/$4.why" && ok=1
    report "$4" $ok "$1 $3, $2 ranks"
}

wanted() {
    [ -z "$only" ] || [ "$only" = "${1%%:*}" ]
}

# wrong SCENARIO RANKS CLASS TEXT...: it must fail with this class (`none`: with an error, and no incident is asked
# for). Every text must be in the report, none that is given as !TEXT, and the place of every line marked @SCENARIO, and
# of those given as @MARK.
wrong() {
    wanted "$1" && start check_wrong "$@"
}

# twin SCENARIO RANKS [slow|stopped]: it must succeed, without an incident.
twin() {
    wanted "$1" && start check_twin "$1" "$2" "${3:-twin}"
}

wrong head_to_head 2 deadlock '"waits_for":1' '"tensor":"x"' 'psd_sendrecv'
wrong head_to_head 4 deadlock
wrong both_receive 2 deadlock '"op":"recv"' 'sends first'
wrong lonely_batch 2 orphan 'rank 1'
wrong two_orphans 3 orphan 'rank 1'
wrong reduce_and_send 3 deadlock '"op":"all_reduce"' 'swap the order'
wrong two_groups 2 deadlock 'same order'
wrong two_groups 3 deadlock 'same order'
wrong counts 2 mismatch.count 'count 99' 'count 100' '"role":"suspect","op":"all_reduce","group":1,"ordinal":0,"tensor":"grad"' \
    '"count":99' '"count":100' 'give both ranks the same count (99 on rank 0, 100 on rank 1)'
wrong counts 3 mismatch.count '"rank":0,"role":"suspect"' '"rank":1,"role":"other"' '"rank":2,"role":"other"' \
    'give rank 0 the count of the others'
wrong dtypes 2 mismatch.dtype '"dtype":"bf16"' '"dtype":"f32"' '"redop":"sum"' 'give both ranks the same dtype'
wrong dtypes 4 mismatch.dtype '"rank":0,"role":"suspect"' '"rank":3,"role":"other"' 'give rank 0 the dtype of the others'
wrong broadcasts 2 mismatch.dtype '"dtype":"i64","count":14,"root":0' '"dtype":"f32","count":6,"root":0' '"tensor":"w"'
wrong kinds 3 mismatch.kind '"rank":0,"role":"suspect","op":"barrier"' '"rank":1,"role":"other","op":"all_reduce"' \
    'add the missing call before it'
wrong one_more 2 orphan barrier
wrong tags 2 deadlock 'same tag' @tags_send
wrong tags:count=4 2 deadlock 'the tags differ' 'message of rank 0 with tag 1' 'receives tag 2' @tags_barrier
twin tags:count=4 2
wrong ring 4 deadlock
wrong any_source 3 deadlock 'from any rank'
code=0 # these do not hang
wrong lost_work 2 lost-work '"tensor":"lost"' '"op":"send"' '"state":"information"' 'had completed' 'psd_wait'
wrong lost_send 2 orphan 'send' '"lost'
code=7
export PSD_EAGER_LIMIT=0
wrong head_to_head 3 deadlock
wrong reduce_and_send 2 deadlock
twin head_to_head 2
unset PSD_EAGER_LIMIT
for name in head_to_head both_receive lonely_batch two_orphans reduce_and_send two_groups counts dtypes broadcasts kinds one_more ring any_source lost_work lost_send; do
    twin $name 3
done
for name in head_to_head reduce_and_send ring any_source; do
    twin $name 3 slow
    twin $name 3 stopped
done

# Point to point.
p2p() {
    wrong pipeline 2 deadlock "fwd1" "fwd0'" 'psd_sendrecv'
    wrong pipeline:after=50 4 deadlock "fwd1" "fwd0'"
    wrong pipeline:sub=1 3 deadlock "fwd1" "fwd0'"
    wrong queue_order 2 deadlock '"tensor":"first"' @queue_order_cycle
    wrong queue_order:missing=1:after=50 2 orphan last @queue_order_missing
    wrong one_grad 2 orphan grad2
    wrong one_grad:waits=1 3 deadlock grad2
    wrong p2p_count 2 mismatch 'count 3' 'count 5'
    wrong p2p_count:received=4:after=50 3 mismatch 'count 3' 'count 4'
    wrong p2p_count:sent=100000:received=99999:sub=1 3 mismatch 'count 100000' 'count 99999'
    wrong p2p_count:received=2 2 mismatch 'count 3' 'count 2'
    wrong p2p_dtype 2 mismatch f32 i32
    wrong p2p_dtype:count=50000:after=50 3 mismatch f32 i32
    wrong prev_is_next 2 mismatch
    wrong prev_is_next:rows=4000 2 mismatch
    for how in wait any loop; do
        wrong own_timeout:how=$how 2 deadlock '"tensor":"wake"'
        twin own_timeout:how=$how 3
        twin own_timeout:how=$how 2 stopped
    done
}
p2p
for op in all_reduce reduce scatter gather all_gather reduce_scatter all_to_all broadcast; do
    wrong disagree:op=$op:at=1 3 mismatch 'count 50' 'count 49'
    wrong disagree:op=$op:what=kind:after=50 3 mismatch $op barrier
    wrong disagree:op=$op:what=dtype:sub=1 4 mismatch f32 i32
    wrong skip:op=$op:sizes=1 3 mismatch 'count 52' 'count 53'
    # Who only receives from the root may leave without anybody waiting for it.
    case $op in broadcast | scatter) ;; *) wrong skip:op=$op 3 orphan $op 'rank 1' ;; esac
    twin disagree:op=$op:sub=1:after=50 4
    twin skip:op=$op 3
done
for op in reduce scatter gather broadcast; do
    wrong disagree:op=$op:what=root:at=2 3 mismatch root
done
for op in all_reduce reduce reduce_scatter; do
    wrong disagree:op=$op:what=redop 3 mismatch sum max
done
wrong disagree:op=all_gather:at=2:count=40000 4 mismatch 'count 40000' 'count 39999'
wrong tensor_order 3 mismatch i64 f16
wrong splits 3 mismatch
wrong splits:at=2:after=50 4 mismatch
wrong skip:op=barrier:at=2 4 orphan barrier
wrong missing_member 3 deadlock '"op":"group_new"' '"op":"recv"' 'swap the order on rank 2' @missing_member_elsewhere
wrong missing_member:after=50 5 deadlock '"op":"group_new"' '"op":"recv"' @missing_member_elsewhere
wrong member_lists 3 mismatch mismatch.members 'ranks 0 1 2' '"ranks 0 1'
wrong member_lists 5 mismatch mismatch.members 'ranks 0 1 2' '"ranks 0 1'
wrong splitting 3 deadlock group_split all_reduce @splitting
wrong splitting:how=dup:after=50 4 deadlock group_dup all_reduce @splitting
wrong missing_member:leaves=1 3 none 'rank 2'
wrong aftermath 2 deadlock 'same order' '!orphan' '"incident":1'
wrong aftermath 3 deadlock 'same order' '!orphan' '"incident":1'
twin aftermath 3
wrong member_lists:order=1 3 none 'rank 1' 'rank 0'
wrong pull_first 2 none '"weight"' 'psd_table_open'
wrong death 3 none 'rank 2' @death_dup
wrong death:how=split 4 none 'rank 3' @death_split
export PSD_EAGER_LIMIT=0
wrong pipeline:count=4 2 deadlock "fwd1" "fwd0'"
p2p
for name in pipeline:count=4 queue_order p2p_count prev_is_next one_grad:waits=1 missing_member; do
    twin $name 3
    twin $name 3 slow
    twin $name 3 stopped
done
unset PSD_EAGER_LIMIT
# Twins of the above: the same calls, in a working order; also with a rank that is late.
for name in pipeline pipeline:batch=1:after=50 queue_order p2p_count p2p_dtype prev_is_next one_grad:waits=1 tensor_order splits \
    skip:sizes=1 disagree:op=reduce splitting splitting:how=dup missing_member member_lists death pull_first; do
    twin $name 4
    twin $name 3 slow
    twin $name 3 stopped
done
for pid in $(jobs -pr); do
    [ "$pid" = "$psd" ] || wait "$pid"
done
passed=$(cat "$work"/*.result | grep -c '^ok$')
failed=$((number - passed))
cat "$work"/*.result | grep -v '^ok$'
sort -n "$work/times" 2>/dev/null | awk '{ t[NR] = $1; late += $1 >= 1 }
    END { if (NR) printf "from the last block to the error that explains it, %d runs: median %.3f s, largest %.3f s; 1 s or more: %d\n",
                         NR, t[int((NR + 1) / 2)], t[NR], late }'
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
