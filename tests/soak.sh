#!/bin/bash
# Tests over and over until the time is up; stops at the first failure.
#   tests/soak.sh BUILD MINUTES
set -u
build=$1 end=$((SECONDS + $2 * 60)) round=0
while [ $SECONDS -lt $end ]; do
    round=$((round + 1))
    echo "soak: round $round"
    tests/run.sh "$build" sim integration conformance || exit 1
    FUZZ_SECONDS=120 make --no-print-directory fuzz || exit 1
done
echo "soak: $round rounds without a failure"
