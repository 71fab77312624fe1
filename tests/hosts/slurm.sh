#!/bin/bash
# Ranks that Slurm starts: they take rank, world and local rank from what srun sets.
# shellcheck source=tests/hosts/check.sh
. "$(dirname "$0")/check.sh"
# shellcheck source=tests/hosts/cluster.sh
. "$here/cluster.sh"

# On 4 nodes, 2 tasks each; from h5.
run_srun() { # WORDS...
    on_host h5
    timeout -k 5 60 "${on[@]}" srun -N4 -n8 --ntasks-per-node=2 --label "$@" > "$work/srun" 2>&1 || fail "srun ended with status $?"
}

test_example() {
    start_psd h5 && run_srun "$PSD_BUILD/examples/hello_all_reduce" || return 1
    [ "$(grep -cE '^[0-7]: hello from rank [0-7] of 8: the sum of the ranks is 28, expected 28$' "$work/srun")" = 8 ] ||
        fail "not 8 right lines" || return 1
    says srun '^5: hello from rank 5 of 8' # Slurm's number of a task is its rank
}

# Two tasks a node: SLURM_LOCALID is the local rank, and they use shared memory.
test_local_ranks() {
    start_psd h5 && PSD_DEBUG=host=info run_srun "$ranks" all_reduce 64K 3 || return 1
    says srun '^2: rank 2 local 0 of 8: 3 all_reduce' && says srun '^3: rank 3 local 1 of 8: 3 all_reduce' &&
        says srun '^3: .*link to .*: shared memory, rings' && says srun '^3: .*link to .*: TCP, '
}

# One job step with servers and trainers.
test_parameter_server() {
    start_psd h5 || return 1
    cat > "$work/programs" << PROGRAMS
0-1 $bin/psworker --role server
2-5 env PSD_ROLE=trainer $PSD_BUILD/examples/digits_train --servers 2 --data $here/../../worker/examples/data/digits.csv
PROGRAMS
    on_host h5
    timeout -k 5 80 "${on[@]}" srun -N4 -n6 --label --multi-prog "$work/programs" > "$work/srun" 2>&1 ||
        fail "srun ended with status $?" || return 1
    says srun 'digits_train: accuracy=0\.9[6-9]'
}

mpi_missing() {
    if [ ! -e "$PSD_BUILD/lib/psd/psd_backend_mpi.so" ]; then
        echo "psd was built without MPI (deploy/install-deps.sh --mpi)"
    elif ! srun --mpi=list 2>&1 | grep -qw pmix; then
        echo "this Slurm has no PMIx"
    fi
}

# MPI's ranks started by srun, over the mpi backend, which they choose by themselves.
test_mpi() {
    start_psd h5 && PSD_DEBUG=psd=info run_srun --mpi=pmix "$PSD_BUILD/examples/hello_all_reduce" || return 1
    [ "$(grep -cE '^[0-7]: hello from rank [0-7] of 8: the sum of the ranks is 28, expected 28$' "$work/srun")" = 8 ] ||
        fail "not 8 right lines" || return 1
    says srun '^5: hello from rank 5 of 8' && says srun 'backend mpi, by itself: started by an MPI launcher'
}

# A task that fails ends the step; psd tells the others who it was.
test_task_fails() {
    start_psd h5 || return 1
    run_srun "$ranks" fail 5 > /dev/null && fail "srun ended well" && return 1
    says srun 'task 5: Exited with exit code 7' && says srun 'ended: .*rank 5'
}

lacks=$(cluster_missing)
if [ -n "$lacks" ]; then
    skip slurm "$lacks"
elif ! { hosts_up 5 && cluster_up; }; then
    echo "FAIL the cluster is not up"
    failed=1
else
    for name in example local_ranks parameter_server task_fails; do check $name; done
    lacks=$(mpi_missing)
    if [ -n "$lacks" ]; then skip slurm/mpi "$lacks"; else check mpi; fi
fi
finish
