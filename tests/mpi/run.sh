#!/bin/bash
# The mpi backend under mpirun: the conformance suite, the examples, the demo's training, and what goes wrong.
#   tests/mpi/run.sh BUILD [TEST...]
# Skipped, loudly, where psd was built without MPI or there is no mpirun.
set -u
build=$(realpath "$1")
shift
only=" $* "
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d "${TMPDIR:-/tmp}/psd-mpi.XXXXXX")
passed=0 failed=0 skipped=0
psd_pid=

unset PSD_RANK RANK PSD_WORLD_SIZE WORLD_SIZE PSD_BACKEND PSD_BACKEND_DIR PSD_JOB
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Containers often refuse the call that Open MPI copies with, and it warns of that.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export PSD_JOIN_TIMEOUT_MS=20000 PSD_RUN_DIR=$work/run
mkdir "$work/run"
mkfifo "$work/never" # nothing comes: to wait a moment

end_psd() {
    [ -z "$psd_pid" ] || { kill "$psd_pid" 2>/dev/null; wait "$psd_pid" 2>/dev/null; }
    psd_pid=
}
trap 'end_psd; rm -rf "$work"' EXIT

# One for all tests; each has a job of its own.
start_psd() {
    mkfifo "$work/ready"
    "$build/bin/psd" --listen tcp://127.0.0.1:0 --ready-fd 3 3>"$work/ready" >"$work/psd.log" 2>&1 &
    psd_pid=$!
    read -r -t 20 PSD_COORDINATOR <"$work/ready"
    export PSD_COORDINATOR
}

# run SECONDS N COMMAND...: its status is mpirun's, its output in $work/out.
run() {
    local limit=$1 n=$2
    shift 2
    timeout -k 5 "$limit" mpirun --oversubscribe --bind-to none -n "$n" "$@" >"$work/out" 2>&1
}

fail() { # SENTENCE
    echo "  $*"
    tail -25 "$work/out" | sed 's/^/  | /'
    return 1
}

says() { # PATTERN
    grep -qE "$1" "$work/out" || fail "no \"$1\" in what it printed"
}

check() { # NAME
    case $only in "  " | *" $1 "*) ;; *) return ;; esac
    local start=$SECONDS
    export PSD_JOB="mpi-$1" PSD_BACKEND=mpi
    if ("test_$1"); then
        echo "ok   $1 ($((SECONDS - start)) s)"
        passed=$((passed + 1))
    else
        echo "FAIL $1 ($((SECONDS - start)) s)"
        failed=$((failed + 1))
    fi
}

skip() { # NAME REASON
    echo "SKIP mpi/$1: $2"
    skipped=$((skipped + 1))
}

# ---- what works

conform() { # RANKS
    run 60 "$1" "$build/tests/conformance/conformance" --quick --cells "$here/../conformance/cells.txt" ||
        fail "status $?" || return 1
    grep -E '^[0-9]+ passed' "$work/out" | sed "s/^/  $1 ranks: /"
}
test_conformance_2() { conform 2; }
test_conformance_4() { conform 4; }

# As if an int were that small, and no send completed before its receive.
test_pieces() { PSD_MPI_PIECE=1000 PSD_EAGER_LIMIT=0 conform 3; }

# Each rank has its own idea of how large a piece is.
test_pieces_that_differ() {
    # shellcheck disable=SC2016
    PSD_EAGER_LIMIT=0 run 60 2 sh -c 'PSD_MPI_PIECE=$((1000 + 2096 * OMPI_COMM_WORLD_RANK)) exec "$@"' sh \
        "$build/tests/conformance/conformance" --quick --cells "$here/../conformance/cells.txt" || fail "status $?"
}

# What goes wrong only now and then, between a group's first messages and its last.
test_rounds() {
    local i
    for i in 1 2 3 4 5 6; do
        PSD_JOB="mpi-rounds-$i" run 30 4 "$build/tests/programs/rounds" || fail "status $?" || return 1
        says 'rounds: all as expected' || return 1
    done
}

test_examples() {
    local example name
    for example in "$build"/examples/*; do
        name=$(basename "$example")
        local args=()
        case $name in
            digits_*) continue ;;
            ddp_mlp) args=(--runs 0) ;; # what it measures is not for here
        esac
        PSD_JOB="mpi-$name" run 30 2 "$example" "${args[@]}" || fail "$name: status $?" || return 1
    done
}

# Servers and trainers of one job, by one mpirun.
test_training() {
    run 80 2 "$build/bin/psworker" --role server : -n 4 -x PSD_ROLE=trainer "$build/examples/digits_train" \
        --servers 2 --data "$here/../../worker/examples/data/digits.csv" --losses "$work/losses" ||
        fail "status $?" || return 1
    says 'digits_train: accuracy=0\.9[6-9]' || return 1
    "$build/examples/digits_reference" --data "$here/../../worker/examples/data/digits.csv" \
        --losses "$work/reference" >/dev/null
    paste "$work/losses" "$work/reference" | awk 'NF != 2 || !($2 > 0) {bad = 1}
        {d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= 1e-5)) bad = 1} END {exit bad || NR == 0}' ||
        fail "the losses are not those of the reference"
}

is_serving() { "$build/bin/psctl" groups 2>/dev/null | grep -qE "^$PSD_JOB .* live "; }

# Idle groups are no reason to fail: the ranks leave in order, and MPI ends.
test_stop() {
    local mpirun tries=200
    run 40 2 "$build/bin/psworker" --role server &
    mpirun=$!
    until is_serving || [ $((tries -= 1)) = 0 ]; do read -r -t 0.1 <>"$work/never"; done
    "$build/bin/psctl" stop >"$work/stop" 2>&1 || fail "psctl stop: $(cat "$work/stop")" || return 1
    wait $mpirun || fail "status $?"
}

test_auto_chooses_mpi() {
    PSD_BACKEND=auto PSD_DEBUG=psd=info run 30 2 "$build/examples/hello_all_reduce" || fail "status $?" || return 1
    says 'backend mpi, by itself: started by an MPI launcher \(not nccl: '
}

test_contexts() {
    run 30 2 "$build/tests/mpi/contexts" || fail "status $?" || return 1
    says 'contexts: one after the other'
}

test_program_with_own_mpi() {
    run 30 2 "$build/tests/mpi/own_mpi" multiple || fail "status $?" || return 1
    says 'own_mpi: both sums agree' || return 1
    PSD_JOB=mpi-single run 30 2 "$build/tests/mpi/own_mpi" single
    [ $? = 4 ] || fail "not status 4" || return 1
    says 'call MPI_Init_thread with MPI_THREAD_MULTIPLE'
}

test_large() {
    run 60 2 "$build/tests/mpi/large" || fail "status $?" || return 1
    says 'large: 2147495993 elements, all as sent'
}

# ---- what is refused, and how

test_not_under_mpirun() {
    "$build/bin/psworker" --role server >"$work/out" 2>&1
    [ $? = 4 ] || fail "psworker: not status 4" || return 1
    says 'backend mpi cannot run here: not started by MPI; start the ranks with mpirun' || return 1
    "$build/bin/psrun" --standalone -n 2 -- "$build/examples/hello_all_reduce" >"$work/out" 2>&1
    [ $? = 2 ] || fail "psrun: not status 2" || return 1
    says 'psrun: PSD_BACKEND is mpi, whose ranks are started by mpirun or srun'
}

test_other_ranks_than_mpi() {
    # shellcheck disable=SC2016
    run 30 2 sh -c 'RANK=$((1 - OMPI_COMM_WORLD_RANK)) exec "$0"' "$build/examples/hello_all_reduce" &&
        fail "it worked" && return 1
    says "this process is rank [01] of psd's world and rank [01] of MPI's"
}

test_not_all_of_mpi() {
    # shellcheck disable=SC2016
    run 30 3 sh -c 'if [ $OMPI_COMM_WORLD_RANK = 2 ]; then exec sleep 20; fi; PSD_JOIN_TIMEOUT_MS=3000 exec "$0"' \
        "$build/examples/hello_all_reduce" && fail "it worked" && return 1
    says 'have 2 of 3, missing rank 2'
}

test_mixed_backends() {
    # shellcheck disable=SC2016
    run 30 2 sh -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then PSD_BACKEND=host; fi; exec "$0"' \
        "$build/examples/hello_all_reduce" && fail "it worked" && return 1
    says 'has backend (mpi|host), but .* has (mpi|host): set PSD_BACKEND to the same for all ranks'
}

test_not_installed() {
    PSD_BACKEND_DIR=$work run 30 1 "$build/bin/psworker" --role server
    [ $? = 4 ] || fail "not status 4" || return 1
    says 'backend mpi is not installed: there is no .*/psd_backend_mpi.so'
}

# ---- what fails

test_killed_rank() {
    run 60 2 --enable-recovery "$build/tests/mpi/killed" # with which mpirun lets the others live, and calls that success
    says 'killed: rank 0: .*psd_recv: group 1: rank 0 lost rank 1 '
}

test_stopped_rank() {
    PSD_MPI_PIECE=4096 run 60 2 "$build/tests/mpi/stopped"
    [ $? = 1 ] || fail "not status 1" || return 1
    says 'this process exits, since backend mpi cannot end operations of a broken group: .*deadline passed in recv'
}

if [ ! -e "$build/lib/psd/psd_backend_mpi.so" ]; then
    skip all "psd was built without MPI; install Open MPI's headers (deploy/install-deps.sh --mpi) and build again"
elif ! command -v mpirun >/dev/null; then
    skip all "there is no mpirun; deploy/install-deps.sh --mpi installs it"
else
    start_psd
    for name in conformance_2 conformance_4 pieces pieces_that_differ rounds examples training stop \
        auto_chooses_mpi contexts program_with_own_mpi not_under_mpirun other_ranks_than_mpi \
        not_all_of_mpi mixed_backends not_installed killed_rank stopped_rank; do
        check $name
    done
    if [ "$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)" -ge 8 ]; then
        check large
    else
        skip large "it needs 8 GiB of free memory"
    fi
fi
echo "mpi: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
