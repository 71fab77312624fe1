#!/bin/bash
# Runs each fuzzer for some seconds from its checked-in corpus (tests/fuzz/corpus/NAME), if any.
#   tests/fuzz/run.sh SECONDS FUZZER...
set -u
seconds=$1
shift
passed=0 failed=0
for f in "$@"; do
    name=$(basename "$f")
    work=$(mktemp -d)
    log=$work/log
    mkdir "$work/new"
    if timeout $((seconds + 60)) "$f" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="$work/" "$work/new" $(ls -d "tests/fuzz/corpus/$name" 2>/dev/null) >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name: $(grep -oE 'Done [0-9]+ runs' "$log") in ${seconds}s, $(grep -oE 'cov: [0-9]+' "$log" | tail -1)"
        rm -rf "$work"
    else
        failed=$((failed + 1))
        tail -40 "$log"
        echo "FAIL $name: see $work"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
