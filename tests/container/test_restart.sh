# shellcheck shell=bash disable=SC2154,SC2086 # variables are from lib.sh, none with blanks
# Containers that are replaced: a worker that comes back under its name, and psd with its journal on a volume.

start_rejoin() { # RANK OPTIONS [ARGUMENT]
    local rank=$1 options
    read -r -a options <<< "$2"
    shift 2
    start r$rank "${options[@]}" --env PSD_JOB=again --env PSD_RANK=$rank --env PSD_WORLD_SIZE=2 -- $programs/rejoin "$@"
}

# It dies and is replaced: the world stays closed and says why, a new group of both works (tests/programs/rejoin.c).
worker_is_replaced() {
    # --init: process 1 of a container cannot kill itself.
    start_psd && start_rejoin 0 "" && start_rejoin 1 --init first || return
    is "$(exit_of r1)" 137 "exit status of rank 1's first life" || return
    podman rm r1 > /dev/null 2>&1
    start_rejoin 1 "" || return
    is "$(exit_of r1)" 0 "exit status of rank 1's second life" && is "$(exit_of r0)" 0 "exit status of rank 0" || return
    has r0 'rank 0 again 3' && has r1 'rank 1 again 3'
}

running() {
    local i
    for i in 0 1 2; do
        is "$(podman inspect --format '{{.State.Status}}' loop$i)" running "state of loop$i" || return
        has_not loop$i failed || return
    done
}
three_active() { is "$(psctl ranks 2> /dev/null | grep -c ' active ')" 3 "active ranks" 2> /dev/null; }

# psd's container is stopped and started, then killed and replaced; its state is on a volume. While its address belongs to
# nobody, a worker's attempt to connect is answered by nothing, and the next one may be 4 s later: so the usual lease of 5 s.
# By address: podman's name server knows no upstream here, and lets who asks for a name that is gone wait for 5 s and more.
psd_is_replaced() {
    podman volume create state > /dev/null || return
    local psd=(start psd "${psd_place[@]}" --volume state:/var/lib/psd --
        psd --listen 'tcp://*:5577' --insecure --state /var/lib/psd)
    "${psd[@]}" && start_ranks loop 3 "--env PSD_COORDINATOR=tcp://$psd_ip:5577" $programs/loop --iters 1000000000 || return
    until_true 20 in_log loop2 'rank 2 ready' || return
    podman stop -t 10 psd > /dev/null 2>&1
    is "$(exit_of psd)" 0 "exit status of psd" || return
    podman start psd > /dev/null 2>&1
    until_true 20 three_active && running || return
    podman kill psd > /dev/null 2>&1
    podman rm -f -t 0 psd > /dev/null 2>&1
    "${psd[@]}" || return
    until_true 20 three_active && running || return
    psctl stop --job loop > /dev/null || why "psctl stop failed" || return
    local i
    for i in 0 1 2; do is "$(exit_of loop$i)" 3 "exit status of loop$i" && has loop$i 'stop' || return; done
}

check "a worker's container is replaced: its rank comes back" worker_is_replaced
check "psd's container is restarted, then replaced: nobody notices" psd_is_replaced
podman volume rm state > /dev/null 2>&1 || true
