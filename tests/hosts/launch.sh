#!/bin/bash
# psrun --hosts: ranks on other hosts are started, named when they fail, and ended with the job.
# shellcheck source=tests/hosts/check.sh
. "$(dirname "$0")/check.sh"

# As ssh without a terminal: its end, by whatever signal, does not reach the command on the other host.
detached_template="setsid --wait $rsh_template"

# In the background on h5, which has no rank; sets psrun_pid.
start_psrun() { # TEMPLATE WORDS...
    local template=$1
    shift
    on_host h5
    "${on[@]}" env --default-signal=INT "$bin/psrun" --hosts h1,h2,h3,h4 --rsh "$template" "$@" > "$work/psrun" 2>&1 &
    psrun_pid=$!
}

psrun_ends() { # SECONDS STATUS
    local status
    end_of "$1" "$psrun_pid" psrun
    status=$?
    [ $status = "$2" ] || fail "psrun ended with status $status instead of $2"
}

nothing_left() { # PROCESS_NAME: of this sandbox, which sees only its own
    wait_for 3 no_process "$1" || fail "still running: $(pgrep -x -a "$1")"
}
no_process() { ! pgrep -x "$1" > /dev/null; }

test_two_ranks_on_each() {
    start_psd h1 && start_psrun "$rsh_template" --timeout 50s -n 8 -- "$ranks" all_reduce 256K 2 && psrun_ends 60 0 || return 1
    says psrun '^\[0\] rank 0 local 0 of 8: 2 all_reduce' && says psrun '^\[7\] rank 7 local 1 of 8: 2 all_reduce'
}

test_rank_fails() {
    local template
    start_psd h1 || return 1
    for template in "$rsh_template" "$detached_template"; do
        start_psrun "$template" --job "fails-${#template}" -n 4 -- "$ranks" fail 2 && psrun_ends 20 7 || return 1
        says psrun '^psrun: rank 2 \(.*/ranks on h3\) exited with status 7' || return 1
        nothing_left ranks || return 1
    done
}

test_rank_is_killed() {
    start_psd h1 && start_psrun "$rsh_template" -n 4 -- "$ranks" linger || return 1
    said_within 10 psrun '^\[1\] rank 1 is here, process [0-9]+' || return 1
    kill -KILL "$(sed -nE 's/^\[1\] rank 1 is here, process ([0-9]+)$/\1/p' "$work/psrun")"
    psrun_ends 20 137 || return 1
    says psrun '^psrun: rank 1 \(.* on h2\) exited with status 137' && nothing_left ranks # as its shell tells it
}

interrupt() { # TEMPLATE
    start_psd h1 && start_psrun "$1" -n 8 -- "$ranks" linger || return 1
    said_within 10 psrun '^\[7\] rank 7 is here' || return 1
    kill -INT "$psrun_pid"
    psrun_ends 20 130 || return 1
    says psrun '^psrun: psrun was told to end by signal 2 \(SIGINT\); the ranks on other hosts were ended' && nothing_left ranks
}
test_interrupt() { interrupt "$rsh_template"; }
test_interrupt_behind_a_shell_that_keeps_signals() { interrupt "$detached_template"; }

test_no_such_host() {
    start_psd h1 || return 1
    on_host h5
    "${on[@]}" "$bin/psrun" --hosts h1,h9 --rsh "$rsh_template" -n 2 -- "$ranks" linger > "$work/psrun" 2>&1 &
    psrun_pid=$!
    psrun_ends 20 1 && says psrun '/run/hosts/h9' && says psrun 'rank 1 \(.* on h9\) exited with status 1' && nothing_left ranks
}

# A parameter server on two hosts, trainers on the other two.
test_training() {
    start_psd h1 || return 1
    start_psrun "$rsh_template" --timeout 80s --no-prefix -n 2 --role server -- "$bin/psworker" --role server : \
        -n 2 --role trainer -- "$PSD_BUILD/examples/digits_train" --servers 2 --data "$here/../../worker/examples/data/digits.csv"
    psrun_ends 90 0 && says psrun '^digits_train: accuracy=0\.9[6-9]' && nothing_left psworker
}

hosts_up 5 || exit 1
for name in two_ranks_on_each rank_fails rank_is_killed interrupt interrupt_behind_a_shell_that_keeps_signals \
    no_such_host training; do
    check $name
done
finish
