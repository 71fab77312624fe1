/* The scenario language: one command a line. WORKERS is a name or several with commas.
 *
 *   job NAME                                    the job of workers named from now on
 *   hello WORKERS [world N|N:M] [rank N] [role R] [host H] [backend B]
 *   resync W          the same life on a new connection       reborn W [token]  a new life of the same name
 *   double W          another process that claims W's name
 *   gone W            psd proves the connection closed         silent W          a new connection, unannounced
 *   beat W [OP]       heartbeat, in operation OP               impostor W        heartbeat of another incarnation
 *   new W RANKS | split W GROUP COLOR KEY | dup W GROUP
 *   again W           the last request once more               cancel W          the last request is taken back
 *   token W G | ready W G | close W G | fail W G TEXT
 *   disagree W G mismatch|gone CULPRIT KIND,RANK,PEER,ORDINAL,COUNT...   as fail, with one or two operations
 *   manual | auto     do workers make tokens and get ready by themselves?
 *   plan W GROUP COUNT SHIFT | next W PLAN CHUNK | loaded W PLAN [wrong] | ran W PLAN RUNS BYTES | unplan W PLAN
 *   table W NAME LR COUNT... | room W TABLE [TEXT] | served W TABLE CLOCK | untable W TABLE
 *   stuck W OP... | runs W   its thread waits for all (first OP `any`: for any) of the operations KIND,GROUP,PEER,TAG,ORDINAL
 *   started W GROUP N        collectives        moved W        counted W PEER SENT RECEIVED        reports W
 *   bye W [TEXT] | view NAME [JOB] [AFTER LIMIT] | stop [JOB] | shutdown | advance MS | replay | restart
 *   forget            psd is started again without its journal
 */
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "tests/sim/sim.h"

#define WORDS 16

typedef struct words {
    int count;
    char *at[WORDS];
    char rest[512]; /* from the fourth word on */
} words;

static const char *word(const words *w, int i)
{
    return i < w->count ? w->at[i] : "";
}

static int64_t number(const words *w, int i)
{
    return strtoll(word(w, i), NULL, 10);
}

static void copy_name(char out[PSD_MAX_NAME], const char *text)
{
    (void)snprintf(out, PSD_MAX_NAME, "%s", text);
}

static void request(sim *s, sim_worker *w, psd_msg *msg)
{
    msg->request = s->next_request++;
    w->last = *msg;
    sim_say(s, w, msg);
}

/* ------------------------------------------------------------------------------------------------- people */

static void say_hello(sim *s, sim_worker *w, bool resume)
{
    psd_msg msg = {.type = PSD_MSG_HELLO, .u.hello = w->hello};
    if (resume) {
        msg.u.hello.resume_token = w->token;
        msg.u.hello.epoch = w->epoch;
        msg.u.hello.rank = w->rank;
    }
    sim_say(s, w, &msg);
}

static void do_hello(sim *s, sim_worker *w, const words *in)
{
    for (int i = 2; i + 1 < in->count; i += 2) {
        if (strcmp(in->at[i], "world") == 0) {
            const char *colon = strchr(in->at[i + 1], ':');
            w->hello.world_min = (int32_t)number(in, i + 1);
            w->hello.world_max = colon == NULL ? w->hello.world_min : (int32_t)strtol(colon + 1, NULL, 10);
        } else if (strcmp(in->at[i], "rank") == 0) {
            w->hello.rank = (int32_t)number(in, i + 1);
        } else if (strcmp(in->at[i], "role") == 0) {
            copy_name(w->hello.role, in->at[i + 1]);
        } else if (strcmp(in->at[i], "host") == 0) {
            copy_name(w->hello.host, in->at[i + 1]);
        } else if (strcmp(in->at[i], "backend") == 0) {
            (void)snprintf(w->hello.backend, sizeof(w->hello.backend), "%s", in->at[i + 1]);
        }
    }
    say_hello(s, w, false);
}

static void do_resync(sim *s, sim_worker *w, const words *in)
{
    (void)in;
    w->peer = 0;
    say_hello(s, w, true);
}

static void do_reborn(sim *s, sim_worker *w, const words *in)
{
    w->peer = 0;
    w->ident.incarnation += 1000;
    say_hello(s, w, strcmp(word(in, 2), "token") == 0);
}

static void do_double(sim *s, sim_worker *w, const words *in)
{
    sim_worker real = *w;
    do_reborn(s, w, in);
    *w = real;
}

static void do_gone(sim *s, sim_worker *w, const words *in)
{
    (void)in;
    psd_event event = {.type = PSD_EVENT_GONE, .peer = w->peer};
    w->peer = 0;
    sim_step(s, &event);
}

static void do_silent(sim *s, sim_worker *w, const words *in)
{
    (void)s;
    (void)in;
    w->peer = 0;
}

static void do_beat(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_HEARTBEAT};
    msg.u.heartbeat = (psd_msg_heartbeat){.epoch = 1,
                                          .ops = 7,
                                          .bytes_sent = 1024,
                                          .resident_bytes = 4096,
                                          .communicator_bytes = 2048,
                                          .communicators = 1,
                                          .communicator_budget = 64};
    if (in->count > 2) {
        msg.u.heartbeat.current = (psd_current_op){.kind = (uint8_t)number(in, 2),
                                                   .dtype = PSD_F32,
                                                   .redop = PSD_SUM,
                                                   .peer = -1,
                                                   .count = 1000,
                                                   .age_ns = PSD_NS_PER_S};
        copy_name(msg.u.heartbeat.current.name, "grad");
        (void)snprintf(msg.u.heartbeat.current.site, sizeof(msg.u.heartbeat.current.site), "train.c:42");
    }
    sim_say(s, w, &msg);
}

/* waiting|outside|polling MILLISECONDS [KIND PEER] */
static void do_doing(sim *s, sim_worker *w, const words *in)
{
    static const char *const names[] = {"", "outside", "waiting", "polling"};
    psd_msg msg = {.type = PSD_MSG_HEARTBEAT, .u.heartbeat = {.epoch = 1}};
    psd_msg_heartbeat *beat = &msg.u.heartbeat;
    for (uint8_t i = 1; i < 4; i++)
        beat->doing = strcmp(word(in, 2), names[i]) == 0 ? i : beat->doing;
    beat->doing_ns = number(in, 3) * PSD_NS_PER_MS;
    if (in->count > 5) {
        beat->current = (psd_current_op){.kind = (uint8_t)number(in, 4),
                                         .dtype = PSD_F32,
                                         .peer = (int32_t)number(in, 5),
                                         .group = 1,
                                         .count = 4};
        copy_name(beat->current.name, "grad");
        (void)snprintf(beat->current.site, sizeof(beat->current.site), "train.c:42");
    }
    sim_say(s, w, &msg);
}

static void do_impostor(sim *s, sim_worker *w, const words *in)
{
    w->ident.incarnation += 7;
    do_beat(s, w, in);
    w->ident.incarnation -= 7;
}

static void do_bye(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_BYE};
    if (in->count > 2) {
        msg.u.bye.status = PSD_ERR_IO;
        (void)snprintf(msg.u.bye.text, sizeof(msg.u.bye.text), "%s", in->at[2]);
    }
    request(s, w, &msg);
}

/* ------------------------------------------------------------------------------------------------- groups */

static void do_new(sim *s, sim_worker *w, const words *in)
{
    static uint32_t ranks[64];
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN, .u.group_open = {.how = PSD_GROUP_NEW, .members = ranks}};
    char list[256];
    (void)snprintf(list, sizeof(list), "%s", word(in, 2));
    char *save = NULL;
    for (char *t = strtok_r(list, ",", &save); t != NULL && msg.u.group_open.count < 64;
         t = strtok_r(NULL, ",", &save))
        ranks[msg.u.group_open.count++] = (uint32_t)strtoul(t, NULL, 10);
    request(s, w, &msg);
}

static void do_split(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN};
    msg.u.group_open = (psd_msg_group_open){.how = PSD_GROUP_SPLIT,
                                            .parent = (uint32_t)number(in, 2),
                                            .color = (int32_t)number(in, 3),
                                            .key = (int32_t)number(in, 4)};
    request(s, w, &msg);
}

static void do_dup(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN};
    msg.u.group_open = (psd_msg_group_open){.how = PSD_GROUP_DUP, .parent = (uint32_t)number(in, 2)};
    request(s, w, &msg);
}

static void do_again(sim *s, sim_worker *w, const words *in)
{
    (void)in;
    psd_msg msg = w->last;
    sim_say(s, w, &msg);
}

/* Its last request is taken back. */
static void do_cancel(sim *s, sim_worker *w, const words *in)
{
    (void)in;
    psd_msg msg = {.type = PSD_MSG_CANCEL, .request = w->last.request};
    sim_say(s, w, &msg);
}

static void do_token(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_TOKEN};
    msg.u.group_token = (psd_msg_group_token){.group = (uint32_t)number(in, 2), .bytes = 3, .token = "tok"};
    sim_say(s, w, &msg);
}

static void say_group(sim *s, sim_worker *w, const words *in, psd_msg_type type)
{
    psd_msg msg = {.type = type, .u.group = {.group = (uint32_t)number(in, 2)}};
    sim_say(s, w, &msg);
}

static void do_ready(sim *s, sim_worker *w, const words *in)
{
    say_group(s, w, in, PSD_MSG_GROUP_READY);
}

static void do_close(sim *s, sim_worker *w, const words *in)
{
    say_group(s, w, in, PSD_MSG_GROUP_CLOSE);
}

static void do_fail(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    msg.u.abort = (psd_msg_abort){.group = (uint32_t)number(in, 2), .status = PSD_ERR_LINK, .culprit = -1};
    (void)snprintf(msg.u.abort.text, sizeof(msg.u.abort.text), "%s", in->rest);
    sim_say(s, w, &msg);
}

static void read_side(char *text, psd_op_side *out)
{
    char *save = NULL, *at[5] = {NULL};
    for (int i = 0; i < 5; i++)
        at[i] = strtok_r(i == 0 ? text : NULL, ",", &save);
    *out = (psd_op_side){.dtype = PSD_F32, .redop = PSD_SUM, .root = -1};
    for (uint8_t kind = PSD_OP_SEND; kind <= PSD_OP_BARRIER && at[4] != NULL; kind++)
        if (strcmp(psd_op_name((psd_op_kind)kind), at[0]) == 0)
            out->kind = kind;
    if (out->kind == 0)
        return;
    if (out->kind == PSD_OP_BARRIER)
        out->dtype = out->redop = 0;
    if (out->kind <= PSD_OP_RECV)
        out->redop = 0;
    out->rank = (int32_t)strtol(at[1], NULL, 10);
    out->peer = (int32_t)strtol(at[2], NULL, 10);
    out->ordinal = strtoull(at[3], NULL, 10);
    out->count = strtoll(at[4], NULL, 10);
    (void)snprintf(out->name, sizeof out->name, "x");
    (void)snprintf(out->site, sizeof out->site, "train.c:%d", 10 + out->rank);
}

static void do_disagree(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    bool is_mismatch = strcmp(word(in, 3), "mismatch") == 0;
    msg.u.abort = (psd_msg_abort){.group = (uint32_t)number(in, 2),
                                  .status = is_mismatch ? PSD_ERR_MISMATCH : PSD_ERR_PEER_FAILED,
                                  .culprit = (int32_t)number(in, 4)};
    for (int i = 5; i < in->count && msg.u.abort.side_count < PSD_ABORT_SIDES; i++)
        read_side(in->at[i], &msg.u.abort.sides[msg.u.abort.side_count++]);
    (void)snprintf(msg.u.abort.text, sizeof(msg.u.abort.text), "what the ranks say");
    sim_say(s, w, &msg);
}

/* ------------------------------------------------------------------------------------------ plans, tables */

static void do_plan(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_PLAN_OPEN};
    msg.u.plan_open.inputs = (psd_plan_inputs){.kind = PSD_PLAN_RING_SHIFT,
                                               .group = (uint32_t)number(in, 2),
                                               .dtype = PSD_F32,
                                               .count = number(in, 3),
                                               .shift = (int32_t)number(in, 4)};
    request(s, w, &msg);
}

static void say_plan(sim *s, sim_worker *w, psd_msg_type type, psd_msg_plan body)
{
    psd_msg msg = {.type = type, .u.plan = body};
    msg.request = type == PSD_MSG_PLAN_NEXT ? s->next_request++ : 0;
    sim_say(s, w, &msg);
}

static void do_next(sim *s, sim_worker *w, const words *in)
{
    say_plan(s, w, PSD_MSG_PLAN_NEXT,
             (psd_msg_plan){.plan = (uint32_t)number(in, 2), .chunk = (uint32_t)number(in, 3)});
}

static void do_loaded(sim *s, sim_worker *w, const words *in)
{
    uint32_t id = (uint32_t)number(in, 2);
    say_plan(
        s, w, PSD_MSG_PLAN_READY,
        (psd_msg_plan){.plan = id, .hash = strcmp(word(in, 3), "wrong") == 0 ? 1 : w->last_hash[id % 16]});
}

static void do_ran(sim *s, sim_worker *w, const words *in)
{
    say_plan(s, w, PSD_MSG_PLAN_PROGRESS,
             (psd_msg_plan){.plan = (uint32_t)number(in, 2),
                            .runs = (uint64_t)number(in, 3),
                            .bytes = (uint64_t)number(in, 4),
                            .last_run_ns = 5 * PSD_NS_PER_MS});
}

static void do_unplan(sim *s, sim_worker *w, const words *in)
{
    say_plan(s, w, PSD_MSG_PLAN_CLOSE, (psd_msg_plan){.plan = (uint32_t)number(in, 2)});
}

static void do_table(sim *s, sim_worker *w, const words *in)
{
    static psd_param params[8];
    psd_msg msg = {.type = PSD_MSG_TABLE_OPEN};
    psd_table_spec *spec = &msg.u.table_open.spec;
    *spec =
        (psd_table_spec){.optimizer = 1, .average = true, .lr = strtod(word(in, 3), NULL), .params = params};
    copy_name(spec->name, word(in, 2));
    for (int i = 4; i < in->count && spec->param_count < 8; i++) {
        psd_param *p = &params[spec->param_count++];
        *p = (psd_param){.dtype = PSD_F32, .count = number(in, i)};
        (void)snprintf(p->name, sizeof(p->name), "p%d", i - 4);
    }
    request(s, w, &msg);
}

static void say_table(sim *s, sim_worker *w, psd_msg_type type, const words *in, const char *fault)
{
    psd_msg msg = {.type = type};
    msg.u.table.table = (uint32_t)number(in, 2);
    msg.u.table.bytes = 4096;
    if (type == PSD_MSG_TABLE_PROGRESS)
        msg.u.table.clock = msg.u.table.pushes = (uint64_t)number(in, 3);
    if (fault[0] != 0)
        msg.u.table.status = PSD_ERR_NOMEM;
    (void)snprintf(msg.u.table.text, sizeof(msg.u.table.text), "%s", fault);
    sim_say(s, w, &msg);
}

static void do_room(sim *s, sim_worker *w, const words *in)
{
    say_table(s, w, PSD_MSG_TABLE_READY, in, in->rest);
}

static void do_served(sim *s, sim_worker *w, const words *in)
{
    say_table(s, w, PSD_MSG_TABLE_PROGRESS, in, "");
}

static void do_untable(sim *s, sim_worker *w, const words *in)
{
    say_table(s, w, PSD_MSG_TABLE_CLOSE, in, "");
}

/* ------------------------------------------------------------------------------------------------- hangs */

static uint8_t kind_named(const char *name)
{
    static const char *const names[] = {"send", "recv", "broadcast", "all_reduce", "barrier", "group_new"};
    static const uint8_t kinds[] = {PSD_OP_SEND,       PSD_OP_RECV,    PSD_OP_BROADCAST,
                                    PSD_OP_ALL_REDUCE, PSD_OP_BARRIER, PSD_OP_GROUP_NEW};
    for (size_t i = 0; i < sizeof(kinds); i++)
        if (strncmp(names[i], name, strlen(names[i])) == 0)
            return kinds[i];
    return 0;
}

static void add_op(sim_worker *w, const char *text)
{
    uint32_t at = w->snap.op_count;
    int64_t numbers[4] = {0, -1, 0, 0};
    const char *comma = strchr(text, ',');
    for (int i = 0; i < 4 && comma != NULL; i++, comma = strchr(comma + 1, ','))
        numbers[i] = strtoll(comma + 1, NULL, 10);
    if (at == SIM_OPS)
        return;
    w->ops[at] = (psd_snap_op){.unit = at,
                               .kind = kind_named(text),
                               .dtype = PSD_F32,
                               .group = (uint32_t)numbers[0],
                               .peer = (int32_t)numbers[1],
                               .root = -1,
                               .tag = (int32_t)numbers[2],
                               .ordinal = (uint64_t)numbers[3],
                               .count = 4,
                               .line = 10 + at};
    (void)snprintf(w->ops[at].file, sizeof(w->ops[at].file), "%.16s.c", w->ident.name);
    w->works[at] = at;
    w->snap.op_count = w->snap.unit_count = w->thread.work_count = at + 1;
}

static void do_stuck(sim *s, sim_worker *w, const words *in)
{
    bool any = strcmp(word(in, 2), "any") == 0;
    w->snap.op_count = w->snap.unit_count = 0;
    w->snap.thread_count = 1;
    w->thread = (psd_snap_thread){.id = 1,
                                  .wait_seq = w->thread.wait_seq + 1,
                                  .waiting_ns = 250 * PSD_NS_PER_MS,
                                  .is_blocked = true,
                                  .any = any};
    for (int i = any ? 3 : 2; i < in->count; i++)
        add_op(w, in->at[i]);
    psd_msg msg = {.type = PSD_MSG_STUCK};
    sim_say(s, w, &msg);
}

/* A work that it never waited for. */
static void do_lost(sim *s, sim_worker *w, const words *in)
{
    psd_msg msg = {.type = PSD_MSG_LOST_WORK};
    msg.u.lost_work =
        (psd_msg_lost_work){.seq = (uint64_t)number(in, 2), .total = 2, .is_done = in->count > 3};
    msg.u.lost_work.op = (psd_current_op){.kind = PSD_OP_SEND, .dtype = PSD_F32, .peer = 1, .group = 1};
    copy_name(msg.u.lost_work.op.name, "grad");
    (void)snprintf(msg.u.lost_work.op.site, sizeof(msg.u.lost_work.op.site), "train.c:42");
    sim_say(s, w, &msg);
}

static void do_runs(sim *s, sim_worker *w, const words *in)
{
    (void)s;
    (void)in;
    w->snap.op_count = w->snap.unit_count = w->thread.work_count = 0;
    w->thread.is_blocked = false;
    w->snap.moved++;
}

static void do_started(sim *s, sim_worker *w, const words *in)
{
    (void)s;
    uint32_t at = w->snap.group_count;
    if (at == SIM_OPS)
        return;
    w->groups[at] = (uint32_t)number(in, 2);
    w->started[at] = (uint64_t)number(in, 3);
    w->snap.group_count++;
}

static void do_moved(sim *s, sim_worker *w, const words *in)
{
    (void)s;
    (void)in;
    w->snap.moved++;
}

/* Peers in ascending order; one that is there is counted anew. */
static void do_counted(sim *s, sim_worker *w, const words *in)
{
    uint32_t at = 0;
    (void)s;
    while (at < w->snap.peer_count && w->peers[at] != (uint32_t)number(in, 2))
        at++;
    if (at == SIM_OPS)
        return;
    w->snap.peer_count += at == w->snap.peer_count;
    w->peers[at] = (uint32_t)number(in, 2);
    w->sent[at] = (uint64_t)number(in, 3);
    w->received[at] = (uint64_t)number(in, 4);
}

static void do_reports(sim *s, sim_worker *w, const words *in)
{
    (void)s;
    (void)in;
    w->snap.report_only = true;
}

/* ----------------------------------------------------------------------------------------------- commands */

typedef struct worker_command {
    const char *name;
    void (*run)(sim *s, sim_worker *w, const words *in);
} worker_command;

static const worker_command worker_commands[] = {
    {"cancel", do_cancel},     {"hello", do_hello},       {"resync", do_resync},   {"double", do_double},
    {"reborn", do_reborn},     {"gone", do_gone},         {"silent", do_silent},   {"beat", do_beat},
    {"impostor", do_impostor}, {"bye", do_bye},           {"new", do_new},         {"split", do_split},
    {"dup", do_dup},           {"again", do_again},       {"token", do_token},     {"ready", do_ready},
    {"close", do_close},       {"fail", do_fail},         {"plan", do_plan},       {"next", do_next},
    {"loaded", do_loaded},     {"ran", do_ran},           {"unplan", do_unplan},   {"table", do_table},
    {"room", do_room},         {"served", do_served},     {"untable", do_untable}, {"stuck", do_stuck},
    {"runs", do_runs},         {"started", do_started},   {"moved", do_moved},     {"counted", do_counted},
    {"reports", do_reports},   {"disagree", do_disagree}, {"lost", do_lost},       {"doing", do_doing},
};

static bool run_for_workers(sim *s, const words *in)
{
    for (size_t i = 0; i < sizeof(worker_commands) / sizeof(worker_commands[0]); i++) {
        if (strcmp(worker_commands[i].name, in->at[0]) != 0)
            continue;
        char list[256];
        (void)snprintf(list, sizeof(list), "%s", word(in, 1));
        char *save = NULL;
        for (char *name = strtok_r(list, ",", &save); name != NULL; name = strtok_r(NULL, ",", &save)) {
            sim_worker *w = sim_worker_named(s, name);
            if (w == NULL)
                return false;
            worker_commands[i].run(s, w, in);
        }
        return true;
    }
    return false;
}

static bool run_global(sim *s, const words *in)
{
    const char *name = in->at[0];
    psd_event stop = {.type = PSD_EVENT_STOP};
    if (strcmp(name, "job") == 0)
        copy_name(s->job, word(in, 1));
    else if (strcmp(name, "manual") == 0 || strcmp(name, "auto") == 0)
        s->answers = name[0] == 'a';
    else if (strcmp(name, "view") == 0)
        sim_ask(s, word(in, 1), in->count == 3 ? in->at[2] : "", in->count > 3 ? (uint64_t)number(in, 2) : 0,
                (uint32_t)number(in, 3));
    else if (strcmp(name, "stop") == 0)
        sim_ask(s, "stop", word(in, 1), 0, 0);
    else if (strcmp(name, "forget") == 0)
        sim_forget(s);
    else if (strcmp(name, "shutdown") == 0)
        sim_step(s, &stop);
    else if (strcmp(name, "advance") == 0)
        sim_advance(s, number(in, 1) * PSD_NS_PER_MS);
    else if (strcmp(name, "replay") == 0 || strcmp(name, "restart") == 0)
        sim_restart(s, name[2] == 'p');
    else
        return false;
    return true;
}

bool script_run(sim *s, char *line)
{
    words in = {0};
    line += strspn(line, " ");
    const char *rest = line;
    for (int i = 0; i < 3 && rest != NULL; i++) {
        rest = strchr(rest, ' ');
        rest = rest == NULL ? NULL : rest + 1;
    }
    (void)snprintf(in.rest, sizeof(in.rest), "%s", rest == NULL ? "" : rest);
    char *save = NULL;
    for (char *t = strtok_r(line, " ", &save); t != NULL && in.count < WORDS; t = strtok_r(NULL, " ", &save))
        in.at[in.count++] = t;
    return in.count > 0 && (run_for_workers(s, &in) || run_global(s, &in));
}
