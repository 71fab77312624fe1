#!/usr/bin/env bash
# psd in containers: run.sh BUILD [--full] [TEST...]        TEST: image train faults memory restart compose
#
# Needs root, podman and what else `deploy/install-deps.sh --container` installs, but no registry: the base image is made of
# Debian's packages (base-image.sh; kept below .lab) and the programs come from BUILD. All containers run in a sandbox
# (sandbox.sh) that takes networks, mounts and processes with it. The last line counts: "N passed, N failed, N skipped".
# --full also compiles psd within deploy/Containerfile, with apt: minutes, and the network.
set -u # no pipefail: "... | grep -q" ends before what it reads from
self=$(realpath "$0")
here=$(dirname "$self")
tests=(image train faults memory restart compose)

skip_all() {
    echo "skip: containers: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

# What stops podman on this machine, told once instead of by every test.
require() {
    local tool
    [ "$(id -u)" = 0 ] || skip_all "this needs root, for namespaces"
    for tool in podman runc conmon mmdebstrap iptables ip unshare setpriv; do
        command -v $tool > /dev/null || PATH=$PATH:/usr/sbin:/sbin command -v $tool > /dev/null ||
            skip_all "no $tool here; run deploy/install-deps.sh --container"
    done
}

outside() {
    local base
    require
    "$here/sandbox.sh" true > /dev/null 2>&1 || skip_all "namespaces cannot be made here: $("$here/sandbox.sh" true 2>&1 | tail -n 1)"
    base=$("$here/base-image.sh" runtime) || skip_all "no base image: packages cannot be downloaded, or podman cannot store it (see above)"
    if [ "$full" = yes ]; then full_build || return; fi
    # In this script's place, so that a signal to it reaches the sandbox; setpriv is for SIGKILL.
    export PSD_BASE=$base
    exec timeout -k 10 "${CONTAINER_TIMEOUT:-280}" setpriv --pdeathsig KILL \
        "$here/sandbox.sh" "$self" "$PSD_BUILD" --inside "${selected[@]}"
}

# The Containerfile from end to end, with a base image that has apt. Nothing of it is kept but that base image.
full_build() {
    local base status
    # shellcheck source=tests/container/podman.sh
    . "$here/podman.sh"
    base=$("$here/base-image.sh" builder) || return
    # No layers: nothing is kept of the compiling stage.
    podman build --format docker --pull=never --network=host --layers=false --file "$here/../../deploy/Containerfile" \
        --target demo --build-arg "BUILDER=$base" --build-arg "RUNTIME=$base" --tag localhost/psd-full:demo "$here/../.." &&
        podman run --rm --pull=never --no-healthcheck --network=none --read-only --cap-drop=all localhost/psd-full:demo \
            psrun --standalone -n 2 -- hello_all_reduce &&
        derived_image && podman images localhost/psd-full
    status=$?
    podman rmi -f localhost/psd-full:derived localhost/psd-full:demo > /dev/null 2>&1
    podman image prune -f > /dev/null 2>&1
    [ $status -eq 0 ] || echo "0 passed, 1 failed"
    return $status
}

# A user's own program, as deploy/containers.md tells.
derived_image() {
    local context status
    context=$(mktemp -d) || return
    cp "$here/../../worker/examples/hello_all_reduce.c" "$context/train.c"
    sed -n '/^    FROM psd AS build$/,/^    CMD/s/^    //p' "$here/../../deploy/containers.md" |
        sed 's/^FROM psd/FROM localhost\/psd-full:demo/' > "$context/Containerfile"
    podman build --format docker --pull=never --network=host --layers=false --tag localhost/psd-full:derived "$context" &&
        podman run --rm --pull=never --no-healthcheck --network=none --read-only --cap-drop=all localhost/psd-full:derived \
            psrun --standalone -n 2 -- train
    status=$?
    rm -rf "$context"
    return $status
}

inside() {
    local name
    # Of sandboxes that were ended in the middle of something; rmdir leaves those in use.
    find /sys/fs/cgroup -depth -type d -path '*/libpod_parent/libpod-*' -mmin +10 -exec rmdir {} + 2> /dev/null
    # Can this kernel run a container at all?
    # shellcheck source=tests/container/lib.sh
    . "$here/lib.sh"
    podman run --rm --pull=never --network psd "$PSD_BASE" true > "$scratch/try" 2>&1 ||
        skip_all "podman cannot run a container here: $(tail -n 1 "$scratch/try")"
    PSD_IMAGE=$("$here/product-image.sh" "$PSD_BUILD" "$PSD_BASE") || { echo "0 passed, 1 failed"; exit 1; }
    export PSD_IMAGE
    for name in "${selected[@]}"; do
        # shellcheck source=/dev/null
        . "$here/test_$name.sh"
    done
    finish
}

full=no where=outside selected=()
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
PSD_BUILD=$(realpath "$1")
export PSD_BUILD
shift
for word in "$@"; do
    case $word in
        --full) full=yes ;;
        --inside) where=inside ;;
        *)
            [ -f "$here/test_$word.sh" ] || { echo "run.sh: no test $word (known: ${tests[*]})" >&2; exit 2; }
            selected+=("$word")
            ;;
    esac
done
[ ${#selected[@]} -gt 0 ] || selected=("${tests[@]}")
$where
