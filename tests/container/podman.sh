# shellcheck shell=bash
# To be sourced: points podman of this shell at a store of our own, so that the user's images and containers are not touched.
#
# Outside the sandbox: the image store below LAB, where base images are kept between runs. Inside: a new store that goes
# with the sandbox and sees those images read-only.

lab=$(realpath -m "${PSD_LAB:-$(dirname "${BASH_SOURCE[0]}")/../../.lab}")/container

podman_conf() { # DIRECTORY [IMAGE_STORE]
    local nofile
    mkdir -p "$1"
    # A container cannot be given more open files than this process may have, unless it has CAP_SYS_RESOURCE.
    nofile=$(ulimit -Hn)
    if [ "$nofile" = unlimited ] || [ "$nofile" -gt 1048576 ]; then nofile=1048576; fi
    {
        printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/storage"\nrunroot = "%s/run"\n' "$1" "$1"
        [ -z "${2-}" ] || printf '[storage.options]\nadditionalimagestores = ["%s"]\n' "$2"
    } > "$1/storage.conf"
    # runc: Debian 12's crun does not work where both versions of cgroups are mounted.
    cat > "$1/containers.conf" << CONF
[containers]
default_ulimits = ["nofile=$nofile:$nofile", "nproc=32768:32768"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
lock_type = "file"
tmp_dir = "$1/tmp"
[network]
network_backend = "netavark"
network_config_dir = "$1/networks"
CONF
    export CONTAINERS_STORAGE_CONF=$1/storage.conf CONTAINERS_CONF=$1/containers.conf
}

if [ -n "${PSD_SANDBOX-}" ]; then
    podman_conf "${SANDBOX_RUN:?}/podman" "$lab/podman/storage"
else
    podman_conf "$lab/podman"
fi
