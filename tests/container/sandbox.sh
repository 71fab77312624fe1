#!/usr/bin/env bash
# Runs a command in namespaces of its own, so that whatever it starts ends with it: sandbox.sh COMMAND [ARG...]
#
# The command has its own network (loopback only, no way out), process ids, mounts, host name and IPC objects, an empty /run
# and an empty /dev/shm; the files are otherwise the machine's. Its exit status is this script's. SIGTERM, SIGINT, SIGHUP
# and even SIGKILL to this script end all of it. Needs root.
#
# Set for the command: PSD_SANDBOX=1, and SANDBOX_RUN, a directory that goes with the sandbox.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }

export PSD_SANDBOX=1 SANDBOX_RUN=/run/psd-sandbox

# The process 1 of the new namespaces, and the command's parent: a process 1 ignores signals that it does not handle, which
# the command should not have to know. 127.0.0.2: with 127.0.0.1 alone, getaddrinfo's AI_ADDRCONFIG sees no IPv4 at all.
# shellcheck disable=SC2016  # the inner shell expands it
inside='
    set -e
    mount -t tmpfs -o mode=0755 tmpfs /run
    mkdir -p /run/netns /run/lock "$SANDBOX_RUN"
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    ip link set lo up
    ip address add 127.0.0.2/8 dev lo
    set +e
    env --default-signal=INT,QUIT -- "$@"
    exit'

child=
end_all() { # EXIT_STATUS
    trap '' TERM INT HUP
    if [ -n "$child" ]; then
        init=$(pgrep -P "$child") || init=
        kill -KILL "$child" 2>/dev/null || true # process 1 follows (--kill-child), and everything with it
        wait "$child" 2>/dev/null || true
        for ((i = 0; i < 500; i++)); do
            { [ -n "$init" ] && kill -0 "$init" 2>/dev/null; } || break
            sleep 0.01
        done
    fi
    exit "$1"
}
# unshare keeps SIGTERM and SIGINT from its child while it waits, hence the traps; setpriv is for SIGKILL to this script.
trap 'end_all 143' TERM
trap 'end_all 130' INT
trap 'end_all 129' HUP
setpriv --pdeathsig KILL \
    unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc --propagation private \
    bash -c "$inside" sandbox "$@" <&0 &
child=$!
wait "$child"
