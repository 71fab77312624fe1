/* The hash map against a plain array, with many removals. */
#include "common/map.h"
#include "tests/lib/psd_test.h"

#define KEYS 512

PSD_TEST(core_map, agrees_with_an_array)
{
    static int values[KEYS];
    void *wanted[KEYS] = {0};
    psd_map map = {0};
    uint64_t state = 42;
    for (int i = 0; i < 100000; i++) {
        state = state * UINT64_C(6364136223846793005) + 1;
        size_t key = (size_t)(state >> 33) % KEYS;
        if ((state >> 60) < 9) {
            cr_assert(psd_map_put(&map, key, &values[i % KEYS]));
            wanted[key] = &values[i % KEYS];
        } else {
            cr_assert_eq(psd_map_remove(&map, key), wanted[key]);
            wanted[key] = NULL;
        }
    }
    size_t count = 0;
    for (size_t key = 0; key < KEYS; key++) {
        cr_assert_eq(psd_map_get(&map, key), wanted[key], "key %zu", key);
        count += wanted[key] != NULL;
    }
    cr_assert_eq(map.count, count);
    psd_map_free(&map);
}

PSD_TEST(core_map, empty_map_has_nothing)
{
    psd_map map = {0};
    cr_assert_null(psd_map_get(&map, 0));
    cr_assert_null(psd_map_remove(&map, UINT64_MAX));
    psd_map_free(&map);
}

PSD_TEST(core_map, any_key_is_allowed)
{
    int x = 0;
    psd_map map = {0};
    cr_assert(psd_map_put(&map, 0, &x));
    cr_assert(psd_map_put(&map, UINT64_MAX, &map));
    cr_assert_eq(psd_map_get(&map, 0), &x);
    cr_assert_eq(psd_map_get(&map, UINT64_MAX), &map);
    psd_map_free(&map);
}
