#!/bin/bash
# What is wrong between hosts is named with both ends, within a deadline, and does not stop what it does not
# concern. psd is on h5, whose cable is not touched unless a test says so.
# shellcheck source=tests/hosts/check.sh
. "$(dirname "$0")/check.sh"

lease=5    # seconds; psd's default, and so the data links'
patience=5 # more, for a machine that has other work

start_ranks() { # WORDS...
    local r
    for r in 0 1 2 3; do start_rank $r "h$((r + 1))" PSD_WORLD_SIZE=4 "$@"; done
}

test_no_such_interface() {
    start_psd h5 && start_rank 0 h1 PSD_DATA_HOST=nosuch0 "$ranks" all_reduce 1K 1 && ranks_end 10 1 || return 1
    says rank0 '"nosuch0" is no address, no interface with an address, and no name'
}

test_address_of_another_host() {
    start_psd h5 && start_rank 0 h1 PSD_DATA_HOST=10.77.0.2 "$ranks" all_reduce 1K 1 && ranks_end 10 1 || return 1
    says rank0 '10\.77\.0\.2 is not an address of this host'
}

# An interface that the others have a route to, but cannot reach: who tried, whom, from where.
test_unreachable_interface() {
    local r result
    ip -n h3 link add alone type veth peer name nowhere && ip -n h3 link set alone up &&
        ip -n h3 link set nowhere up && ip -n h3 address add 10.88.0.3/24 dev alone || return 1
    for r in 1 2 4; do ip -n "h$r" route add default via 10.77.0.200 || return 1; done
    ip -n h3 -6 address flush dev eth0 || return 1 # no way around it
    listen=tcp://10.77.0.5:$port start_psd h5 || return 1
    for r in 0 1 3; do start_rank $r "h$((r + 1))" PSD_WORLD_SIZE=4 "$ranks" all_reduce 1K 1; done
    start_rank 2 h3 PSD_WORLD_SIZE=4 PSD_DATA_HOST=alone "$ranks" all_reduce 1K 1
    ranks_end 20 1
    result=$?
    ip -n h3 address add fd77::3/64 dev eth0 nodad
    [ $result = 0 ] || return 1
    # Either side may be the one that connects.
    says rank0 'rank [013] lost rank 2 .*tcp 10\.88\.0\.3:[0-9]+: .*\(from 10\.77\.0\.[124]:[0-9]+ \(eth0\)\)|rank 2 lost rank [013] .*tcp 10\.77\.0\.[124]:[0-9]+: .*\(from 10\.88\.0\.3:[0-9]+ \(alone\)\)'
}

# A firewall between two hosts: all ranks tell which pair, from where to where.
test_blocked_port() {
    local r
    lose blocked 2 3 && start_psd h5 || return 1
    start_ranks "$ranks" all_reduce 1K 1
    ranks_end 20 1 || return 1
    for r in 0 1 2 3; do
        says rank$r "the world's group did not open: .*rank ([12]) lost rank [12] .*timed out connecting \(from 10\.77\.0\.[23]:[0-9]+ \(eth0\)\)" || return 1
    done
}

# A cable cut while four pairs move data over it and beside it.
test_cut_link() {
    local r cut_at
    start_psd h5 || return 1
    start_ranks "$ranks" pairs $((lease + 4))
    for r in 0 1 2 3; do said_within 20 rank$r 'pairs run' || return 1; done
    # Both ranks of the pair are at work: some data have come.
    wait_for 10 rx_bytes_over 3 20000000 || fail "nothing moves between the hosts" || return 1
    cut_at=${EPOCHREALTIME/./}
    lose cut 2 3 || return 1
    for r in 1 2; do
        said_within $((lease + patience)) rank$r 'pair 1,2 failed: .*the link broke: TCP, 10\.77\.0\.[23]:[0-9]+ \(eth0\) to 10\.77\.0\.[23]:[0-9]+' || return 1
    done
    echo "  noticed after $(((${EPOCHREALTIME/./} - cut_at) / 1000)) ms"
    ranks_end 20 0 || return 1
    for r in 0 1 2 3; do silent rank$r 'no longer admits' || return 1; done
    says rank1 'pair 0,1 went on: [0-9]+ rounds right' && says rank2 'pair 2,3 went on: [0-9]+ rounds right' &&
        says rank0 'pair 3,0 went on: [0-9]+ rounds right'
}

# Shorter than the lease: nothing but a delay.
test_short_cut() {
    local r
    start_psd h5 || return 1
    start_ranks "$ranks" pairs 4
    for r in 0 1 2 3; do said_within 20 rank$r 'pairs run' || return 1; done
    lose cut 2 3 && lose cut 1 5 || return 1
    sleep 1.5 # the fault itself: shorter than the lease
    heal || return 1
    ranks_end 20 0 || return 1
    says rank1 'pair 1,2 went on: [0-9]+ rounds right' && says rank0 'pair 0,1 went on' && silent psd 'lost|warn'
}

rx_bytes_over() { # I BYTES
    on_host "h$1"
    [ "$("${on[@]}" sed -nE 's/^ *eth0: *([0-9]+) .*/\1/p' /proc/self/net/dev)" -gt "$2" ]
}

# A host that psd does not hear any more is lost, and named to the others; when it is back it is told so.
test_partition() {
    start_psd h5 || return 1
    start_ranks "$ranks" stay
    said_within 10 rank3 'is here' || return 1
    lose cut 4 5 || return 1
    said_within $((lease + patience)) rank0 'ended: .*rank 3 \(worker .* on host h4, pid [0-9]+\) was lost: it was silent for its lease of 5000 ms' || return 1
    says psd 'rank 3 \(worker .* on host h4, pid [0-9]+\) was lost: it was silent' || return 1
    heal || return 1
    said_within 10 rank3 'psd no longer admits this worker: worker .* was taken for lost; a process cannot come back after that: start it again'
}

# Nothing but a bad cable: slow, and right.
test_slow_cable() {
    replace_cable 4 20000 1 || fail "no cable: $(cat "$work/cable")" || return 1
    start_psd h5 || return 1
    start_ranks "$ranks" all_reduce 16M 1
    ranks_end 60 0 || return 1
    says rank3 '1 all_reduce of 16777216 bytes right' || return 1
    kill "$cable_pid" && end_of 5 "$cable_pid" cable || return 1
    says cable "^carried [0-9]{4,} lost [0-9]{2,}$" && echo "  $(tail -n 1 "$work/cable")"
}

hosts_up 5 || exit 1
for name in no_such_interface address_of_another_host blocked_port cut_link short_cut partition unreachable_interface slow_cable; do
    check $name
done
finish
