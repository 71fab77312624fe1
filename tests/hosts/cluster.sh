# A small Slurm cluster on the hosts of net.sh: the controller on h5, nodes h1 to h4. To be sourced after check.sh.
# Everything belongs to root and to this sandbox: own key, own sockets, no cgroups, no accounting. A node claims 4
# CPUs, whatever the machine has.
# shellcheck shell=bash

slurm=$work/slurm
export SLURM_CONF=$slurm/slurm.conf

cluster_missing() {
    local tool
    for tool in munged slurmctld slurmd srun sinfo; do
        command -v $tool > /dev/null || { echo "$tool is not installed (deploy/install-deps.sh --hosts)"; return; }
    done
}

write_conf() {
    cat > "$SLURM_CONF" << CONF
ClusterName=psd
SlurmctldHost=h5(10.77.0.5)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$slurm/munge.sock
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/%n
TmpFS=$slurm/tmp.%n
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/%n.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=h[1-4] NodeAddr=10.77.0.[1-4] CPUs=4 RealMemory=500 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
}

all_idle() {
    [ "$("${on[@]}" timeout 2 sinfo -h -o '%T %D' 2> /dev/null)" = 'idle 4' ]
}

# The daemons end with the sandbox.
cluster_up() {
    local i
    mkdir -p "$slurm/state" "$slurm"/tmp.h{1..4} || return 1 # PMIx wants a directory for temporary files of each node's own
    write_conf
    head -c 1024 /dev/urandom > "$slurm/munge.key" && chmod 600 "$slurm/munge.key" || return 1
    munged --foreground --force --key-file="$slurm/munge.key" --socket="$slurm/munge.sock" \
        --pid-file="$slurm/munged.pid" --log-file="$slurm/munged.log" --seed-file="$slurm/munged.seed" \
        > "$slurm/munged.out" 2>&1 &
    wait_for 5 test -S "$slurm/munge.sock" || fail "munged did not start: $(cat "$slurm/munged.out")" || return 1
    for ((i = 1; i <= 4; i++)); do
        mkdir -p "$slurm/h$i" && on_host "h$i" || return 1
        "${on[@]}" slurmd -D -N "h$i" > "$slurm/h$i.out" 2>&1 &
    done
    on_host h5
    "${on[@]}" slurmctld -D -c > "$slurm/slurmctld.out" 2>&1 &
    wait_for 20 all_idle || fail "not all nodes are idle: $("${on[@]}" timeout 2 sinfo 2>&1; tail -n 3 "$slurm"/*.out)"
}
