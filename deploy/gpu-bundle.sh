#!/bin/bash
# Makes a folder that runs on a machine with a GPU where nothing can be installed: programs, the NCCL backend, the kernels,
# tests, and the libraries they need beside them. What it needs there: glibc 2.34, the driver, CUDA's runtime and NCCL.
#   deploy/gpu-bundle.sh BUILD OUT       (make gpu-bundle)
# Start OUT/check-gpu.sh there.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 out=$2
work=$build/bundle-objects # the same objects, linked so that every program finds OUT/lib
most_bytes=$((60 << 20))

fail() {
    echo "gpu-bundle: $1" >&2
    exit 1
}

programs=(bin/psd bin/psctl bin/psrun bin/psworker bin/psd-bench)
examples=(hello_all_reduce send_recv isend_irecv batch_p2p ring broadcast_all_reduce ring_plan reduce_scatter_gather overlap
    ddp_linear digits_train digits_reference)
tests=(tests/conformance/conformance tests/programs/table tests/programs/hang tests/gpu/check_kernels tests/gpu/streams)
objects=(lib/libpsd.so.0 lib/psd/psd_backend_nccl.so lib/psd/psd_kernels.so)
if [ -f tests/gpu/raw_nccl.c ]; then tests+=(tests/gpu/raw_nccl); fi

mkdir -p "$work"
# With what they depend on, under their new names: else a change of a header would not be noticed here.
if [ -d "$build/obj" ] && [ ! -d "$work/obj" ]; then
    cp -a "$build/obj" "$work/"
    find "$work/obj" -name '*.d' -exec sed -i "s|$build/obj/|$work/obj/|g" {} +
fi
make --no-print-directory BUILD="$work" LDFLAGS="-Wl,--disable-new-dtags -Wl,-rpath,'\$\$ORIGIN/../lib'" \
    "${programs[@]/#/$work/}" "${examples[@]/#/$work/examples/}" "${tests[@]/#/$work/}" "${objects[@]/#/$work/}" ||
    fail "cannot build; the NCCL backend and the kernels need CUDA's headers, NCCL's and nvcc (CUDA_HOME, NCCL_HOME)"

rm -rf "$out"
mkdir -p "$out/lib/system"
for file in "${programs[@]}" "${examples[@]/#/examples/}" "${tests[@]}" "${objects[@]}"; do
    mkdir -p "$out/$(dirname "$file")"
    cp "$work/$file" "$out/$file"
done
find "$out" -type f -exec strip --strip-unneeded {} + || fail "cannot strip"
mkdir -p "$out/deploy" "$out/worker/examples/data"
cp deploy/check-gpu.sh "$out/"
cp deploy/demo.sh deploy/gpu-libraries.sh "$out/deploy/"
cp worker/examples/data/digits.csv "$out/worker/examples/data/"

# What the programs link to, but for glibc. The C++ and compiler runtimes are the machine's if it has them: NCCL and the driver
# may need newer ones.
ldd "$work"/bin/* "$work/lib/libpsd.so.0" | awk '/=> \// {print $3}' | sort -u | while read -r library; do
    case $(basename "$library") in
        libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | ld-linux* | libpsd.so.*) ;;
        libstdc++.so.* | libgcc_s.so.*) cp -L "$library" "$out/lib/system/" ;;
        *) cp -L "$library" "$out/lib/" ;;
    esac
done

bytes=$(du -sb "$out" | cut -f1)
[ "$bytes" -le "$most_bytes" ] || fail "$out has $bytes bytes, more than $most_bytes"
echo "gpu-bundle: $out, $((bytes >> 20)) MiB; copy it to the machine with the GPU and start check-gpu.sh in it"
