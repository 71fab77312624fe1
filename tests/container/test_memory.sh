# shellcheck shell=bash disable=SC2154,SC2086 # variables are from lib.sh, none with blanks
# Shared memory between containers: used when they share an IPC namespace, /dev/shm, PSD_RUN_DIR or the network; else TCP.

sum=("$programs/loop" --iters 20 --elements 100000)
big=("$programs/loop" --iters 3 --elements 16777216) # 64 MiB: more than /dev/shm has

start_rank() { # RANK OF NAME OPTIONS COMMAND...: one rank of a pair
    local rank=$1 size=$2 name=$3 options
    read -r -a options <<< "$4"
    shift 4
    start "$name" --env PSD_JOB=pair --env PSD_RANK="$rank" --env PSD_WORLD_SIZE="$size" "${options[@]}" -- "$@"
}

# Two ranks that share what the first makes: a, with one set of options, and b, with another.
pair() { # OPTIONS_OF_A OPTIONS_OF_B COMMAND...
    local a=$1 b=$2
    shift 2
    start_psd && start_rank 0 2 a "$a" "$@" && start_rank 1 2 b "$b" "$@" || return
    is "$(exit_of a 60)" 0 "exit status of a" && is "$(exit_of b 60)" 0 "exit status of b"
}
both_have() { has a "$1" && has b "$1"; }
uses_shared_memory() { both_have 'link to [0-9a-f]+: shared memory, rings of' && ! in_log a ': TCP,' && ! in_log b ': TCP,'; }
uses_tcp() { both_have 'link to [0-9a-f]+: TCP, ' && ! in_log a ': shared memory, ' && ! in_log b ': shared memory, '; }

# podman starts the second only when the first is there: its namespace is what is shared.
shared_ipc() { pair "--ipc shareable" "--ipc container:a" "${sum[@]}" && uses_shared_memory; }

shared_dev_shm() {
    mkdir -m 1777 "$scratch/shm"
    chmod 1777 "$scratch/shm"
    pair "--volume $scratch/shm:/dev/shm" "--volume $scratch/shm:/dev/shm" "${sum[@]}" && uses_shared_memory || return
    is "$(find "$scratch/shm" -type f -o -type s)" "" "what is left in /dev/shm"
}

shared_run_dir() {
    mkdir "$scratch/run"
    chown 10001 "$scratch/run"
    local both="--volume $scratch/run:/run/psd --env PSD_RUN_DIR=/run/psd"
    pair "$both" "$both" "${sum[@]}" && uses_shared_memory || return
    is "$(find "$scratch/run" -type f -o -type s)" "" "what is left in PSD_RUN_DIR"
}

# Of a third container: when process 1 of a pid namespace ends, the kernel kills the others in it.
shared_pid_namespace() {
    start holder --ipc shareable -- sleep 120 || return
    pair "--ipc container:holder --pid container:holder" "--ipc container:holder --pid container:holder" "${big[@]}" &&
        both_have 'link to [0-9a-f]+: shared memory, rings of .*, single copy$'
}

shared_network() { pair "" "--network container:a" "${sum[@]}" && uses_shared_memory; }

nothing_shared() {
    pair "" "" "${sum[@]}" && uses_tcp || return
    { log a; log b; } | grep -q 'not shared memory: the peer is not on this host, or shares neither network namespace nor /dev/shm/psd-10001' ||
        why "neither tells why it is not shared memory"
}

tcp_is_asked_for() { pair "--ipc shareable --env PSD_HOST_TRANSPORT=tcp" "--ipc container:a --env PSD_HOST_TRANSPORT=tcp" "${sum[@]}" && uses_tcp; }

shm_is_asked_for_in_vain() {
    start_psd || return
    start_rank 0 2 a "--env PSD_HOST_TRANSPORT=shm" "${sum[@]}" && start_rank 1 2 b "--env PSD_HOST_TRANSPORT=shm" "${sum[@]}" || return
    is "$(exit_of a 30)" 4 "exit status of a" && is "$(exit_of b 30)" 4 "exit status of b" || return
    both_have 'did not join: .*shared memory: the peer is not on this host'
}

# 62 MiB is what podman and Docker give. Rings are in memory of their own (memfd), which the limit is not for.
default_dev_shm() { pair "--ipc shareable" "--ipc container:a" "${big[@]}" && uses_shared_memory; }

small_dev_shm() {
    pair "--ipc shareable --shm-size 1m" "--ipc container:a" "${big[@]}" && uses_shared_memory || return
    { log a; log b; } | grep -q 'set PSD_RUN_DIR' || why "nobody tells that the records do not fit"
}

same_pid_same_hostname() {
    start_psd || return
    start_rank 0 3 a "--ipc shareable --hostname twin" $programs/loop --iters 1000000000 || return
    start_rank 1 3 b "--ipc container:a --hostname twin" $programs/loop --iters 1000000000 || return
    start_rank 2 3 c "--hostname twin" $programs/loop --iters 1000000000 || return
    until_true 20 in_log c 'rank 2 ready' || return
    is "$(psctl ranks | grep -cE ' twin +1 +active ')" 3 "ranks with pid 1 on host twin" || return
    both_have ': shared memory, ' && both_have ': TCP, ' && has_not c ': shared memory, ' || return
    podman kill b > /dev/null
    is "$(exit_of a)" 3 "exit status of a" && is "$(exit_of c)" 3 "exit status of c" || return
    has a 'failed: .*rank 1 ' && has c 'failed: .*rank 1 '
}

check "a shared IPC namespace: shared memory" shared_ipc
check "a shared /dev/shm: shared memory, and nothing is left there" shared_dev_shm
check "a shared PSD_RUN_DIR: shared memory, and nothing is left there" shared_run_dir
check "a shared network namespace: shared memory" shared_network
check "a shared pid namespace too: single copy, without a capability" shared_pid_namespace
check "nothing shared: TCP, and the log tells why" nothing_shared
check "PSD_HOST_TRANSPORT=tcp: TCP" tcp_is_asked_for
check "PSD_HOST_TRANSPORT=shm where nothing is shared: an error" shm_is_asked_for_in_vain
check "64 MiB with the usual /dev/shm" default_dev_shm
check "64 MiB with 1 MiB of /dev/shm" small_dev_shm
check "the same pid and host name three times are three ranks" same_pid_same_hostname
