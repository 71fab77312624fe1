/* The two-round rule. */
#include <stdlib.h>

#include "server/core/waits.h"

static const waits_pair *find_pair(const waits_input *in, uint32_t rank, uint32_t peer)
{
    uint32_t low = 0, high = in->pair_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const waits_pair *p = &in->pairs[middle];
        if (p->rank < rank || (p->rank == rank && p->peer < peer))
            low = middle + 1;
        else
            high = middle;
    }
    const waits_pair *p = low < in->pair_count ? &in->pairs[low] : NULL;
    return p != NULL && p->rank == rank && p->peer == peer ? p : NULL;
}

static bool same_wait(const waits_input *first, const waits_input *second, uint32_t thread)
{
    const waits_thread *t = &first->threads[thread];
    if (t->rank >= second->rank_count)
        return false;
    const waits_rank *before = &first->ranks[t->rank], *after = &second->ranks[t->rank];
    if (after->life != WAITS_LIVE || before->incarnation != after->incarnation ||
        before->moved != after->moved || before->thread_count != after->thread_count)
        return false;
    const waits_thread *again = &second->threads[after->first_thread + (thread - before->first_thread)];
    return again->is_blocked && again->id == t->id && again->wait_seq == t->wait_seq;
}

/* Also what ranks sent that have ended in order since, if they told. What a dead one sent is here or lost. */
static bool all_have_arrived(const waits_input *in, const bool *is_stuck)
{
    for (uint32_t i = 0; i < in->pair_count; i++) {
        const waits_pair *p = &in->pairs[i];
        waits_life life = in->ranks[p->peer].life;
        bool has_ended = life == WAITS_FINISHED || life == WAITS_LEFT;
        if (!is_stuck[p->rank] || !(is_stuck[p->peer] || has_ended))
            continue;
        const waits_pair *other = find_pair(in, p->peer, p->rank);
        if (other == NULL && has_ended)
            continue;
        if (has_ended) {
            if (p->received != other->sent)
                return false;
            continue; /* what it was sent it may have left unread */
        }
        uint64_t sent = other != NULL ? other->sent : 0, received = other != NULL ? other->received : 0;
        if (p->sent != received || p->received != sent)
            return false;
    }
    return true;
}

bool waits_confirmed(const waits_input *first, const waits_result *result, const waits_input *second)
{
    uint32_t ranks = first->rank_count > second->rank_count ? first->rank_count : second->rank_count;
    bool *is_stuck = calloc((size_t)ranks + 1, sizeof *is_stuck);
    bool confirmed = is_stuck != NULL && result->stuck > 0;
    for (uint32_t t = 0; t < first->thread_count && confirmed; t++) {
        if (result->standing[t] == WAITS_FREE)
            continue;
        is_stuck[first->threads[t].rank] = true;
        confirmed = same_wait(first, second, t);
    }
    confirmed = confirmed && all_have_arrived(first, is_stuck) && all_have_arrived(second, is_stuck);
    free(is_stuck);
    return confirmed;
}
