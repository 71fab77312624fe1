#include "tests/lib/solo.h"

#include <string.h>

#include "tests/lib/psd_test.h"

solo solo_open(fake_psd_hook hook, void *arg)
{
    solo s = {.psd = fake_psd_start(hook, arg)};
    psd_config config;
    psd_config_init(&config);
    config.coordinator = fake_psd_address(s.psd);
    config.rank = 0;
    config.world_size = 1;
    config.backend = "host";
    config.join_timeout_ms = 10000;
    config.timeout_ms = 10000;
    config.pool_limit = 1 << 20;
    cr_assert_eq(psd_init(&config, &s.ctx), PSD_OK, "%s", psd_last_error());
    return s;
}

void solo_close(solo *s, psd_status expected)
{
    cr_assert_eq(psd_finalize(&s->ctx), expected, "%s", psd_last_error());
    cr_assert_null(s->ctx);
    fake_psd_stop(s->psd);
}

void expect_error_text(const char *text)
{
    cr_assert(strstr(psd_last_error(), text) != NULL, "\"%s\" is not in: %s", text, psd_last_error());
}
