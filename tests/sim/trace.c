/* Messages and answers as text, stable from run to run. */
#include <inttypes.h>
#include <string.h>

#include "common/conf.h"
#include "common/status.h"
#include "common/tensor.h"
#include "tests/sim/sim.h"

static void add_ranks(const uint32_t *ranks, uint32_t count, char *out, size_t bytes)
{
    if (ranks == NULL) {
        psd_append(out, bytes, "0..%u", count - 1);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        psd_append(out, bytes, "%s%u", i == 0 ? "" : ",", ranks[i]);
}

static void trace_opened(const psd_msg_group_opened *o, char *out, size_t bytes)
{
    if (o->group == 0) {
        psd_append(out, bytes, " none");
        return;
    }
    psd_append(out, bytes, " group %u epoch %" PRIu64 " members ", o->group, o->epoch);
    add_ranks(o->members, o->count, out, bytes);
    psd_append(out, bytes, " at ");
    for (uint32_t i = 0; i < o->count && i < 4; i++)
        psd_append(out, bytes, "%s%s", i == 0 ? "" : ",", o->addresses[i]);
    psd_append(out, bytes, " token %u", o->token_bytes);
}

static void trace_steps(const psd_msg_plan_steps *p, char *out, size_t bytes)
{
    psd_append(out, bytes, " plan %u chunk %u of %u rounds %u:", p->plan, p->chunk + 1, p->chunks, p->rounds);
    for (uint32_t i = 0; i < p->count && i < 4; i++)
        psd_append(out, bytes, " %s%u@%" PRIu64 "+%" PRIu64, p->is_send[i] ? "to" : "from", p->peer[i],
                   p->offset[i], p->bytes[i]);
    if (p->count > 4)
        psd_append(out, bytes, " and %u more", p->count - 4);
}

static void trace_table(const psd_msg_table_open *t, char *out, size_t bytes)
{
    psd_append(out, bytes, " table %u %s params %u servers ", t->table, t->spec.name, t->spec.param_count);
    add_ranks(t->servers, t->server_count, out, bytes);
    psd_append(out, bytes, " trainers ");
    add_ranks(t->trainers, t->trainer_count, out, bytes);
}

static void trace_body(const psd_msg *msg, char *out, size_t bytes)
{
    switch (msg->type) {
    case PSD_MSG_WAITING:
        psd_append(out, bytes, " %s", msg->u.waiting.text);
        break;
    case PSD_MSG_WELCOME:
        psd_append(out, bytes, " rank %d of %d epoch %" PRIu64 " world group %u", msg->u.welcome.rank,
                   msg->u.welcome.world, msg->u.welcome.epoch, msg->u.welcome.world_group);
        break;
    case PSD_MSG_REFUSE:
        psd_append(out, bytes, " %s: %s", psd_status_name(msg->u.refuse.status), msg->u.refuse.text);
        break;
    case PSD_MSG_GROUP_ASK_TOKEN:
        psd_append(out, bytes, " group %u", msg->u.group_token.group);
        break;
    case PSD_MSG_GROUP_OPENED:
        trace_opened(&msg->u.group_opened, out, bytes);
        break;
    case PSD_MSG_GROUP_GO:
        psd_append(out, bytes, " group %u", msg->u.group.group);
        break;
    case PSD_MSG_ABORT:
        psd_append(out, bytes, " group %u epoch %" PRIu64 " culprit %d %s: %s", msg->u.abort.group,
                   msg->u.abort.epoch, msg->u.abort.culprit, psd_status_name(msg->u.abort.status),
                   msg->u.abort.text);
        break;
    case PSD_MSG_PLAN_STEPS:
        trace_steps(&msg->u.plan_steps, out, bytes);
        break;
    case PSD_MSG_PLAN_GO:
        psd_append(out, bytes, " plan %u", msg->u.plan.plan);
        break;
    case PSD_MSG_TABLE_ASSIGN:
    case PSD_MSG_TABLE_OPENED:
        trace_table(&msg->u.table_open, out, bytes);
        break;
    case PSD_MSG_TABLE_FREE:
        psd_append(out, bytes, " table %u", msg->u.table.table);
        break;
    case PSD_MSG_SNAPSHOT_ASK:
        psd_append(out, bytes, " round %" PRIu64, msg->u.snapshot.round);
        break;
    case PSD_MSG_STOP:
        psd_append(out, bytes, " %s", msg->u.stop.text);
        break;
    default:
        break;
    }
}

void trace_msg(const psd_msg *msg, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s", psd_msg_name(msg->type));
    trace_body(msg, out, bytes);
}

/* What heartbeats and progress brought, and ages, are not in a journal. */
static bool is_durable(const psd_msg_reply *reply, uint32_t column)
{
    static const char *const volatile_columns[] = {"runs",  "clock", "pushes",
                                                   "pulls", "comms", "comm_budget"};
    const psd_column *c = &reply->columns[column];
    bool ranks_epoch = strcmp(c->name, "epoch") == 0 && strcmp(reply->columns[1].name, "rank") == 0;
    for (size_t i = 0; i < sizeof(volatile_columns) / sizeof(volatile_columns[0]); i++)
        if (strcmp(c->name, volatile_columns[i]) == 0)
            return false;
    return c->type != PSD_CELL_NS && c->type != PSD_CELL_BYTES && !ranks_epoch;
}

void trace_reply(const psd_msg_reply *reply, bool durable, FILE *out)
{
    if (reply->text[0] != 0 || reply->status != PSD_OK)
        (void)fprintf(out, "  %s: %s\n", psd_status_name(reply->status), reply->text);
    for (uint32_t row = 0; row < reply->row_count; row++) {
        (void)fprintf(out, "  |");
        for (uint32_t column = 0; column < reply->column_count; column++) {
            const psd_cell *cell = &reply->cells[row * reply->column_count + column];
            const psd_column *c = &reply->columns[column];
            if (durable && !is_durable(reply, column))
                continue;
            if (c->type == PSD_CELL_TEXT)
                (void)fprintf(out, " %s=%s", c->name, cell->text);
            else if (cell->integer < 0)
                (void)fprintf(out, " %s=-", c->name);
            else if (c->type == PSD_CELL_NS)
                (void)fprintf(out, " %s=%" PRId64 "ms", c->name, cell->integer / PSD_NS_PER_MS);
            else
                (void)fprintf(out, " %s=%" PRId64, c->name, cell->integer);
        }
        (void)fprintf(out, "\n");
    }
    if (reply->next != 0 && !durable)
        (void)fprintf(out, "  | more after %" PRIu64 "\n", reply->next);
}
