/* The handles of tables and plans: stale after removal, kept while in use, reused. */
#include "tests/lib/psd_test.h"
#include "worker/handles.h"

PSD_TEST(handles, life)
{
    psd_handles h;
    int a = 0, b = 0;
    uint32_t index, generation, second, second_generation;
    void *item = NULL;
    cr_assert_eq(psd_handles_init(&h), PSD_OK);
    cr_assert_null(psd_handles_acquire(&h, 0, 0));
    cr_assert_eq(psd_handles_add(&h, &a, &index, &generation), PSD_OK);
    cr_assert_eq(psd_handles_add(&h, &b, &second, &second_generation), PSD_OK);
    cr_assert_neq(index, second);
    cr_assert_null(psd_handles_acquire(&h, index, generation + 1));
    cr_assert_null(psd_handles_acquire(&h, 77, generation));

    cr_assert_eq(psd_handles_acquire(&h, index, generation), &a);
    cr_assert_eq(psd_handles_remove(&h, index, generation, &item), PSD_ERR_INVAL);
    cr_assert_null(item);
    psd_handles_release(&h, index);
    cr_assert_eq(psd_handles_remove(&h, index, generation, &item), PSD_OK);
    cr_assert_eq(item, &a);
    cr_assert_eq(psd_handles_remove(&h, index, generation, &item), PSD_ERR_STALE);
    cr_assert_null(psd_handles_acquire(&h, index, generation));

    /* The slot comes back under another generation. */
    uint32_t again, again_generation;
    cr_assert_eq(psd_handles_add(&h, &a, &again, &again_generation), PSD_OK);
    cr_assert_eq(again, index);
    cr_assert_neq(again_generation, generation);
    cr_assert_not_null(psd_handles_pop(&h));
    cr_assert_not_null(psd_handles_pop(&h));
    cr_assert_null(psd_handles_pop(&h));
    psd_handles_destroy(&h);
}
