#!/usr/bin/env bash
# Makes a base image from Debian's packages, without a registry, and prints its name.
#
#   base-image.sh runtime   the libraries that psd's programs need, a shell and coreutils; no apt
#   base-image.sh builder   a minimal Debian with apt, as docker.io's debian:bookworm-slim is
#
# Run it outside the sandbox: it downloads packages, once; the tar files stay below .lab/container (PSD_LAB).
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/container/podman.sh
. "$here/podman.sh"
containerfile=$here/../../deploy/Containerfile
release=bookworm
mkdir -p "$lab/cache"
exec 9> "$lab/cache/lock"
flock 9 # one at a time

make_tar() { # TAR MMDEBSTRAP_OPTION...
    local tar=$1
    shift
    [ ! -s "$tar" ] || return 0
    mmdebstrap -q --mode=root "$@" $release "$tar.part.tar" >&2
    mv "$tar.part.tar" "$tar"
}

import_tar() { # TAR IMAGE: unless the image was made from this very file
    local stamp
    stamp=$(stat -c '%i-%Y-%s' "$1")
    if [ "$(podman image inspect --format '{{index .Labels "psd.tar"}}' "$2" 2> /dev/null)" != "$stamp" ]; then
        podman import -q --change "LABEL psd.tar=$stamp" --change 'CMD ["/bin/sh"]' "$1" "$2" > /dev/null
    fi
    echo "$2"
}

runtime() {
    local packages tag
    # What the Containerfile would install by apt; it says so itself.
    packages=$(sed -n 's/^ARG PACKAGES="\(.*\)"$/\1/p' "$containerfile")
    [ -n "$packages" ] || { echo "base-image.sh: no ARG PACKAGES in $containerfile" >&2; exit 1; }
    # shellcheck disable=SC2086  # words
    packages=$(printf '%s\n' libc6 dash coreutils $packages | sort -u | paste -sd,)
    tag=$(printf %s "$release,$packages" | sha256sum | cut -c1-12)
    # Extracted only, no maintainer scripts run. mmdebstrap's own shell expands $1, the new root.
    # shellcheck disable=SC2016
    make_tar "$lab/cache/runtime-$tag.tar" --variant=extract --include="$packages" \
        --extract-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/locale "$1"/usr/share/man' \
        --extract-hook='echo "root:x:0:0::/:/bin/sh" > "$1/etc/passwd"; echo "root:x:0:" > "$1/etc/group"'
    import_tar "$lab/cache/runtime-$tag.tar" "localhost/psd-base-runtime:$tag"
}

builder() {
    make_tar "$lab/cache/builder.tar" --variant=minbase \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/man/*'
    import_tar "$lab/cache/builder.tar" localhost/psd-base-builder:$release
}

case ${1-} in
    runtime | builder) "$1" ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
