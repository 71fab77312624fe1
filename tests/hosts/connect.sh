#!/bin/bash
# Ranks on several hosts find each other, whatever the hosts are called and whichever addresses they have.
# shellcheck source=tests/hosts/check.sh
. "$(dirname "$0")/check.sh"

# PROGRAM on each of 4 hosts, or twice on each with 8 ranks; NAME=VALUE before it.
run_ranks() { # JOB WORLD WORDS...
    local job=$1 world=$2 r
    shift 2
    for ((r = 0; r < world; r++)); do
        start_rank "$r" "h$((r * 4 / world + 1))" "PSD_JOB=$job" "PSD_WORLD_SIZE=$world" PSD_DEBUG=host=info "$@"
    done
}

test_four_hosts() {
    start_psd h1 || return 1
    run_ranks job 4 "$ranks" all_reduce 4M 3
    ranks_end 30 0 || return 1
    says rank3 'rank 3 local 0 of 4: 3 all_reduce of 4194304 bytes right' || return 1
    says rank3 'link to .*: TCP, 10\.77\.0\.4:[0-9]+ \(eth0\) to 10\.77\.0\.1:[0-9]+' || return 1
    silent rank3 'shared memory, rings'
}

# Ranks of one host use shared memory, the others TCP, in groups of all mixtures.
test_mixed_groups() {
    start_psd h2 || return 1
    run_ranks job 8 "$ranks" groups
    ranks_end 30 0 || return 1
    says rank5 'rank 5: groups right' || return 1
    [ "$(grep -cE 'link to [0-9a-f]{16}: shared memory, rings' "$work/rank5")" = 1 ] ||
        fail "rank 5 has not exactly one neighbour in shared memory" || return 1
    [ "$(grep -cE 'link to [0-9a-f]{16}: TCP, 10\.77\.0\.3:' "$work/rank5")" = 6 ] || fail "rank 5 has not 6 TCP links"
}

# psd, the data address and the interface given by name.
test_names() {
    local r where=(h1 eth0 h3 eth0)
    start_psd h1 || return 1
    for r in 0 1 2 3; do
        start_rank $r "h$((r + 1))" "PSD_DATA_HOST=${where[r]}" PSD_WORLD_SIZE=4 PSD_DEBUG=host=info "$ranks" all_reduce 1K 1
    done
    ranks_end 20 0 || return 1
    says rank1 'link to .* \(eth0\) to ' && says rank2 'link to .* \(eth0\) to '
}

test_ipv6_only() {
    drop_ipv4 5 || return 1
    start_psd h1 || return 1
    run_ranks job 4 "$ranks" all_reduce 1M 2
    ranks_end 30 0 || return 1
    says rank3 'link to .*: TCP, \[fd77::4\]:[0-9]+ \(eth0\) to \[fd77::1\]:[0-9]+'
}

# Two hosts with one name, as cloned machines have it: not taken for one host.
test_equal_names() {
    local r
    start_psd h1 || return 1
    for r in 0 1; do
        on_host "h$((r + 3))"
        "${on[@]}" unshare --uts sh -c 'hostname twin && exec "$@"' sh \
            env PSD_RANK=$r PSD_WORLD_SIZE=2 PSD_DEBUG=host=info "$ranks" linger > "$work/rank$r" 2>&1 &
        pid[r]=$!
    done
    said_within 10 rank0 'is here' && said_within 10 rank1 'is here' || return 1
    on_host h1
    "${on[@]}" "$bin/psctl" ranks > "$work/psrun" || return 1
    [ "$(grep -cE ' twin ' "$work/psrun")" = 2 ] || fail "psctl ranks does not show two ranks on hosts called twin" || return 1
    kill "${pid[@]}"
    says rank0 'link to .*: TCP, 10\.77\.0\.3:[0-9]+ \(eth0\) to 10\.77\.0\.4:' && silent rank0 'shared memory, rings'
}

# The data port of the rank with that PID.
data_port() { # HOST PID
    on_host "$1"
    "${on[@]}" ss -Hltnp | sed -nE "s/.*:([0-9]+) .*pid=$2,.*/\1/p" | head -n 1
}

# Bytes of a stranger on a data port are dropped and counted, and the job goes on.
test_stranger() {
    local r target
    start_psd h1 || return 1
    for r in 0 1; do
        start_rank $r "h$((r + 1))" PSD_WORLD_SIZE=2 "$ranks" linger
    done
    said_within 10 rank1 'is here' || return 1
    target=$(data_port h2 "${pid[1]}")
    [ -n "$target" ] || fail "no data port was found" || return 1
    on_host h3
    # shellcheck disable=SC2016 # the inner shell expands it
    "${on[@]}" bash -c 'for i in 1 2; do
            exec 3<>"/dev/tcp/h2/$1" && head -c 4096 /dev/urandom >&3; cat <&3 >/dev/null 2>&1; exec 3>&-
        done' stranger "$target" 2>/dev/null
    said_within 10 rank1 'dropped (10\.77\.0\.3|\[fd77::3\]):[0-9]+ on a data port: .*\(2 so far\)' || return 1
    is_gone "${pid[0]}" && fail "the job did not go on" && return 1
    silent rank0 'ended'
}

# Every operation, dtype and mistake, one rank on each host and two ranks on each of two hosts.
test_conformance() {
    local where
    start_psd h5 || return 1
    on_host h5
    for where in h1,h2,h3,h4 h1,h2; do
        "${on[@]}" "$bin/psrun" --job "on-${where//,/-}" -n 4 --timeout 100s --hosts "$where" --rsh "$rsh_template" \
            --no-prefix -- "$PSD_BUILD/tests/conformance/conformance" --quick --cells "$here/../conformance/cells.txt" \
            > "$work/psrun" 2>&1 || fail "the suite failed on $where" || return 1
        says psrun '^[0-9]{5} passed, 0 failed' || return 1
    done
}

hosts_up 5 || exit 1
for name in four_hosts mixed_groups names equal_names stranger conformance ipv6_only; do check $name; done
finish
