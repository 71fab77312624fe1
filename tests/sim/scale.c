/* A world of many ranks: join, open and close groups of all of them, leave. Says how long the core took and
 * how much memory the process had at its peak. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/sim/sim.h"

#define GROUPS         20
#define MOST_MEGABYTES 100

typedef struct scale {
    psd_core *core;
    psd_time_ns now;
    uint64_t stepped;
    uint64_t sent;
    uint32_t ranks;
    uint32_t welcomed;
    uint32_t opened;
    uint32_t gone_live; /* GROUP_GO received */
    uint32_t asked;     /* the group whose token was asked for */
    bool refused;
} scale;

static void ident_of(uint32_t rank, psd_ident *out)
{
    *out = (psd_ident){.job = "default", .incarnation = rank + 1};
    (void)snprintf(out->name, sizeof(out->name), "w%u", rank);
}

/* Counts what each message means to its addressee. */
static void count_msg(scale *s, const psd_msg *msg)
{
    s->sent++;
    s->welcomed += msg->type == PSD_MSG_WELCOME;
    s->opened += msg->type == PSD_MSG_GROUP_OPENED;
    s->gone_live += msg->type == PSD_MSG_GROUP_GO;
    if (msg->type == PSD_MSG_GROUP_ASK_TOKEN)
        s->asked = msg->u.group_token.group;
    if (msg->type == PSD_MSG_REFUSE || msg->type == PSD_MSG_ABORT) {
        s->refused = true;
        (void)fprintf(stderr, "scale: %s\n",
                      msg->type == PSD_MSG_ABORT ? msg->u.abort.text : msg->u.refuse.text);
    }
}

static void say(scale *s, uint32_t rank, psd_msg *msg, psd_effects *effects)
{
    ident_of(rank, &msg->ident);
    s->now += 1000;
    psd_event event = {
        .type = PSD_EVENT_MSG, .now = s->now, .entropy = s->stepped, .peer = rank + 1, .msg = msg};
    if (psd_core_step(s->core, &event, effects) != PSD_OK)
        s->refused = true;
    s->stepped++;
    for (size_t i = 0; i < effects->count; i++) {
        uint64_t cursor = 0;
        psd_peer peer;
        while (effects->items[i]->type == PSD_EFFECT_SEND &&
               psd_core_next_addressee(s->core, effects->items[i], &cursor, &peer))
            count_msg(s, effects->items[i]->msg);
    }
    psd_effects_clear(effects);
}

/* Rank 0 comes last: all others are told what is missing. */
static void join_all(scale *s, psd_effects *effects)
{
    for (uint32_t i = 0; i < s->ranks; i++) {
        uint32_t rank = (i + 1) % s->ranks;
        psd_msg msg = {.type = PSD_MSG_HELLO};
        psd_msg_hello *h = &msg.u.hello;
        *h = (psd_msg_hello){.role = "worker", .backend = "host", .rank = (int32_t)rank, .pid = rank + 1000};
        h->world_min = h->world_max = (int32_t)s->ranks;
        (void)snprintf(h->host, sizeof(h->host), "node%u", rank / 8);
        /* Short ones: the addresses of all members go into one message, of at most PSD_MAX_FRAME. */
        (void)snprintf(h->address, sizeof(h->address), "%x", rank);
        say(s, rank, &msg, effects);
    }
}

/* Token from rank 0, then ready from all. */
static void warm_up(scale *s, uint32_t group, psd_effects *effects)
{
    psd_msg token = {.type = PSD_MSG_GROUP_TOKEN, .u.group_token = {.group = group, .bytes = 128}};
    say(s, 0, &token, effects);
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        psd_msg ready = {.type = PSD_MSG_GROUP_READY, .u.group = {.group = group, .warmup_ns = 1000}};
        say(s, rank, &ready, effects);
    }
}

static uint32_t dup_world(scale *s, psd_effects *effects)
{
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        psd_msg dup = {.type = PSD_MSG_GROUP_OPEN, .request = s->stepped + 1};
        dup.u.group_open = (psd_msg_group_open){.how = PSD_GROUP_DUP, .parent = 1};
        say(s, rank, &dup, effects);
    }
    warm_up(s, s->asked, effects);
    return s->asked;
}

static void beat_all(scale *s, psd_effects *effects)
{
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        psd_msg beat = {.type = PSD_MSG_HEARTBEAT, .u.heartbeat = {.epoch = 1, .ops = rank}};
        say(s, rank, &beat, effects);
    }
}

static void close_all(scale *s, uint32_t group, psd_effects *effects)
{
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        psd_msg close = {.type = PSD_MSG_GROUP_CLOSE, .u.group = {.group = group}};
        say(s, rank, &close, effects);
    }
}

static void leave_all(scale *s, psd_effects *effects)
{
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        psd_msg bye = {.type = PSD_MSG_BYE, .request = 1};
        say(s, rank, &bye, effects);
    }
}

int scale_run(uint32_t ranks)
{
    scale s = {.ranks = ranks, .now = PSD_NS_PER_S};
    psd_effects effects = {0};
    uint32_t groups[GROUPS];
    if (ranks < 1 || ranks > PSD_MAX_WORLD || psd_core_new(NULL, &s.core) != PSD_OK) {
        (void)fprintf(stderr, "psim --scale: 1 to %d ranks\n", PSD_MAX_WORLD);
        return 2;
    }
    psd_time_ns began = psd_now_ns();
    join_all(&s, &effects);
    warm_up(&s, s.asked, &effects);
    for (int i = 0; i < GROUPS; i++)
        groups[i] = dup_world(&s, &effects);
    beat_all(&s, &effects);
    for (int i = 0; i < GROUPS; i++)
        close_all(&s, groups[i], &effects);
    leave_all(&s, &effects);
    double seconds = (double)(psd_now_ns() - began) / 1e9;
    psd_effects_free(&effects);
    psd_core_free(s.core);
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    double megabytes = (double)usage.ru_maxrss / 1024;
    bool whole =
        s.welcomed == ranks && s.gone_live == (GROUPS + 1) * ranks && s.opened == (GROUPS + 1) * ranks;
    (void)printf("scale: ranks=%u groups=%d seconds=%.2f events=%llu messages=%llu peak_rss_mb=%.1f\n", ranks,
                 GROUPS, seconds, (unsigned long long)s.stepped, (unsigned long long)s.sent, megabytes);
    if (!whole || s.refused)
        (void)fprintf(stderr, "scale: not every rank was welcomed and got its groups\n");
    if (megabytes > MOST_MEGABYTES)
        (void)fprintf(stderr, "scale: over %d MB\n", MOST_MEGABYTES);
    bool passed = whole && !s.refused && megabytes <= MOST_MEGABYTES;
    (void)printf("%d passed, %d failed\n", passed, !passed);
    return passed ? 0 : 1;
}
