#!/usr/bin/env bash
# Makes the images of deploy/Containerfile and prints the name of the demo's: product-image.sh BUILD BASE_IMAGE
#
# From programs that are built already (the Containerfile's PREBUILT), so that it takes a second and no network; the
# compiling stage is tested by run.sh --full. The demo's image also gets the programs of tests/programs.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/container/podman.sh
. "$here/podman.sh"
build=$1 base=$2
root=$here/../..
context=$(mktemp -d "${SANDBOX_RUN:-/tmp}/psd-context.XXXXXX")
trap 'rm -rf "$context"' EXIT

usr=$context/ready/psd/usr/local demo=$context/ready/demo/usr/local
mkdir -p "$usr/bin" "$usr/lib" "$usr/include" "$demo/bin" "$demo/share/psd" "$demo/tests/programs"
cp "$build"/bin/{psd,psctl,psworker,psrun,psd-bench} "$usr/bin"
cp -P "$build"/lib/libpsd.so* "$usr/lib"
cp "$root/worker/psd.h" "$root/common/psd_types.h" "$usr/include"
cp "$build"/examples/{digits_train,hello_all_reduce} "$demo/bin"
cp "$build"/tests/programs/{loop,rejoin} "$demo/tests/programs" # they look for libpsd two folders up
cp "$root/worker/examples/data/digits.csv" "$demo/share/psd"
strip "$usr"/bin/* "$usr"/lib/*.so.* "$demo"/bin/* "$demo"/tests/programs/*

for target in psd demo; do
    podman build -q --format docker --pull=never --network=none --file "$root/deploy/Containerfile" --target $target \
        --build-arg "BUILDER=$base" --build-arg "RUNTIME=$base" --build-arg PREBUILT=ready \
        --tag "localhost/psd:$target" "$context" > "$context/log" 2>&1 || { cat "$context/log" >&2; exit 1; }
done
echo localhost/psd:demo
