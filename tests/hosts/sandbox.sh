#!/bin/bash
# Runs a command in network, mount, PID, UTS and IPC namespaces of its own, so that whatever it starts, mounts
# or configures ends with it, however it ends.
#   tests/hosts/sandbox.sh COMMAND [ARGUMENT...]
# Inside: only the loopback interface, an empty /run, root. The exit status is the command's. SIGTERM, SIGINT
# and SIGHUP, and the end of this script by whatever, end everything inside.
set -u

# The first process inside stays as the parent of the command: a first process ignores signals that it has no
# handler for, which the command should not have to know. 127.0.0.2, because getaddrinfo() with
# AI_ADDRCONFIG finds no IPv4 name where 127.0.0.1 is the only address.
# shellcheck disable=SC2016 # the inner shell expands it
inside='
    mount -t tmpfs -o mode=0755 tmpfs /run && mkdir -p /run/netns /run/lock || exit 1
    ip link set lo up && ip address add 127.0.0.2/8 dev lo || exit 1
    env --default-signal=INT,QUIT -- "$@"
    exit'

inner=
stop() {
    trap '' TERM INT HUP
    [ -z "$inner" ] || kill -KILL "$inner" 2>/dev/null # --kill-child: all inside follow
    wait 2>/dev/null
    exit "$1"
}
trap 'stop 143' TERM
trap 'stop 130' INT
trap 'stop 129' HUP
setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
    --propagation private bash -c "$inside" sandbox "$@" <&0 &
inner=$!
wait "$inner"
