# Several hosts on one machine, around one switch: network, UTS, IPC and mount namespaces, so that a host has a
# name and a /dev/shm of its own. To be sourced inside sandbox.sh.
#
# Host I is called hI and has the addresses 10.77.0.I and fd77::I on its interface eth0; pI is its port of
# the switch. All hosts have the same /etc/hosts, with these names.
# shellcheck shell=bash

switch=sw # the namespace with the bridge
host_ns=/run/hosts # $host_ns/hI: the namespaces of hI

in_switch() { nsenter --net=/run/netns/$switch "$@"; }

# Plugs the cable of host I in, once both of its ends exist. The MAC stays the same on a new cable, since the
# others have it in their caches. nodad: an IPv6 address can be used at once.
plug_in() { # I
    local mac
    printf -v mac '02:00:00:00:77:%02x' "$1"
    ip -n $switch link set "p$1" master br0 up &&
        ip -n "h$1" link set eth0 address "$mac" up &&
        ip -n "h$1" address add "10.77.0.$1/24" dev eth0 &&
        ip -n "h$1" address add "fd77::$1/64" dev eth0 nodad
}

# A process that keeps the namespaces of host I.
boot() { # I
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --net --uts --ipc --mount --propagation private sh -c '
        hostname "$1" && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && ip link set lo up && : > "$2" && exec sleep infinity
    ' sh "h$1" "$work/h$1-is-up" &
    ln -s "/proc/$!/ns" "$host_ns/h$1"
    wait_for 5 test -e "$work/h$1-is-up" && ip netns attach "h$1" $!
}

# Hosts h1 to hN.
hosts_up() { # N
    local i
    mkdir -p "$host_ns" && cp /etc/hosts "$work/hosts" && mount --bind "$work/hosts" /etc/hosts || return 1
    ip netns add $switch && ip -n $switch link add br0 type bridge && ip -n $switch link set br0 up || return 1
    for ((i = 1; i <= $1; i++)); do
        boot "$i" && ip -n "h$i" link add eth0 type veth peer name "p$i" netns $switch && plug_in "$i" || return 1
        printf '10.77.0.%d h%d\nfd77::%d h%d\n' "$i" "$i" "$i" "$i" >> "$work/hosts"
    done
    in_switch nft -f - <<'RULES'
table bridge faults {
    set cut { type ifname . ifname; }
    set blocked { type ifname . ifname; }
    chain forward {
        type filter hook forward priority 0;
        iifname . oifname @cut counter drop
        iifname . oifname @blocked tcp flags & (syn | ack) == syn counter drop
    }
}
RULES
}

# What runs a command on a host, as words: "${on[@]}" COMMAND & gives the PID of COMMAND itself.
on_host() { # hI
    on=(nsenter "--net=$host_ns/$1/net" "--uts=$host_ns/$1/uts" "--ipc=$host_ns/$1/ipc" "--mount=$host_ns/$1/mnt")
}

# The same as a template for psrun --rsh.
on_host '{host}'
rsh_template="${on[*]} sh -c {command}"

# Loses what goes between hosts A and B, both ways, silently. "cut": everything; "blocked": new TCP
# connections, as a firewall does.
lose() { # cut|blocked A B
    in_switch nft add element bridge faults "$1" "{ \"p$2\" . \"p$3\", \"p$3\" . \"p$2\" }"
}

heal() {
    in_switch nft flush set bridge faults cut && in_switch nft flush set bridge faults blocked
}

# Puts host I on a long and bad cable (cable.c), whose process is $cable_pid and whose output $work/cable.
replace_cable() { # I DELAY_US LOSS_PERCENT
    ip -n $switch link delete "p$1"
    "$PSD_BUILD/tests/hosts/cable" "/run/netns/h$1" eth0 "/run/netns/$switch" "p$1" "$2" "$3" \
        > "$work/cable" 2>&1 &
    cable_pid=$!
    wait_for 5 grep -qs '^up' "$work/cable" && plug_in "$1"
}

# From now on the hosts speak IPv6 only. The file is written in place: it is mounted.
drop_ipv4() { # N
    local i names
    for ((i = 1; i <= $1; i++)); do ip -n "h$i" -4 address flush dev eth0 || return 1; done
    names=$(grep -v '^10\.77\.' "$work/hosts") && echo "$names" > "$work/hosts"
}
