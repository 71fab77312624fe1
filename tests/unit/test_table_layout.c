/* How parameters are cut over servers. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/psd_test.h"
#include "worker/table_layout.h"

#define PARAMS 5

static const int64_t counts[PARAMS] = {7, 0, 1, 10, 64};

static void fill(psd_param *params)
{
    for (int p = 0; p < PARAMS; p++) {
        params[p] = (psd_param){.dtype = PSD_F32, .count = counts[p]};
        snprintf(params[p].name, sizeof(params[p].name), "p%d", p);
    }
}

/* The design's formula: server s of S holds [min(s*c, n), min((s+1)*c, n)), c = ceil(n / S). */
static size_t expected_shard(uint32_t s, uint32_t servers)
{
    int64_t sum = 0;
    for (int p = 0; p < PARAMS; p++) {
        int64_t n = counts[p];
        int64_t c = (n + servers - 1) / servers;
        int64_t begin = s * c < n ? s * c : n;
        int64_t end = (s + 1) * c < n ? (s + 1) * c : n;
        sum += end - begin;
    }
    return (size_t)sum;
}

PSD_TEST(table_layout, packs_and_unpacks)
{
    psd_param params[PARAMS];
    fill(params);
    for (uint32_t servers = 1; servers <= 9; servers++) {
        table_layout layout;
        char why[256];
        float in[PARAMS][64], out[PARAMS][64], packed[82];
        const float *from[PARAMS];
        float *to[PARAMS];
        cr_assert_eq(table_layout_make(params, PARAMS, servers, &layout, why, sizeof(why)), PSD_OK, "%s",
                     why);
        cr_assert_eq(layout.total, (size_t)82);
        cr_assert_eq(layout.offsets[servers], (size_t)82);
        for (uint32_t s = 0; s < servers; s++)
            cr_assert_eq(table_shard_count(&layout, s), expected_shard(s, servers));
        for (int p = 0; p < PARAMS; p++) {
            from[p] = in[p];
            to[p] = out[p];
            for (int i = 0; i < 64; i++) {
                in[p][i] = (float)(p * 100 + i);
                out[p][i] = -1;
            }
        }
        table_layout_pack(&layout, from, packed);
        cr_assert_eq(packed[0], 0.0f);
        table_layout_unpack(&layout, packed, to);
        for (int p = 0; p < PARAMS; p++) {
            for (int i = 0; i < 64; i++)
                cr_assert_eq(out[p][i], i < counts[p] ? in[p][i] : -1.0f);
        }
        table_layout_free(&layout);
    }
}

/* A shard is its slices one behind the other. */
PSD_TEST(table_layout, shard_order)
{
    psd_param params[2] = {{.name = "a", .dtype = PSD_F32, .count = 3},
                           {.name = "b", .dtype = PSD_F32, .count = 2}};
    table_layout layout;
    char why[256];
    const float a[3] = {1, 2, 3}, b[2] = {4, 5};
    const float *from[2] = {a, b};
    const float expected[5] = {1, 2, 4, 3, 5};
    float packed[5];
    cr_assert_eq(table_layout_make(params, 2, 2, &layout, why, sizeof(why)), PSD_OK);
    table_layout_pack(&layout, from, packed);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(packed[i], expected[i]);
    table_layout_free(&layout);
}

PSD_TEST(table_layout, refuses_bad_parameters)
{
    psd_param param = {.name = "w", .dtype = PSD_F64, .count = 4};
    table_layout layout;
    char why[256];
    cr_assert_eq(table_layout_make(&param, 1, 2, &layout, why, sizeof(why)), PSD_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(why, "\"w\" is f64"));
    param.dtype = PSD_F32;
    param.count = -1;
    cr_assert_eq(table_layout_make(&param, 1, 2, &layout, why, sizeof(why)), PSD_ERR_LIMIT);
    param.count = INT64_MAX;
    cr_assert_eq(table_layout_make(&param, 1, 2, &layout, why, sizeof(why)), PSD_ERR_LIMIT);
}
