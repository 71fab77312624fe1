#!/bin/sh
# Says which optional parts of a build this machine has headers and compilers for. The host backend needs none.
first() { for d in "$@"; do [ -e "$d" ] && { echo "$d"; return 0; }; done; return 1; }

cuda=${CUDA_HOME:-/usr/local/cuda}
if [ -x "$cuda/bin/nvcc" ]; then
    found="CUDA $("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
else
    found="no CUDA"
fi
if h=$(first "${NCCL_HOME:-$cuda}/include/nccl.h" /usr/include/nccl.h); then
    found="$found, NCCL $(awk '/define NCCL_(MAJOR|MINOR|PATCH)/ {v = v s $3; s = "."} END {print v}' "$h")"
else
    found="$found, no NCCL"
fi
if command -v mpicc >/dev/null; then found="$found, MPI"; else found="$found, no MPI"; fi
echo "  BACKENDS host (found on this machine: $found)"
