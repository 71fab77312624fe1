#!/bin/sh
# Says which backends this build has, and which headers and compilers this machine has for them. The host backend needs
# none.
#   deploy/found.sh BUILD
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
backends=host
for f in "$1"/lib/psd/psd_backend_*.so; do
    [ -e "$f" ] && backends="$backends $(basename "$f" .so | sed 's/psd_backend_//')"
done
echo "  BACKENDS $backends (found on this machine: $found)"
