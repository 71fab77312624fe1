/* Is an input sound: does every index lead somewhere, and do units and threads refer to their own rank? */
#include "server/core/waits_graph.h"

static bool fits(uint32_t first, uint32_t count, uint32_t all)
{
    return first <= all && count <= all - first;
}

static bool ranks_are_sound(const waits_input *in)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < in->rank_count; i++) {
        const waits_rank *r = &in->ranks[i];
        if (r->life > WAITS_DEAD || !fits(r->first_thread, r->thread_count, in->thread_count))
            return false;
        if (r->thread_count > 0 && r->first_thread != next)
            return false;
        for (uint32_t t = 0; t < r->thread_count; t++)
            if (in->threads[r->first_thread + t].rank != i)
                return false;
        next += r->thread_count;
    }
    return next == in->thread_count;
}

static bool works_are_sound(const waits_input *in)
{
    for (uint32_t i = 0; i < in->work_count; i++)
        if (in->works[i] >= in->unit_count)
            return false;
    for (uint32_t i = 0; i < in->thread_count; i++) {
        const waits_thread *t = &in->threads[i];
        if (t->rank >= in->rank_count || !fits(t->first_work, t->work_count, in->work_count))
            return false;
        for (uint32_t w = 0; w < t->work_count; w++)
            if (in->units[in->works[t->first_work + w]].rank != t->rank)
                return false;
    }
    return true;
}

static bool units_are_sound(const waits_input *in)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < in->unit_count; i++) {
        const waits_unit *u = &in->units[i];
        if (u->rank >= in->rank_count || u->first_op != next || !fits(next, u->op_count, in->op_count))
            return false;
        for (uint32_t o = 0; o < u->op_count; o++)
            if (in->ops[u->first_op + o].unit != i)
                return false;
        /* Only backwards: a queue has no cycles. */
        if (u->after != WAITS_NONE && (u->after >= i || in->units[u->after].rank != u->rank))
            return false;
        next += u->op_count;
    }
    return next == in->op_count;
}

static bool ops_are_sound(const waits_input *in)
{
    for (uint32_t i = 0; i < in->op_count; i++) {
        const waits_op *o = &in->ops[i];
        if (o->group >= in->group_count || o->kind == PSD_OP_BATCH || o->kind < PSD_OP_SEND ||
            o->kind > PSD_OP_GROUP_DUP)
            return false;
        if (!waits_is_p2p(o->kind))
            continue;
        if (o->peer != WAITS_ANY && (o->peer < 0 || (uint32_t)o->peer >= in->rank_count))
            return false;
        if (o->peer == WAITS_ANY && (o->kind == PSD_OP_SEND || o->is_matched))
            return false;
    }
    return true;
}

static bool groups_are_sound(const waits_input *in)
{
    for (uint32_t i = 0; i < in->group_count; i++) {
        const waits_group *g = &in->groups[i];
        if (g->members == NULL && g->size > in->rank_count)
            return false;
        for (uint32_t m = 0; g->members != NULL && m < g->size; m++)
            if (g->members[m] >= in->rank_count)
                return false;
    }
    return true;
}

static bool pairs_are_sound(const waits_input *in)
{
    for (uint32_t i = 0; i < in->pair_count; i++) {
        const waits_pair *p = &in->pairs[i];
        if (p->rank >= in->rank_count || p->peer >= in->rank_count)
            return false;
        const waits_pair *before = i > 0 ? &in->pairs[i - 1] : NULL;
        if (before != NULL &&
            (before->rank > p->rank || (before->rank == p->rank && before->peer >= p->peer)))
            return false;
    }
    return true;
}

bool waits_input_is_sound(const waits_input *in)
{
    return ranks_are_sound(in) && units_are_sound(in) && groups_are_sound(in) && ops_are_sound(in) &&
           works_are_sound(in) && pairs_are_sound(in);
}
