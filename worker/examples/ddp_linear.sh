#!/bin/sh
# Runs ddp_linear with 1, 2 and 4 workers and prints a table of times: ddp_linear.sh [BUILD]
# The job is tiny on purpose (it is the one that PyTorch's users know): it shows what the exchange of gradients costs, not
# how far more workers help. More workers than cores share cores, and are marked.
set -eu

build=${1:-build}
cores=$(nproc)
one=
printf '%8s %12s %10s %11s\n' workers seconds speed-up efficiency
for workers in 1 2 4; do
    out=$("$build/bin/psrun" --standalone --no-prefix -n "$workers" -- "$build/examples/ddp_linear")
    seconds=$(printf '%s\n' "$out" | sed -n 's/^ddp_linear: .*seconds=\([0-9.]*\) .*/\1/p')
    [ -n "$seconds" ] || { echo "ddp_linear.sh: no time in: $out" >&2; exit 1; }
    loss=$(printf '%s\n' "$out" | sed -n 's/^ddp_linear: .*last_loss=\([0-9.]*\).*/\1/p')
    [ -n "$one" ] || { one=$seconds; first_loss=$loss; }
    mark=
    [ "$workers" -le "$cores" ] || mark="  more workers than the $cores cores"
    awk -v n="$workers" -v t="$seconds" -v one="$one" -v mark="$mark" \
        'BEGIN { printf "%8d %12.6f %10.2f %10.0f%%%s\n", n, t, one / t, 100 * one / t / n, mark }'
    awk -v a="$loss" -v b="$first_loss" 'BEGIN { d = a - b; exit !(d < 1e-5 && d > -1e-5) }' || {
        echo "ddp_linear.sh: loss $loss with $workers workers, $first_loss with one" >&2
        exit 1
    }
done
