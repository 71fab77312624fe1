#!/bin/bash
# The simulator, and a whole small job (psd and every rank), under valgrind's memcheck.
#   tests/valgrind.sh BUILD
set -eu
build=$1
vg="valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --trace-children=no"
$vg "$build/tests/sim/psim" tests/sim >/dev/null
echo "valgrind: simulator ok"
dir=$(mktemp -d)
psd=
trap '[ -z "$psd" ] || kill "$psd" 2>/dev/null; rm -rf "$dir"' EXIT
mkfifo "$dir/ready"
$vg "$build/bin/psd" --listen tcp://127.0.0.1:0 --state "$dir/state" --ready-fd 3 3>"$dir/ready" &
psd=$!
read -r endpoint <"$dir/ready"
timeout 120 "$build/bin/psrun" --coordinator "$endpoint" -n 2 -- $vg "$build/examples/hello_all_reduce"
timeout 120 "$build/bin/psrun" --coordinator "$endpoint" --job two -n 3 -- $vg "$build/examples/ring_plan"
timeout 20 "$build/bin/psctl" --coordinator "$endpoint" status
kill "$psd"
wait "$psd"
psd=
echo "valgrind: job ok"
