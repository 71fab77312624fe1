#!/bin/bash
# The benchmarks: tables in Markdown with the machine's own limits beside. They measure; they never fail for being slow,
# only for wrong results or for what does not run.
#   tests/bench/run.sh BUILD
#
# BENCH_PARTS  which, of: small large (2 ranks, operations up to 64 KiB, and larger), four (4 ranks), link, recorder,
#              heartbeats, ddp, plans. Default: all
# BENCH=short  all parts, less of each: under 90 seconds
# BENCH_SYSTEMS, BENCH_ROUNDS, BENCH_OPS   for compare's --systems, --rounds, --ops
set -u
build=$1
here=$build/tests/bench
parts=${BENCH_PARTS:-small large four link recorder heartbeats ddp plans}
short='' four_sizes=4,4K,64K,256K,4M,64M recorder_runs=5
[ "${BENCH:-}" = short ] && short=short four_sizes=4,256K,4M recorder_runs=2
rounds=${BENCH_ROUNDS:-7}
systems=${BENCH_SYSTEMS:-psd,openmpi,openmpi-tuned,openmpi-ring,gloo}
bad=0

want() { case " $parts " in *" $1 "*) true ;; *) false ;; esac; }
version() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo 'not a package here'; }
title() { printf '\n## %s\n' "$1"; }

machine() {
    printf '%s, %s, %s cores, Linux %s; psd %s' "$(date -u +%F)" \
        "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(uname -r)" \
        "$(git rev-parse --short HEAD 2>/dev/null || echo '')"
    command -v mpirun >/dev/null && printf '; %s' "$(mpirun --version 2>/dev/null | head -1)"
    printf '; Gloo %s\n' "$(version libgloo0)"
}

# compare TITLE OPTIONS...
compare() {
    title "$1"
    shift
    [ -n "$short" ] && set -- "$@" --own-only --summary --turn 2
    [ -n "${BENCH_OPS:-}" ] && set -- "$@" --ops "$BENCH_OPS"
    "$here/compare" --rounds "$rounds" "$@" || bad=1
}

two_ranks() {
    local sizes=
    want small && sizes=4,4K,64K
    want large && sizes=${sizes:+$sizes,}256K,4M,64M
    [ -n "$short" ] && sizes=${sizes/,64K/}
    compare "Operations, 2 ranks" --systems "$systems" --sizes "$sizes"
}

recorder() {
    title "The recorder of operations"
    "$here/bench_recorder" || bad=1
    # Started anew each time: where its memory happens to lie makes two runs of one program differ by more than this costs.
    local i
    for ((i = 0; i < recorder_runs; i++)); do
        "$here/compare" --systems psd,psd-record-off --ops all_reduce --sizes 4,4K,1M --own-only --difference --turn 3 \
            --rounds 31 || bad=1
    done
}

plans() {
    title "Plans between layouts"
    local pairs=(tests/data/plan/model.json tests/data/plan/pair.json) p
    [ -d ../shared/plans/layouts ] || echo "skip: no ../shared/plans beside the project: only the example"
    for p in ../shared/plans/layouts/*.json; do
        [ -f "$p" ] || continue
        pairs+=("../shared/plans/manifests/$(sed -n 's/^ *"manifest": *"\([^"]*\)".*/\1/p' "$p").json" "$p")
    done
    "$here/bench_reshard" "${pairs[@]}" || bad=1
}

[ "$(id -u)" = 0 ] && renice -n -15 $$ >/dev/null # what else runs disturbs less

printf '# Benchmarks\n\n'
machine
{ want small || want large; } && two_ranks
want four && compare "Operations, 4 ranks on $(nproc) cores" -n 4 --systems "$systems" --sizes "$four_sizes"
want link && { title "Links of the host backend" && "$here/bench_link" || bad=1; }
want recorder && recorder
want plans && plans
want heartbeats && { title "The coordinator: 100,000 heartbeats" && "$here/bench_heartbeats" "$build/bin/psd" $short || bad=1; }
want ddp && { tests/bench/ddp.sh "$build" $short || bad=1; }
exit $bad
