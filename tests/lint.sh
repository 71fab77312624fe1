#!/bin/bash
# clang-format, clang-tidy and cppcheck over the project's own C.
#   tests/lint.sh FLAGS
set -u
flags=$1
bad=0
cuda=${CUDA_HOME:-/usr/local/cuda}/include # without it the code that needs it cannot be read
[ ! -e "$cuda/nccl.h" ] || flags="$flags -isystem $cuda"
mpi=$(pkg-config --cflags-only-I ompi-c 2>/dev/null | sed 's/-I/-isystem /g') || mpi=
flags="$flags $mpi"
files=$(git ls-files -co --exclude-standard '*.c' '*.h' | grep -v '^proto/gen/')
sources=$(echo "$files" | grep '\.c$')
[ -e "$cuda/nccl.h" ] || sources=$(echo "$sources" | grep -vE '^(worker/backend/nccl|tests/gpu)/')
[ -n "$mpi" ] || sources=$(echo "$sources" | grep -v '^worker/backend/mpi/')
clang-format --dry-run -Werror $files || bad=1
cppcheck --quiet --enable=warning,portability --inline-suppr --std=c11 --error-exitcode=1 -I. -Icommon -Iworker \
    --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=normalCheckLevelMaxBranches \
    -j2 $(echo "$sources" | grep -v '^tests/') || bad=1

# One file a run: given several, clang-tidy 14 takes the va_list of one for that of another.
tidy() {
    local said
    said=$(clang-tidy --quiet "$1" -- $FLAGS -DPSD_VERSION='"lint"' 2>&1 | grep -vE 'warnings? generated')
    [ -z "$said" ] || { echo "$said"; return 1; }
}
export -f tidy
export FLAGS=$flags
echo "$sources" | grep -v '^tests/' | xargs -P2 -n1 bash -c 'tidy "$1"' tidy || bad=1
[ $bad = 0 ] && echo "lint: ok"
exit $bad
