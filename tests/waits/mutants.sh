#!/bin/bash
# Bugs, each sown into a copy of a file of server/core: the property test must catch every one.
#   tests/waits/mutants.sh [CC [PROGRAMS]]
set -u
cc=${1:-gcc} programs=${2:-4000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
caught=0 missed=0

# mutant NAME FILE FROM TO: replaces the one place where FROM stands.
mutant() {
    local name=$1 file=server/core/$2 from=$3 to=$4 dir=$work/$1
    mkdir -p "$dir"
    if [ "$(grep -cF -- "$from" "$file")" != 1 ]; then
        echo "FAIL $name: '$from' does not stand once in $file"
        missed=$((missed + 1))
        return
    fi
    FROM=$from TO=$to awk 'BEGIN {f = ENVIRON["FROM"]; t = ENVIRON["TO"]}
        {i = index($0, f); if (i) $0 = substr($0, 1, i - 1) t substr($0, i + length(f)); print}' "$file" >"$dir/$2"
    local sources=("$dir/$2")
    for other in server/core/waits*.c server/core/replay.c; do
        [ "$(basename "$other")" = "$2" ] || sources+=("$other")
    done
    if ! $cc -std=c11 -O2 -I. -o "$dir/property" "${sources[@]}" tests/waits/{property,program,interpreter,oracle,snapshot,unsafe}.c \
        2>"$dir/log"; then
        echo "FAIL $name: does not compile: $(head -3 "$dir/log")"
        missed=$((missed + 1))
    elif timeout 120 "$dir/property" "$programs" 1 60 >"$dir/log" 2>&1; then
        echo "FAIL $name: not caught"
        missed=$((missed + 1))
    else
        echo "ok   $name: $(head -1 "$dir/log" | cut -c1-60)"
        caught=$((caught + 1))
    fi
}

mutant any_as_all waits_graph.c 't->any && t->work_count > 0 ? NODE_ANY : NODE_ALL' 'NODE_ALL'
mutant all_as_any waits_graph.c 't->any && t->work_count > 0 ? NODE_ANY : NODE_ALL' 'NODE_ANY'
mutant gone_may_come waits_graph.c 'g->kind[g->ranks + at] = NODE_DEAD;' 'g->kind[g->ranks + at] = NODE_FREE;'
mutant one_thread_speaks_for_its_rank waits_graph.c 'i < r->thread_count && status == PSD_OK' 'i < 1 && status == PSD_OK'
mutant collective_forgets_the_late waits_graph.c 'status = add_edge(g, g->missing + h, g->missing + h - 1);' ';'
mutant missing_counts_one_too_many waits_graph.c 'if (g->hub[middle].ordinal < started)' 'if (g->hub[middle].ordinal <= started)'
mutant queue_is_no_order waits_graph.c 'status = add_edge(g, g->starts + at, g->ends + u->after);' ';'
mutant partner_must_be_done waits_graph.c 'return add_edge(g, node, g->starts + g->in->ops[partner].unit);' 'return add_edge(g, node, g->ends + g->in->ops[partner].unit);'
mutant any_source_forgets_lower_ranks waits_graph.c 'status = add_edge(g, node, up + place - 1);' ';'
mutant doomed_is_an_exit waits_graph.c 'return !(g->kind[from] == NODE_ANY && g->doomed[to] && !g->doomed[from]);' 'return true;'
mutant victims_are_causes waits.c 'return g->part_is_cycle[part] && !g->part_has_exit[part];' 'return g->part_is_cycle[part];'
mutant first_cycle_is_shortest waits_cycle.c 's->g->effort < EFFORT' 'false'
mutant messages_on_their_way waits_confirm.c 'confirmed = confirmed && all_have_arrived(first, is_stuck) && all_have_arrived(second, is_stuck);' ';'
mutant those_of_the_gone waits_confirm.c 'bool has_ended = life == WAITS_FINISHED || life == WAITS_LEFT;' 'bool has_ended = false; (void)life;'
mutant matched_waits_still waits_match.c 'waits_is_p2p(o->kind) && o->is_matched && !is_positional(g, o) && g->partner[i] == WAITS_NONE;' 'false;'
mutant any_waits_for_all_in_replay replay.c 'r->left[thread] = call->any ? 1 : open;' 'r->left[thread] = open;'
mutant buffered_in_replay replay.c 'if (partner != WAITS_NONE && r->posted[r->in->all.ops[partner].unit]) {' 'if (o->kind == PSD_OP_SEND) op_done(r, op); if (partner != WAITS_NONE && r->posted[r->in->all.ops[partner].unit]) {'
mutant collective_needs_one_in_replay replay.c 'if (++r->come[h] < r->in->all.groups[hub->group].size)' 'if (++r->come[h] + 1 < r->in->all.groups[hub->group].size)'
echo "mutants: $caught passed, $missed failed"
[ "$missed" = 0 ]
