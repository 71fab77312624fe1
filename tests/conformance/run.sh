#!/bin/bash
# Runs the conformance suite for 1, 2, 3, 4 and 8 ranks, each against its table in cells.txt.
#   tests/conformance/run.sh BUILD [--full] [--update]
# --full: 64 MiB for every operation; --update: rewrite cells.txt for these sizes.
set -u
build=$1
shift
sizes=--quick update=
for option in "$@"; do
    case $option in
        --full) sizes= ;;
        --update) update=1 ;;
        *) echo "run.sh: unknown option $option" >&2; exit 2 ;;
    esac
done
here=$(dirname "$0")
cells=$here/cells.txt
failed=0
output=$(mktemp)
tables=$(mktemp)
trap 'rm -f "$output" "$tables"' EXIT

for ranks in 1 2 3 4 8; do
    compare=(--cells "$cells")
    [ -n "$update" ] && compare=()
    echo "== $ranks ranks"
    timeout -k 10 "${CONFORMANCE_TIMEOUT:-120}" "$build/bin/psrun" --standalone --no-prefix -n "$ranks" -- \
        "$build/tests/conformance/conformance" $sizes "${compare[@]}" >"$output" 2>&1
    status=$?
    cat "$output"
    [ "$status" = 0 ] || { echo "conformance: $ranks ranks: exit status $status"; failed=1; }
    awk '/^cells ranks=/ {on = 1} /^refused, as/ {if (on) print ""; on = 0} on' "$output" >>"$tables"
done

if [ -n "$update" ] && [ "$failed" = 0 ]; then
    kept=quick
    [ -n "$sizes" ] && kept=full
    { awk -v kept="sizes=$kept" '/^cells ranks=/ {on = index($0, kept)} on' "$cells" 2>/dev/null; cat "$tables"; } >"$output"
    cp "$output" "$cells"
fi
exit $failed
