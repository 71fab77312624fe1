/* Own expressions, globs, placements, boxes. */
#include "common/layout.h"

#include <string.h>

#include "tests/lib/psd_test.h"

static int64_t value_of(const char *text)
{
    const psd_own_vars vars = {.layer = 23, .expert = 100, .n = 8};
    char why[512];
    int64_t value = -1;
    return psd_own_value(text, &vars, &value, why, sizeof why) ? value : -1;
}

PSD_TEST(layout, own_expressions_have_the_precedence_of_c)
{
    cr_assert_eq(value_of("7"), 7);
    cr_assert_eq(value_of("layer/20"), 1);
    cr_assert_eq(value_of("expert%24/3"), 1);
    cr_assert_eq(value_of("n-1"), 7);
    cr_assert_eq(value_of("1+2*3"), 7);
    cr_assert_eq(value_of("(1+2)*3"), 9);
    cr_assert_eq(value_of("20-5-3"), 12);
    cr_assert_eq(value_of("100/10/5"), 2);
    cr_assert_eq(value_of(" ( layer + expert ) % n "), 3);
}

PSD_TEST(layout, wrong_own_expressions_say_why)
{
    const struct {
        const char *text, *says;
    } cases[] = {
        {"", "a value is missing"},
        {"1+", "a value is missing"},
        {"(1", "a ) is missing"},
        {"1)", "something after its end"},
        {"rank", "only layer, expert"},
        {"1/0", "division by zero"},
        {"3%(n-8)", "division by zero"},
        {"1-2+5", "negative"},
        {"9999999999999999999", "too large"},
        {"4611686018427387904*2", "too large"},
        {"-1", "a value is missing"},
        {"1 2", "something after"},
    };
    const psd_own_vars vars = {.layer = 1, .expert = 1, .n = 8};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[512] = "";
        int64_t value = 77;
        cr_assert_not(psd_own_value(cases[i].text, &vars, &value, why, sizeof why), "%s", cases[i].text);
        cr_assert_neq(strstr(why, cases[i].says), NULL, "%s: %s", cases[i].text, why);
        cr_assert_eq(value, 77, "written only on success");
    }
    char deep[PSD_MAX_OWN], why[512];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    cr_assert_not(psd_own_check(deep, why, sizeof why));
    cr_assert_neq(strstr(why, "too many parentheses"), NULL, "%s", why);
    cr_assert(psd_own_check("layer/(n-8)", why, sizeof why), "its values are not known yet");
}

PSD_TEST(layout, globs)
{
    cr_assert(psd_glob_match("*", ""));
    cr_assert(psd_glob_match("*.norm.weight", "model.layers.3.norm.weight"));
    cr_assert(psd_glob_match("a*b*c", "a.b.b.c"));
    cr_assert(psd_glob_match("a?c", "abc"));
    cr_assert(psd_glob_match("a?c", "a\xc3\xa9"
                                    "c"),
              "a character of two bytes");
    cr_assert_not(psd_glob_match("a?c", "ac"));
    cr_assert_not(psd_glob_match("a*b", "a.b.c"));
    cr_assert_not(psd_glob_match("", "a"));
    cr_assert(psd_glob_match("[a]", "[a]"), "no other character is special");
}

PSD_TEST(layout, chunks_are_as_torch_cuts_them)
{
    const struct {
        int64_t length;
        int32_t n;
        int64_t sizes[5];
    } cases[] = {{10, 4, {3, 3, 3, 1}}, {9, 4, {3, 3, 3, 0}}, {3, 5, {1, 1, 1, 0, 0}}, {0, 2, {0, 0}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int64_t end = 0;
        for (int32_t i = 0; i < cases[c].n; i++) {
            int64_t lo = -1, hi = -1;
            psd_layout_chunk(cases[c].length, cases[c].n, i, &lo, &hi);
            cr_assert_eq(hi - lo, cases[c].sizes[i]);
            cr_assert(lo == end || hi == lo);
            end = hi;
        }
        cr_assert_eq(end, cases[c].length);
    }
}

/* Mesh {pp: 2, x: 2, y: 2}, first rank 10. */
static psd_layout mesh(psd_layout_rule *rules, uint32_t count)
{
    psd_layout l = {.group = "g", .first_rank = 10, .axis_count = 3, .rules = rules, .rule_count = count};
    const char *names[] = {"pp", "x", "y"};
    for (int a = 0; a < 3; a++) {
        strcpy(l.axes[a].name, names[a]);
        l.axes[a].size = 2;
    }
    cr_assert(psd_layout_finish(&l));
    return l;
}

PSD_TEST(layout, later_axes_cut_what_earlier_ones_left)
{
    char all[] = "*";
    psd_layout_rule rule = {.match = all};
    char why[256];
    cr_assert(psd_place_parse("Own(layer)", &rule.place[0], why, sizeof why));
    cr_assert(psd_place_parse("Shard(0)", &rule.place[1], why, sizeof why));
    cr_assert(psd_place_parse("Shard(0)", &rule.place[2], why, sizeof why));
    psd_layout l = mesh(&rule, 1);
    const psd_model_tensor t = {"layers.1.w", PSD_F32, 2, {7, 6}};
    psd_place place[PSD_LAYOUT_AXES];
    cr_assert(psd_layout_place(&l, &t, place, why, sizeof why), "%s", why);
    const int64_t rows[4][2] = {{0, 2}, {2, 4}, {4, 6}, {6, 7}}; /* 7 over 2 and 2 is 4|3, then 2 2|2 1 */
    for (int32_t i = 0; i < 4; i++) {
        psd_box box;
        cr_assert_not(psd_layout_box(&l, place, &t, 10 + i, &box), "layer 1 belongs to the second stage");
        cr_assert(psd_layout_box(&l, place, &t, 14 + i, &box));
        cr_assert_eq(box.lo[0], rows[i][0]);
        cr_assert_eq(box.hi[0], rows[i][1]);
        cr_assert_eq(box.hi[1], 6);
    }
    psd_box box;
    cr_assert_not(psd_layout_box(&l, place, &t, 18, &box), "no rank of the group");
}

PSD_TEST(layout, placements_that_cannot_be_name_tensor_group_and_axis)
{
    char only[] = "layers.*";
    psd_layout_rule rule = {.match = only};
    psd_place place[PSD_LAYOUT_AXES];
    char why[1024];
    psd_layout l = mesh(&rule, 1);
    const psd_model_tensor scalar = {"layers.scale", PSD_F32, 0, {0}}, deep = {"layers.9.w", PSD_F32, 1, {4}},
                           other = {"head", PSD_F32, 1, {4}};
    cr_assert_not(psd_layout_place(&l, &other, place, why, sizeof why));
    cr_assert_neq(strstr(why, "group g: no rule matches tensor head"), NULL, "%s", why);
    cr_assert(psd_place_parse("Shard(0)", &rule.place[1], why, sizeof why));
    cr_assert_not(psd_layout_place(&l, &scalar, place, why, sizeof why));
    cr_assert_neq(strstr(why, "tensor layers.scale has 0 dimensions, so Shard(0) on axis x"), NULL, "%s",
                  why);
    cr_assert(psd_place_parse("Own(layer)", &rule.place[1], why, sizeof why));
    cr_assert_not(psd_layout_place(&l, &deep, place, why, sizeof why));
    cr_assert_neq(strstr(why, "tensor layers.9.w on axis x: Own(layer) is 9, and the axis has 2"), NULL, "%s",
                  why);
    cr_assert_not(psd_layout_place(&l, &scalar, place, why, sizeof why));
    cr_assert_neq(strstr(why, "no number for layer"), NULL, "%s", why);
    const char *wrong[] = {"Shard", "Shard()",     "Shard(8)",     "Shard(-1)", "Own()",
                           "Own(1", "replicate()", "Replicate(0)", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        cr_assert_not(psd_place_parse(wrong[i], &rule.place[0], why, sizeof why), "%s", wrong[i]);
}
