#!/bin/bash
# Data-parallel training with 2 workers: worker/examples/ddp_mlp, beside PyTorch's DDP over Gloo where that is installed.
#   tests/bench/ddp.sh BUILD [short]
set -u
build=$1 runs=11
[ "${2:-}" = short ] && runs=7
bad=0
# One thread a process, and the BLAS's own choice of kernels for this processor.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

torch=
for python in python3 /usr/bin/python3; do
    command -v "$python" >/dev/null && "$python" -c 'import torch.distributed' 2>/dev/null && torch=$python && break
done
[ -n "$torch" ] || echo 'skip: PyTorch is not installed (Debian: python3-torch), so it is not beside' >&2

for layers in 784,512,512,10 10,10; do
    printf '\n## Data-parallel training, Linear %s, 64 rows a worker\n\n' "$layers"
    "$build/tests/bench/compare" --limits
    "$build/bin/psrun" --standalone --no-prefix --timeout 120s -n 2 -- "$build/examples/ddp_mlp" --layers "$layers" --runs "$runs" ||
        bad=1
    "$build/tests/bench/compare" --limits
    [ -z "$torch" ] && continue
    printf '\n| | ms, median [least-greatest] |\n|---|---|\n'
    for workers in 1 2; do
        "$torch" tests/bench/ddp_torch.py "$workers" "$layers" "$runs" || echo "skip: PyTorch with $workers workers failed" >&2
    done
done
exit $bad
