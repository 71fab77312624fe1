#!/bin/bash
# Every header compiles by itself; the public ones also as C++, installed apart from the tree.
#   tests/check-headers.sh CC FLAGS
set -eu
cc=$1 flags=$2
cuda=${CUDA_HOME:-/usr/local/cuda}/include
[ ! -e "$cuda/nccl.h" ] || flags="$flags -isystem $cuda"
mpi=$(pkg-config --cflags-only-I ompi-c 2>/dev/null | sed 's/-I/-isystem /g') || mpi=
flags="$flags $mpi"
for h in common/*.h proto/*.h server/*.h server/core/*.h server/psctl/*.h worker/*.h worker/*/*.h worker/*/*/*.h tests/lib/*.h; do
    case $h in *'*'*) continue ;; esac
    case $h in worker/backend/nccl/*) [ -e "$cuda/nccl.h" ] || continue ;; esac
    case $h in worker/backend/mpi/engine.h) [ -n "$mpi" ] || continue ;; esac
    $cc $flags -fsyntax-only -x c "$h" -Wno-unused-function || { echo "check-headers: $h does not compile alone" >&2; exit 1; }
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp worker/psd.h common/psd_types.h "$dir"
printf '#include <psd.h>\nint main() { psd_config c; psd_config_init(&c); psd_ctx *x = nullptr; return psd_init(&c, &x) == PSD_OK; }\n' >"$dir/a.cc"
c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -I"$dir" -fsyntax-only "$dir/a.cc"
echo "check-headers: ok"
