# shellcheck shell=bash disable=SC2154,SC2086 # variables are from lib.sh, none with blanks
# The image: whom it runs as, how small it is, what it may not do, health, and the end by SIGTERM.

image_is_small_and_not_root() {
    local size
    is "$(podman image inspect --format '{{.Config.User}}' localhost/psd:psd)" psd:psd "user" || return
    size=$(podman image inspect --format '{{.Size}}' localhost/psd:psd)
    [ "$size" -lt 80000000 ] || why "the image has $size bytes"
}

default_command_is_psd() {
    podman run -d --pull=never --name alone "${hardened[@]}" localhost/psd:psd > /dev/null 2>&1 || return
    until_true 10 in_log alone 'listening on tcp://127.0.0.1:5577' || return # reachable from within only, until told otherwise
    until_true 10 podman healthcheck run alone > /dev/null 2>&1
}

nothing_may_be_written() {
    start_psd && until_true 10 in_log psd listening || return
    ! podman exec psd sh -c 'echo > /usr/local/x' 2> /dev/null || why "the root file system is writable" || return
    is "$(podman exec psd sh -c 'id -u')" 10001 "uid" || return
    # shellcheck disable=SC2016  # the shell in the container expands it
    is "$(podman exec psd sh -c 'while read -r k v; do [ $k = CapEff: ] && echo $v; done < /proc/1/status')" 0000000000000000 capabilities
}

health_tells_whether_psd_answers() {
    podman run -d --pull=never --name psd --network psd "${hardened[@]}" localhost/psd:psd \
        psd --listen 'tcp://*:5577' --insecure > /dev/null 2>&1 || return
    until_true 10 podman healthcheck run psd > /dev/null 2>&1 || return
    podman run -d --pull=never --name deaf --network psd "${hardened[@]}" localhost/psd:psd \
        psd --listen tcp://127.0.0.1:6000 > /dev/null 2>&1 || return
    until_true 10 in_log deaf listening || return
    ! podman healthcheck run deaf > /dev/null 2>&1 || why "healthy, though nobody listens at the address to ask"
}

stops_soon() { # CONTAINER EXPECTED_STATUS
    local from ms
    from=$(date +%s%3N)
    podman stop -t 10 "$1" > /dev/null 2>&1
    is "$(exit_of "$1")" "$2" "exit status of $1" || return
    # Until the process had ended, not until podman had cleaned up.
    ms=$(($(podman inspect --format '{{.State.FinishedAt.UnixMilli}}' "$1") - from))
    [ $ms -lt 2000 ] || why "$1 took $ms ms to stop"
}

sigterm_ends_psd() {
    start_psd && until_true 10 in_log psd listening && stops_soon psd 0
}

sigterm_ends_psworker() {
    start_psd || return
    start server --env PSD_JOB=j --env PSD_RANK=0 --env PSD_WORLD_SIZE=2 --env PSD_DEBUG=info -- psworker --role server || return
    start other --env PSD_JOB=j --env PSD_RANK=1 --env PSD_WORLD_SIZE=2 -- $programs/loop --iters 1000000000 || return
    until_true 20 in_log other 'rank 1 ready' || return
    stops_soon server 0 || return
    is "$(exit_of other)" 3 "exit status of the rank that goes on" && has other 'rank 0'
}

sigterm_ends_psworker_before_it_joined() {
    start_psd || return
    start server --env PSD_JOB=j --env PSD_RANK=0 --env PSD_WORLD_SIZE=2 -- psworker --role server || return
    until_true 20 eval "psctl status | grep -q 'missing rank 1'" || return
    stops_soon server 143 && has server 'told to end before it had joined'
}

check "the image is small and runs as user psd" image_is_small_and_not_root
check "its default command is psd, on loopback, and healthy" default_command_is_psd
check "read-only root, no capability" nothing_may_be_written
check "the health check tells whether psd answers" health_tells_whether_psd_answers
check "podman stop ends psd with 0 within 2 s" sigterm_ends_psd
check "podman stop ends psworker with 0 within 2 s" sigterm_ends_psworker
check "podman stop ends psworker that waits for its world" sigterm_ends_psworker_before_it_joined
