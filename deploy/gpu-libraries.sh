# Finds CUDA's runtime and NCCL, also inside a Python environment. To be sourced: sets PSD_CUDART_LIBRARY and
# PSD_NCCL_LIBRARY, unless they are set, and `libraries_missing` to a sentence, or to nothing.

gpu_first() { # the first file of these that is there
    local file
    for file in "$@"; do
        if [ -e "$file" ]; then
            readlink -f "$file"
            return 0
        fi
    done
    return 1
}

# Folders in which pip puts NVIDIA's libraries: nvidia/nccl/lib, nvidia/cu13/lib, nvidia/cuda_runtime/lib.
gpu_python_folders() {
    local python site
    for python in ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python3"} ${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python3"} python3 python; do
        command -v "$python" >/dev/null 2>&1 || continue
        "$python" -c 'import sys, site
paths = list(sys.path) + site.getsitepackages() + [site.getusersitepackages()]
print("\n".join(p for p in dict.fromkeys(paths) if p))' 2>/dev/null
    done | while read -r site; do
        [ -d "$site/nvidia" ] && printf '%s\n' "$site"/nvidia/*/lib
    done
    return 0
}

gpu_find_libraries() {
    local folders folder cuda
    mapfile -t folders < <(gpu_python_folders)
    for cuda in ${CUDA_HOME:-} ${CUDA_PATH:-} /usr/local/cuda /usr/local/cuda-13* /opt/cuda; do
        folders+=("$cuda/lib64" "$cuda/lib")
    done
    IFS=: read -r -a folder <<<"${LD_LIBRARY_PATH:-}"
    folders=("${folder[@]}" "${folders[@]}" ${NCCL_HOME:+"$NCCL_HOME/lib"} /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/lib)
    if [ -z "${PSD_NCCL_LIBRARY:-}" ]; then
        PSD_NCCL_LIBRARY=$(gpu_first "${folders[@]/%//libnccl.so.2}") || PSD_NCCL_LIBRARY=
    fi
    if [ -z "${PSD_CUDART_LIBRARY:-}" ]; then
        PSD_CUDART_LIBRARY=$(gpu_first "${folders[@]/%//libcudart.so.13}") || PSD_CUDART_LIBRARY=
    fi
    libraries_missing=
    if [ -z "$PSD_NCCL_LIBRARY" ]; then
        libraries_missing="no libnccl.so.2: install nvidia-nccl-cu13 with pip, or set PSD_NCCL_LIBRARY"
    elif [ -z "$PSD_CUDART_LIBRARY" ]; then
        libraries_missing="no libcudart.so.13: install CUDA 13 or nvidia-cuda-runtime with pip, or set PSD_CUDART_LIBRARY"
    fi
    export PSD_NCCL_LIBRARY PSD_CUDART_LIBRARY
}
