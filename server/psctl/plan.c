#include "server/psctl/plan.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/clock.h"
#include "common/conf.h"
#include "common/tensor.h"
#include "server/model/model.h"
#include "server/psctl/text.h"

static const char details[] =
    "Compiles the transfer of a model's tensors from one layout to another into rounds of messages that "
    "cannot\n"
    "deadlock, proves it, and prints how far it is from the lower bound T*: load_ratio is the largest load "
    "of a rank\n"
    "over T*, round_ratio the sum over the rounds of the largest message over T*. Needs no psd and no GPU.\n"
    "\n"
    "A model is a manifest, a .safetensors file (only its header is read) or a Hugging Face index of such "
    "files.\n"
    "server/LAYOUT.md in psd's sources defines manifests, layouts, pairs and steps.\n"
    "\n"
    "Options:\n"
    "  --model FILE            the model's tensors\n"
    "  --pair FILE             both layouts, as \"src\" and \"dst\"\n"
    "  --from FILE, --to FILE  the two layouts apart\n"
    "  --forward WHEN          auto, never or always: may receivers send on what they got? auto: if that "
    "makes\n"
    "                          the largest load a tenth smaller (auto)\n"
    "  --explain               which ranks are the bottleneck, and why\n"
    "  --export FILE           write the steps, one JSON object a line; - is standard output\n"
    "  --json                  print one JSON object\n";

typedef struct arguments {
    const char *model;
    const char *pair;
    const char *from;
    const char *to;
    const char *export_path;
    reshard_forwarding forwarding;
    bool explain;
    bool json;
} arguments;

enum { STAGES = 5 };
static const char *const stages[STAGES] = {"reading", "compiling", "checking", "bounding", "writing"};

/* --------------------------------------------------------------------------------------------------- arguments */

static bool parse_forwarding(const char *text, reshard_forwarding *out)
{
    static const char *const names[] = {"never", "always", "auto"};
    static const reshard_forwarding values[] = {RESHARD_DIRECT, RESHARD_FORWARD, RESHARD_AUTO};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = values[i];
            return true;
        }
    }
    char echo[PSD_ECHO_BYTES];
    psctl_error("--forward is auto, never or always, not %s", psd_echo(text, echo, sizeof echo));
    return false;
}

static bool check_arguments(const arguments *a, int argc, char **argv)
{
    char echo[PSD_ECHO_BYTES];
    if (optind < argc)
        psctl_error("plan: what is %s? (see: psctl help plan)", psd_echo(argv[optind], echo, sizeof echo));
    else if (a->model == NULL)
        psctl_error("plan needs --model FILE (see: psctl help plan)");
    else if (a->pair != NULL && (a->from != NULL || a->to != NULL))
        psctl_error("plan: give --pair, or --from and --to, not both");
    else if (a->pair == NULL && (a->from == NULL || a->to == NULL))
        psctl_error("plan needs --pair FILE, or --from FILE and --to FILE");
    else if (a->json && a->explain)
        psctl_error("plan: --explain is for people; with --json the bounds are in the object");
    else if (a->export_path != NULL && strcmp(a->export_path, "-") == 0 && (a->json || a->explain))
        psctl_error("plan: with --export - nothing else is printed; write the steps to a file");
    else
        return true;
    return false;
}

/* PSCTL_FINE: go on; else the exit code, with *help if only that was asked for. */
static psctl_exit parse(arguments *a, int argc, char **argv, bool *help)
{
    static const struct option options[] = {
        {"model", required_argument, NULL, 1},   {"pair", required_argument, NULL, 2},
        {"from", required_argument, NULL, 3},    {"to", required_argument, NULL, 4},
        {"forward", required_argument, NULL, 5}, {"explain", no_argument, NULL, 6},
        {"export", required_argument, NULL, 7},  {"json", no_argument, NULL, 8},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
    const char **texts[] = {NULL, &a->model, &a->pair, &a->from, &a->to, NULL, NULL, &a->export_path};
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        char text[256];
        switch (c) {
        case 'h':
            *help = true;
            return PSCTL_FINE;
        case 5:
            if (!parse_forwarding(optarg, &a->forwarding))
                return PSCTL_USAGE;
            break;
        case 6:
            a->explain = true;
            break;
        case 8:
            a->json = true;
            break;
        case '?':
        case ':':
            psctl_error("plan: %s (see: psctl help plan)",
                        psd_option_error(c, optopt, argv[optind - 1], text, sizeof text));
            return PSCTL_USAGE;
        default:
            *texts[c] = optarg;
        }
    }
    return check_arguments(a, argc, argv) ? PSCTL_FINE : PSCTL_USAGE;
}

/* ---------------------------------------------------------------------------------------------------- printing */

static double ratio(int64_t value, int64_t bound)
{
    return bound == 0 ? 1.0 : (double)value / (double)bound;
}

void psctl_plan_print(const psctl_plan_result *r)
{
    const reshard_plan *p = &r->plan;
    char a[32], b[32];
    int64_t t_star = reshard_t_star(&r->bounds, p->forwards);
    if (r->name[0] != '\0')
        printf("pair         %s\n", r->name);
    printf("ranks        %" PRId32 " (%s %" PRId32 "-%" PRId32 " to %s %" PRId32 "-%" PRId32 ")\n", r->ranks,
           r->input.src->group, r->input.src->first_rank, r->input.src->first_rank + r->input.src->ranks - 1,
           r->input.dst->group, r->input.dst->first_rank, r->input.dst->first_rank + r->input.dst->ranks - 1);
    printf("tensors      %" PRIu32 ", %s\n", r->input.model->count,
           psd_format_bytes(r->input.model->bytes, a, sizeof a));
    printf("bytes        %" PRId64 " (%s) to move, %s in place already\n", p->bytes,
           psd_format_bytes(p->bytes, a, sizeof a), psd_format_bytes(r->bounds.local, b, sizeof b));
    printf("steps        %" PRIu64 " messages in %" PRIu32 " rounds%s\n", p->message_count, p->rounds,
           p->forwards ? ", receivers forward" : "");
    printf("ingress      %" PRId64 " (%s) at least", r->bounds.in,
           psd_format_bytes(r->bounds.in, a, sizeof a));
    if (r->bounds.in_rank >= 0)
        printf(" for rank %" PRId32, r->bounds.in_rank);
    putchar('\n');
    printf("egress       %" PRId64 " (%s) at least for some rank; %s with forwarding\n", r->bounds.out,
           psd_format_bytes(r->bounds.out, a, sizeof a),
           psd_format_bytes(r->bounds.out_forward, b, sizeof b));
    printf("T*           %" PRId64 " (%s)\n", t_star, psd_format_bytes(t_star, a, sizeof a));
    printf("load_ratio   %.4f (largest load %" PRId64, ratio(p->load, t_star), p->load);
    if (p->busiest >= 0)
        printf(", rank %" PRId32 " %s", p->busiest, p->busiest_sends ? "sends" : "receives");
    printf(")\n");
    printf("round_ratio  %.4f\n", ratio(p->round_time, t_star));
    printf("compiled in  %.3f s, proved in %.3f s\n", r->compile_s, r->check_s);
}

bool psctl_plan_print_json(const psctl_plan_result *r)
{
    const reshard_plan *p = &r->plan;
    const reshard_bounds *b = &r->bounds;
    int64_t t_star = reshard_t_star(b, p->forwards);
    json_t *o = json_pack(
        "{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:i, "
        "s:I, s:f, s:f}",
        "pair", r->name, "ranks", (int)r->ranks, "tensors", (json_int_t)r->input.model->count, "model_bytes",
        (json_int_t)r->input.model->bytes, "bytes", (json_int_t)p->bytes, "local_bytes", (json_int_t)b->local,
        "atoms", (json_int_t)b->atoms, "deliveries", (json_int_t)b->deliveries, "pieces",
        (json_int_t)p->piece_count, "forward", (int)p->forwards, "t_in", (json_int_t)b->in, "t_out",
        (json_int_t)b->out, "t_out_forward", (json_int_t)b->out_forward, "t_star", (json_int_t)t_star, "load",
        (json_int_t)p->load, "round_time", (json_int_t)p->round_time, "load_ratio", ratio(p->load, t_star),
        "round_ratio", ratio(p->round_time, t_star), "rounds", (int)p->rounds, "steps",
        (json_int_t)p->message_count, "seconds", r->compile_s, "check_seconds", r->check_s);
    bool fine = o != NULL && json_dumpf(o, stdout, JSON_REAL_PRECISION(9)) == 0;
    json_decref(o);
    putchar('\n');
    return fine;
}

/* -------------------------------------------------------------------------------------------------------- run */

static int32_t count_ranks(const psd_layout *a, const psd_layout *b)
{
    int32_t lo = a->first_rank > b->first_rank ? a->first_rank : b->first_rank;
    int32_t a_end = a->first_rank + a->ranks, b_end = b->first_rank + b->ranks;
    int32_t hi = a_end < b_end ? a_end : b_end;
    return a->ranks + b->ranks - (hi > lo ? hi - lo : 0);
}

static psd_status read_inputs(const arguments *a, psd_model *model, model_pair *pair, const model_why *why)
{
    psd_status status = model_read(a->model, model, why);
    if (status != PSD_OK)
        return status;
    if (a->pair != NULL)
        return model_read_pair(a->pair, pair, why);
    status = model_read_layout(a->from, &pair->src, why);
    return status == PSD_OK ? model_read_layout(a->to, &pair->dst, why) : status;
}

/* A rule that no tensor meets first is allowed, and more often a slip of the pen. */
static void note_idle_rules(const psd_model *model, const psd_layout *layout)
{
    bool *used = calloc((size_t)layout->rule_count + 1, sizeof *used);
    for (uint32_t t = 0; used != NULL && t < model->count; t++) {
        uint32_t r = 0;
        while (r < layout->rule_count && !psd_glob_match(layout->rules[r].match, model->tensors[t].name))
            r++;
        used[r] = true;
    }
    for (uint32_t r = 0; used != NULL && r < layout->rule_count; r++) {
        if (!used[r])
            psctl_error("note: group %s: rule \"%s\" places no tensor", layout->group,
                        layout->rules[r].match);
    }
    free(used);
}

static psd_status make_plan(const arguments *a, psctl_plan_result *r, char *text, size_t text_bytes)
{
    psd_time_ns begun = psd_now_ns();
    psctl_progress_stage(1);
    psd_status status = reshard_compile(&r->input, a->forwarding, &r->plan, text, text_bytes);
    psd_time_ns compiled = psd_now_ns();
    r->compile_s = (double)(compiled - begun) / 1e9;
    psctl_progress_stage(2);
    if (status == PSD_OK)
        status = reshard_check(&r->input, &r->plan, text, text_bytes);
    r->check_s = (double)(psd_now_ns() - compiled) / 1e9;
    psctl_progress_stage(3);
    if (status == PSD_OK)
        status = reshard_bound(&r->input, &r->bounds, text, text_bytes);
    return status;
}

static psctl_exit show(const arguments *a, const psctl_plan_result *r)
{
    psctl_progress_stage(4);
    bool fine = a->export_path == NULL || psctl_plan_export(r, a->export_path);
    psctl_progress_end();
    if (!fine || (a->export_path != NULL && strcmp(a->export_path, "-") == 0))
        return fine ? PSCTL_FINE : PSCTL_FAILED;
    if (a->json)
        return psctl_plan_print_json(r) ? PSCTL_FINE : PSCTL_FAILED;
    psctl_plan_print(r);
    if (!a->explain)
        return PSCTL_FINE;
    psctl_plan_explain(r);
    note_idle_rules(r->input.model, r->input.src);
    note_idle_rules(r->input.model, r->input.dst);
    return PSCTL_FINE;
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    arguments a = {.forwarding = RESHARD_AUTO};
    psctl_plan_result r = {.name = ""};
    psd_model model = {0};
    model_pair pair = {0};
    char text[2048] = "";
    bool help = false;
    (void)options;
    psctl_exit code = parse(&a, argc + 1, argv - 1, &help);
    if (help)
        psctl_help_command(&psctl_plan);
    if (code != PSCTL_FINE || help)
        return code;
    psctl_progress_start(stages, STAGES);
    psd_status status = read_inputs(&a, &model, &pair, &(model_why){text, sizeof text});
    r.name = pair.name;
    r.input = (reshard_input){&model, &pair.src, &pair.dst};
    if (status == PSD_OK) {
        r.ranks = count_ranks(&pair.src, &pair.dst);
        status = make_plan(&a, &r, text, sizeof text);
    }
    if (status == PSD_OK)
        code = show(&a, &r);
    psctl_progress_end();
    if (status != PSD_OK) {
        psctl_error("%s", text);
        code = PSCTL_FAILED;
    }
    reshard_plan_free(&r.plan);
    reshard_bounds_free(&r.bounds);
    model_pair_free(&pair);
    psd_model_free(&model);
    return code;
}

const psctl_command psctl_plan = {
    .name = "plan",
    .arguments = "--model FILE (--pair FILE | --from FILE --to FILE) [options]",
    .summary = "compile a transfer between two layouts, offline, and print its distance from the bound",
    .details = details,
    .raw = true,
    .run = run,
};
