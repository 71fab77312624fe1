#!/bin/bash
# All benchmarks, one after the other; each prints its own table with the machine's limits beside.
#   tests/bench/run.sh BUILD
set -eu
build=$1
for b in "$build"/tests/bench/bench_*; do
    [ -x "$b" ] && [ -f "tests/bench/$(basename "$b").c" ] || continue
    echo "== $(basename "$b")"
    "$b"
done
for n in 2 4; do
    for op in all_reduce broadcast reduce_scatter all_gather all_to_all send barrier; do
        echo "== psctl bench $op -n $n"
        "$build/bin/psctl" bench "$op" -b 4 -e 64M -f 16 -n "$n"
    done
done
