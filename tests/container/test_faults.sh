# shellcheck shell=bash disable=SC2154,SC2086 # variables are from lib.sh, none with blanks
# A container of four that is killed, paused or cut off in the middle of all_reduce.

start_loop() {
    start_psd && start_ranks loop 4 "" $programs/loop --iters 1000000000 && until_true 20 all_ready
}
all_ready() {
    local i
    for i in 0 1 2 3; do in_log loop$i "rank $i ready" || return; done
}

# The others end, with a sentence that names rank 1; psd knows it too.
others_name_rank_1() { # PATTERN
    local i
    for i in 0 2 3; do
        is "$(exit_of loop$i)" 3 "exit status of loop$i" || return
        has loop$i "failed: .*$1" || return
    done
    until_true 10 in_events "$1"
}

killed() {
    start_loop && podman kill loop1 > /dev/null && others_name_rank_1 'rank 1 '
}

paused_for_less_than_the_lease() {
    local i
    start_loop && podman pause loop1 > /dev/null || return
    sleep 1 # the fault itself: a pause of a third of the lease
    podman unpause loop1 > /dev/null
    sleep $lease # long enough that a lease that had not been renewed would have run out
    for i in 0 1 2 3; do
        is "$(podman inspect --format '{{.State.Status}}' loop$i)" running "state of loop$i" || return
        has_not loop$i failed || return
    done
    is "$(psctl ranks | grep -c ' active ')" 4 "active ranks"
}

paused_for_longer() {
    start_loop && podman pause loop1 > /dev/null || return
    others_name_rank_1 "rank 1 \(worker loop1 on host loop1, pid 1\) was lost: it was silent for its lease of ${lease}000 ms" || return
    podman unpause loop1 > /dev/null
    is "$(exit_of loop1)" 3 "exit status of the one that was paused" && has loop1 'failed: .*rank 1 \(worker loop1.* was lost'
}

disconnected() {
    start_loop && podman network disconnect psd loop1 > /dev/null || return
    others_name_rank_1 "rank 1 \(worker loop1 on host loop1, pid 1\) was lost: it was silent for its lease of ${lease}000 ms" || return
    # Alone, it finds out by itself.
    is "$(exit_of loop1)" 3 "exit status of the one that was cut off" && has loop1 'failed: .*lost rank [023].*(unreachable|timed out)'
}

killed_before_the_world_is_complete() {
    start_psd && start_ranks part 2 "--env PSD_WORLD_SIZE=3 --env PSD_JOIN_TIMEOUT=60s" $programs/loop || return
    until_true 20 eval "psctl status | grep -q 'have 2 of 3, missing rank 2 (never arrived)'" || return
    podman kill part1 > /dev/null
    until_true 20 eval "psctl status | grep -q 'missing rank 1 '"
}

check "a killed container is named and the rest ends" killed
check "a pause shorter than the lease is nothing" paused_for_less_than_the_lease
check "a pause longer than the lease is named, on both sides" paused_for_longer
check "a container cut off the network is named, and knows it itself" disconnected
check "one killed before the world is complete is named as missing" killed_before_the_world_is_complete
