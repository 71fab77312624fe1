#!/bin/bash
# The build where headers are hidden: without CUDA and MPI, with either, with both. Each must make just the backends that
# it can, and the programs must say which one is missing: a sentence, and psworker's exit status 4.
#   tests/check-builds.sh
# What this machine itself lacks is skipped, loudly. Examples and optimization are left out: they are not in question.
set -u
build=build-combinations
log=$(mktemp)
trap 'rm -rf "$log" "$build"' EXIT
rm -rf "$build"
failed=0
unset PSD_BACKEND_DIR OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK

fail() {
    echo "check-builds: $*" >&2
    tail -15 "$log" >&2
    failed=1
}

make_with() { # VARIABLE=VALUE...
    make -s -j2 --no-print-directory BUILD=$build OPT=-O0 EXAMPLE_SRC= TOOL_SRC=worker/tools/psworker.c NVCC= "$@" all >"$log" 2>&1
}

# Asks for the backend: installed ones may still say that they cannot run here.
expect() { # COMBINATION BACKEND yes|no
    PSD_BACKEND=$2 PSD_JOIN_TIMEOUT_MS=100 timeout 20 $build/bin/psworker --role server --coordinator tcp://127.0.0.1:9 >"$log" 2>&1
    local status=$?
    if [ "$3" = yes ]; then
        [ -e $build/lib/psd/psd_backend_$2.so ] || fail "$1: backend $2 was not built"
        if grep -q 'is not installed' "$log"; then fail "$1: backend $2 is not found"; fi
    else
        if [ -e $build/lib/psd/psd_backend_$2.so ]; then fail "$1: backend $2 was built"; fi
        grep -q "backend $2 is not installed: there is no .*/psd_backend_$2.so; build psd where" "$log" ||
            fail "$1: no sentence about $2"
        [ $status = 4 ] || fail "$1: psworker's exit status is $status, not 4, without backend $2"
    fi
}

combination() { # NAME nccl:yes|no mpi:yes|no
    local hidden=()
    [ "$2" = yes ] || hidden+=(CUDA_HOME=none)
    [ "$3" = yes ] || hidden+=(MPICC=none)
    make_with "${hidden[@]}" || { fail "$1: does not build"; return; }
    expect "$1" nccl "$2"
    expect "$1" mpi "$3"
    [ $failed = 0 ] && echo "check-builds: $1: ok"
}

has() { [ -n "$(make -s --no-print-directory --eval "has: ; @echo \$($1)" has 2>/dev/null | tr -d ' ')" ]; }
mpi=no nccl=no
has MPI_LIBS && mpi=yes
has NCCL_FOUND && nccl=yes
[ $mpi = yes ] || echo "SKIP check-builds: no Open MPI here: not built with MPI"
[ $nccl = yes ] || echo "SKIP check-builds: no CUDA and NCCL headers here: not built with CUDA"

combination "neither CUDA nor MPI" no no
[ $nccl = no ] || combination "CUDA without MPI" yes no
[ $mpi = no ] || combination "MPI without CUDA" no yes
[ $nccl = no ] || [ $mpi = no ] || combination "CUDA and MPI" yes yes
exit $failed
