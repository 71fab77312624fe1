#!/bin/sh
# Installs the Debian or Ubuntu packages that psd needs and that are missing; does nothing when all are there.
#   deploy/install-deps.sh            what building, the demo and the tests need
#   deploy/install-deps.sh --check    also what `make check` and `make fuzz` need
#   deploy/install-deps.sh --hosts    also what `make hosts` needs
#   deploy/install-deps.sh --container   also what `make container` needs
#   deploy/install-deps.sh --mpi      also what the mpi backend and its tests need
#   deploy/install-deps.sh --bench    also what `make bench` compares with and computes by; none of it is needed
#   deploy/install-deps.sh --list     prints the names only
set -eu

build="gcc libc6-dev make pkg-config libzmq3-dev libprotobuf-c-dev protobuf-c-compiler libsqlite3-dev
       libjansson-dev libxxhash-dev libcriterion-dev"
container="podman runc conmon netavark aardvark-dns catatonit iptables mmdebstrap docker-compose iproute2 procps
           util-linux"
hosts="iproute2 nftables util-linux procps hostname slurmctld slurmd slurm-client munge"
mpi="libopenmpi-dev openmpi-bin"
bench="$mpi g++ libgloo-dev libopenblas-dev python3-torch"
check="g++ clang clang-format clang-tidy cppcheck valgrind libclang-rt-dev procps"

want=$build
case "${1:-}" in
    --check) want="$build $check" ;;
    --hosts) want="$build $hosts" ;;
    --container) want="$build $container" ;;
    --mpi) want="$build $mpi" ;;
    --bench) want="$build $bench" ;;
    --list) printf "%s\n" $build $bench $check $hosts $container | sort -u; exit 0 ;;
    "") ;;
    *) echo "install-deps.sh: unknown option $1 (known: --mpi, --bench, --check, --hosts, --container, --list)" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null || {
    echo "install-deps.sh: no dpkg here; install the equivalents of:" $want >&2
    exit 1
}
# libclang-rt-dev is a plain name on newer releases only; Debian 12 has it by version.
installed() {
    case $1 in
        libclang-rt-dev) set -- 'libclang-rt*-dev' ;;
    esac
    dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}
available() {
    case $1 in
        libclang-rt-dev) apt-cache show libclang-rt-dev >/dev/null 2>&1 && echo libclang-rt-dev || echo libclang-rt-14-dev ;;
        *) echo "$1" ;;
    esac
}

missing=
for p in $want; do
    installed "$p" || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
names=
for p in $missing; do names="$names $(available "$p")"; done
$sudo apt-get install -y -q --no-install-recommends $names >/dev/null
