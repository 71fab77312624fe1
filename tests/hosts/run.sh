#!/bin/bash
# Tests of psd on several hosts, which are network namespaces of this machine: see README.md.
#   tests/hosts/run.sh BUILD [FILE[:PATTERN]...]     all, or some files of tests and of these the matching tests
# Ends with "N passed, N failed, N skipped". Each file has a sandbox of its own; several run at the same time.
set -u
here=$(dirname "$(realpath "$0")")
PSD_BUILD=$(realpath "$1")
export PSD_BUILD
shift
[ $# -gt 0 ] || set -- faults connect launch slurm

# What the machine lacks; nothing if the tests can run.
missing() {
    local tool
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root"; return; }
    for tool in ip nft nsenter unshare setpriv ss; do
        command -v "$tool" > /dev/null || { echo "$tool is not installed (deploy/install-deps.sh --hosts)"; return; }
    done
    "$here/sandbox.sh" ip link add t0 type veth peer name t1 2> /dev/null ||
        echo "namespaces or veth interfaces are not allowed here"
}

lacks=$(missing)
if [ -n "$lacks" ]; then
    echo "skip: tests of several hosts: $lacks"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

output=$(mktemp -d)
children=()
cleanup() {
    [ ${#children[@]} = 0 ] || kill "${children[@]}" 2> /dev/null
    wait
    rm -rf "$output"
}
trap cleanup EXIT
trap 'exit 143' TERM INT HUP

passed=0 failed=0 skipped=0
for file in "$@"; do
    only=
    [[ $file != *:* ]] || only=${file#*:}
    only=$only timeout -k 5 "${HOSTS_TIMEOUT:-150}" "$here/sandbox.sh" "$here/${file%%:*}.sh" > "$output/${file%%:*}" 2>&1 &
    children+=($!)
done
for file in "$@"; do
    wait "${children[0]}"
    status=$?
    children=("${children[@]:1}")
    echo "== ${file%%:*}"
    grep -vE '^[0-9]+ passed, ' "$output/${file%%:*}"
    if read -r p _ f _ s _ < <(grep -E '^[0-9]+ passed, ' "$output/${file%%:*}" | tail -n 1); then
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    else
        echo "FAIL ${file%%:*}: it did not come to its end (exit status $status)"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
