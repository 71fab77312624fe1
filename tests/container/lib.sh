# shellcheck shell=bash disable=SC2034,SC2206
# To be sourced by the test_*.sh, inside the sandbox: containers on a network of their own, and tests that are counted.
#
# PSD_BUILD and PSD_IMAGE name the programs and the image. The coordinator's container is called psd and has an address
# that stays; all others find it by name. Containers run as the product's documents tell: read-only, without
# capabilities, as user psd.

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/container/podman.sh
. "$here/podman.sh"

psd_ip=10.77.0.2
programs=/usr/local/tests/programs # of tests/programs, in the image
lease=3 # seconds; the default is 5
passed=0 failed=0 skipped=0
scratch=$(mktemp -d "$SANDBOX_RUN/test.XXXXXX")

podman network exists psd || podman network create --subnet 10.77.0.0/24 psd > /dev/null

# ---- containers

hardened=(--read-only --cap-drop=all --security-opt=no-new-privileges)

# Options for podman come before "--"; --network replaces ours.
start() { # NAME [PODMAN OPTION...] -- COMMAND [ARG...]
    local name=$1 options=() network=(--network psd --hostname "$1")
    shift
    while [ "$1" != -- ]; do
        [ "$1" != --network ] || network=()
        options+=("$1")
        shift
    done
    shift
    podman run -d --pull=never --no-healthcheck --name "$name" "${network[@]}" "${hardened[@]}" \
        --env PSD_COORDINATOR=tcp://psd:5577 --env PSD_NAME="$name" --env PSD_DEBUG=host=info \
        "${options[@]}" "$PSD_IMAGE" "$@" > /dev/null 2> "$scratch/podman.err" || { cat "$scratch/podman.err" >&2; return 1; }
}

# The same MAC address each time: workers have the old one cached, and would take up to a minute to ask for a new one.
psd_place=(--ip $psd_ip --mac-address 02:00:0a:4d:00:02)

start_psd() { # [PODMAN OPTION...]
    start psd "${psd_place[@]}" "$@" -- psd --listen 'tcp://*:5577' --insecure --lease ${lease}s
}

# A job of N ranks with one command, in containers PREFIX0, PREFIX1, ... OPTIONS is split into words.
start_ranks() { # PREFIX N OPTIONS COMMAND [ARG...]
    local prefix=$1 count=$2 options i
    read -r -a options <<< "$3"
    shift 3
    for ((i = 0; i < count; i++)); do
        start "$prefix$i" --env PSD_JOB="$prefix" --env PSD_RANK=$i --env PSD_WORLD_SIZE="$count" "${options[@]}" -- "$@" || return 1
    done
}

psctl() { timeout 10 "$PSD_BUILD/bin/psctl" --coordinator tcp://$psd_ip:5577 "$@"; } # from outside of all containers
log() { podman logs "$1" 2>&1; }
in_log() { log "$1" | grep -qE -- "$2"; }                  # CONTAINER PATTERN
in_events() { psctl events --limit 200 2> /dev/null | grep -qE -- "$1"; }

exit_of() { # CONTAINER [SECONDS]: its exit status, once it has ended
    timeout "${2:-20}" podman wait "$1" 2> /dev/null || echo "still running"
}

# ---- tests

until_true() { # SECONDS COMMAND...: waits until the command succeeds
    local deadline=$((${EPOCHREALTIME/./} + $1 * 1000000))
    shift
    until "$@"; do
        [ "${EPOCHREALTIME/./}" -lt $deadline ] || { why "after waiting: $*"; return 1; }
        sleep 0.05
    done
}

why() { echo "    $*" >&2; return 1; } # says what a test did not like
is() { [ "$1" = "$2" ] || why "$3: \"$1\", not \"$2\""; } # FOUND EXPECTED WHAT
has() { in_log "$1" "$2" || why "the log of $1 has no \"$2\""; } # CONTAINER PATTERN
has_not() { ! in_log "$1" "$2" || why "the log of $1 has \"$2\""; }

remove_all() {
    # Not always all at the first call. "rm" also removes the cgroups, which would outlive the sandbox.
    for _ in 1 2 3; do
        podman rm -f -t 0 -a > /dev/null 2>&1
        [ -n "$(podman ps -aq 2> /dev/null)" ] || return 0
    done
}
trap remove_all EXIT

show_logs() {
    local name
    for name in $(podman ps -a --format '{{.Names}}'); do
        echo "    --- $name: $(podman inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$name")"
        log "$name" | tail -n 25 | sed 's/^/    /'
    done
}

check() { # DESCRIPTION FUNCTION: the function is the test; containers are removed behind it
    local from=${EPOCHREALTIME/./} verdict=ok
    if "$2"; then passed=$((passed + 1)); else verdict=FAIL failed=$((failed + 1)); fi
    printf '%-4s %-68s %6d ms\n' $verdict "$1" $(((${EPOCHREALTIME/./} - from) / 1000))
    [ $verdict = ok ] || show_logs
    remove_all
}

skip() { # DESCRIPTION WHY
    skipped=$((skipped + 1))
    echo "skip: $1: $2"
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
}
