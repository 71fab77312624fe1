/* psctl plan, offline: what it prints, its JSON, its export, and what it says to bad input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

enum { DEADLINE_MS = 60000 };
#define MODEL "tests/data/plan/model.json"
#define PAIR  "tests/data/plan/pair.json"

/* psctl plan with up to 8 more arguments. */
static int plan(char **text, const char *const *more)
{
    const char *argv[12] = {test_path("bin/psctl"), "plan"};
    for (int i = 0; more[i] != NULL; i++)
        argv[2 + i] = more[i];
    return test_run(argv, NULL, DEADLINE_MS, text);
}
#define PLAN(text, ...) plan(text, (const char *const[]){__VA_ARGS__, NULL})

static json_t *plan_json(const char *const *more)
{
    char *text = NULL;
    cr_assert_eq(plan(&text, more), 0, "%s", text);
    json_t *o = json_loads(text, 0, NULL);
    cr_assert_neq(o, NULL, "%s", text);
    free(text);
    return o;
}

static int64_t number(const json_t *o, const char *key)
{
    cr_assert(json_is_number(json_object_get(o, key)), "%s", key);
    return (int64_t)json_number_value(json_object_get(o, key));
}

/* The figures of the reference for this pair: 9 ranks, rank 3 in both groups. */
PSD_TEST(plan, prints_the_bounds_of_the_example)
{
    json_t *o = plan_json((const char *const[]){"--model", MODEL, "--pair", PAIR, "--json", NULL});
    cr_assert_eq(number(o, "ranks"), 9);
    cr_assert_eq(number(o, "tensors"), 6);
    cr_assert_eq(number(o, "atoms"), 19);
    cr_assert_eq(number(o, "deliveries"), 47);
    cr_assert_eq(number(o, "t_in"), 148);
    cr_assert_eq(number(o, "t_out"), 274);
    cr_assert_eq(number(o, "t_star"), 274);
    cr_assert_eq(number(o, "load"), 274);
    cr_assert_lt(json_number_value(json_object_get(o, "round_ratio")), 1.05);
    cr_assert_gt(number(o, "rounds"), 0);
    cr_assert_gt(number(o, "steps"), 0);
    cr_assert_geq(json_number_value(json_object_get(o, "seconds")), 0);
    cr_assert_eq(number(o, "bytes") + number(o, "local_bytes"), 2 * (160 + 84 + 84) + 6 * (10 + 10 + 8));
    json_decref(o);
    o = plan_json(
        (const char *const[]){"--model", MODEL, "--pair", PAIR, "--forward", "always", "--json", NULL});
    cr_assert(json_is_true(json_object_get(o, "forward")));
    cr_assert_eq(number(o, "t_star"), 148);
    json_decref(o);
}

PSD_TEST(plan, people_see_ratios_and_the_bottleneck)
{
    char *text = NULL;
    cr_assert_eq(PLAN(&text, "--model", MODEL, "--pair", PAIR, "--explain"), 0, "%s", text);
    const char *const said[] = {"ranks        9 (train 0-3 to infer 3-8)",
                                "load_ratio   1.0000",
                                "rank 0 sends",
                                "so sending is the bottleneck",
                                "embed.weight",
                                "rank 0 (train: pp 0, tp 0)"};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        cr_assert_neq(strstr(text, said[i]), NULL, "%s: %s", said[i], text);
    free(text);
}

/* Sums what the steps bring to each rank; with boxes and offsets within the shards. */
PSD_TEST(plan, exports_steps_that_add_up)
{
    char path[] = "/tmp/psd-test-plan-XXXXXX", line[1024];
    int fd = mkstemp(path);
    char *text = NULL;
    cr_assert_eq(PLAN(&text, "--model", MODEL, "--pair", PAIR, "--export", path, "--json"), 0, "%s", text);
    json_t *o = json_loads(text, 0, NULL);
    FILE *in = fdopen(fd, "r"), *now = fopen(path, "r");
    fclose(in);
    int64_t bytes = 0;
    int steps = 0;
    cr_assert_neq(fgets(line, sizeof line, now), NULL);
    cr_assert_str_eq(line, "{\"plan\":{\"pair\":\"example\",\"forward\":false}}\n");
    while (fgets(line, sizeof line, now) != NULL) {
        json_t *step = json_loads(line, 0, NULL);
        cr_assert_neq(step, NULL, "%s", line);
        cr_assert_neq(number(step, "src"), number(step, "dst"));
        cr_assert(json_is_string(json_object_get(step, "tensor")));
        cr_assert_str_eq(json_string_value(json_object_get(step, "from")), "src");
        bytes += number(step, "bytes");
        steps++;
        json_decref(step);
    }
    fclose(now);
    cr_assert_eq(bytes, number(o, "bytes"));
    cr_assert_geq(steps, number(o, "pieces"));
    json_decref(o);
    free(text);
    unlink(path);
    cr_assert_eq(PLAN(&text, "--model", MODEL, "--pair", PAIR, "--export", "/dev/full"), 1);
    cr_assert_neq(strstr(text, "cannot write /dev/full"), NULL, "%s", text);
    free(text);
    struct stat st;
    cr_assert(stat("/dev/full", &st) == 0 && S_ISCHR(st.st_mode), "a device stays a device");
    cr_assert_eq(PLAN(&text, "--model", MODEL, "--pair", PAIR, "--export", "/nowhere/steps"), 1);
    cr_assert_neq(strstr(text, "cannot write /nowhere/steps"), NULL, "%s", text);
    free(text);
}

PSD_TEST(plan, says_what_is_wrong_with_its_arguments)
{
    const struct {
        const char *more[8], *says;
        int code;
    } cases[] = {
        {{"--pair", PAIR}, "plan needs --model", 2},
        {{"--model", MODEL}, "plan needs --pair FILE, or --from FILE and --to FILE", 2},
        {{"--model", MODEL, "--from", PAIR}, "--from FILE and --to FILE", 2},
        {{"--model", MODEL, "--pair", PAIR, "--from", PAIR}, "not both", 2},
        {{"--model", MODEL, "--pair", PAIR, "--forward", "maybe"}, "auto, never or always, not maybe", 2},
        {{"--model", MODEL, "--pair", PAIR, "--froward"}, "--froward", 2},
        {{"--model", MODEL, "--pair", PAIR, "more"}, "what is more?", 2},
        {{"--model"}, "--model", 2},
        {{"--model", "/nowhere", "--pair", PAIR}, "cannot be opened", 1},
        {{"--model", MODEL, "--pair", MODEL}, "a pair has no \"model\"", 1},
        {{"--model", PAIR, "--pair", PAIR}, "neither a manifest", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = NULL;
        cr_assert_eq(plan(&text, cases[i].more), cases[i].code, "%s: %s", cases[i].says, text);
        cr_assert_neq(strstr(text, cases[i].says), NULL, "%s: %s", cases[i].says, text);
        cr_assert_eq(strncmp(text, "psctl: ", 7), 0, "%s", text);
        free(text);
    }
}

/* With the reference pairs beside the project, if they are there: every pair within its ratios, and the bounds equal. */
PSD_TEST_WITH(plan, reference_pairs_are_at_their_bounds, .timeout = 300)
{
    const char *shared = "../shared/plans";
    char path[256], model[256], pair[256];
    snprintf(path, sizeof path, "%s/bounds.json", shared);
    json_t *all = json_load_file(path, 0, NULL), *b = NULL;
    size_t i = 0;
    if (all == NULL) {
        fprintf(stderr, "skip: reference_pairs_are_at_their_bounds: no %s\n", path);
        cr_skip_test("no reference pairs beside the project");
    }
    json_array_foreach(all, i, b)
    {
        const char *name = json_string_value(json_object_get(b, "pair"));
        snprintf(model, sizeof model, "%s/manifests/%s.json", shared,
                 json_string_value(json_object_get(b, "manifest")));
        snprintf(pair, sizeof pair, "%s/layouts/%s.json", shared, name);
        for (int forward = 0; forward < 2; forward++) {
            json_t *o = plan_json((const char *const[]){"--model", model, "--pair", pair, "--forward",
                                                        forward ? "auto" : "never", "--json", NULL});
            cr_assert_eq(number(o, "t_in"), number(b, "T_in"), "%s", name);
            cr_assert_eq(number(o, "t_out"), number(b, "T_out"), "%s", name);
            cr_assert_eq(number(o, "t_out_forward"), number(b, "T_out_forward"), "%s", name);
            cr_assert_eq(number(o, "atoms"), number(b, "atoms"), "%s", name);
            cr_assert_eq(number(o, "deliveries"), number(b, "deliveries"), "%s", name);
            cr_assert_eq(number(o, "bytes"), number(b, "moved_bytes"), "%s", name);
            cr_assert_eq(number(o, "local_bytes"), number(b, "local_bytes"), "%s", name);
            cr_assert_leq(json_number_value(json_object_get(o, "load_ratio")), 1.01, "%s", name);
            cr_assert_leq(json_number_value(json_object_get(o, "round_ratio")), 1.05, "%s", name);
            json_decref(o);
        }
    }
    json_decref(all);
}
