#include <string.h>

#include "common/conf.h"
#include "common/psd_types.h"
#include "tests/lib/psd_test.h"

#define SENTINEL INT64_C(-77)

static int64_t i64(const char *text, int64_t min, int64_t max)
{
    int64_t out = SENTINEL;
    bool ok = psd_parse_i64(text, min, max, &out);
    cr_assert(ok || out == SENTINEL, "written on failure: %s", text);
    return out;
}

static int64_t bytes(const char *text)
{
    int64_t out = SENTINEL;
    bool ok = psd_parse_bytes(text, &out);
    cr_assert(ok || out == SENTINEL, "written on failure: %s", text);
    return out;
}

static int64_t ms(const char *text)
{
    int64_t out = SENTINEL;
    bool ok = psd_parse_ms(text, &out);
    cr_assert(ok || out == SENTINEL, "written on failure: %s", text);
    return out;
}

PSD_TEST(conf, integers)
{
    cr_assert_eq(i64("0", -5, 5), 0);
    cr_assert_eq(i64("-5", -5, 5), -5);
    cr_assert_eq(i64("9223372036854775807", INT64_MIN, INT64_MAX), INT64_MAX);
    cr_assert_eq(i64("-9223372036854775808", INT64_MIN, INT64_MAX), INT64_MIN);
    static const char *const bad[] = {"",  " 1",   "+1", "1 ", "1x",  "x",
                                      "-", "0x10", "6",  "-6", "1.0", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(i64(bad[i], -5, 5), SENTINEL, "%s", bad[i]);
}

PSD_TEST(conf, sizes)
{
    cr_assert_eq(bytes("0"), 0);
    cr_assert_eq(bytes("65536"), 65536);
    cr_assert_eq(bytes("64K"), 65536);
    cr_assert_eq(bytes("64k"), 65536);
    cr_assert_eq(bytes("64KiB"), 65536);
    cr_assert_eq(bytes("8B"), 8);
    cr_assert_eq(bytes("1.5M"), 1536 * 1024);
    cr_assert_eq(bytes("2G"), INT64_C(2) << 30);
    cr_assert_eq(bytes("0.5KB"), 512);
    cr_assert_eq(bytes("7P"), INT64_C(7) << 50);
    static const char *const bad[] = {"",
                                      "K",
                                      "-1",
                                      "1.5",
                                      "1..5M",
                                      "1.M",
                                      ".5M",
                                      "1iB",
                                      "1KK",
                                      "1 K",
                                      "9000000P",
                                      "1e3",
                                      "9223372036854775808",
                                      "99999999999999999999G"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(bytes(bad[i]), SENTINEL, "%s", bad[i]);
}

PSD_TEST(conf, durations)
{
    cr_assert_eq(ms("250"), 250);
    cr_assert_eq(ms("250ms"), 250);
    cr_assert_eq(ms("5s"), 5000);
    cr_assert_eq(ms("0.25s"), 250);
    cr_assert_eq(ms("2m"), 120000);
    cr_assert_eq(ms("1h"), 3600000);
    static const char *const bad[] = {"", "s", "5 s", "5x", "-5s", "5S", "1d", "9999999999999999h"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(ms(bad[i]), SENTINEL, "%s", bad[i]);
}

static bool endpoint(const char *text, const char *want_host, int want_port)
{
    char host[64] = "untouched";
    uint16_t port = 9;
    bool ok = psd_parse_endpoint(text, host, sizeof host, &port);
    if (!ok) {
        cr_assert_str_eq(host, "untouched");
        cr_assert_eq(port, 9);
        return false;
    }
    cr_assert_str_eq(host, want_host);
    cr_assert_eq(port, want_port);
    return true;
}

PSD_TEST(conf, endpoints)
{
    cr_assert(endpoint("tcp://127.0.0.1:5577", "127.0.0.1", 5577));
    cr_assert(endpoint("tcp://node-1.example.org:1", "node-1.example.org", 1));
    cr_assert(endpoint("tcp://[::1]:65535", "::1", 65535));
    cr_assert(endpoint("tcp://*:5577", "*", 5577));
    cr_assert(endpoint("tcp://eth0:0", "eth0", 0));
    cr_assert(endpoint("tcp://127.0.0.1:*", "127.0.0.1", 0));
    static const char *const bad[] = {
        "",
        "127.0.0.1:5577",
        "udp://a:1",
        "tcp://",
        "tcp://a",
        "tcp://a:",
        "tcp://:1",
        "tcp://a:65536",
        "tcp://a:-1",
        "tcp://a:1x",
        "tcp://::1:5",
        "tcp://[]:5",
        "tcp://[::1:5",
        "tcp://a b:1",
        "tcp://a@b:1",
        "tcp://a/b:1",
        "tcp://a\n:1",
        "tcp://0123456789012345678901234567890123456789012345678901234567890123:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not(endpoint(bad[i], "", 0), "%s", bad[i]);
}

PSD_TEST(conf, names)
{
    char longest[PSD_MAX_NAME + 1];
    memset(longest, 'a', sizeof longest);
    longest[PSD_MAX_NAME] = '\0';
    cr_assert(psd_name_valid("a"));
    cr_assert(psd_name_valid("Train_1.2-x"));
    cr_assert_not(psd_name_valid(""));
    cr_assert_not(psd_name_valid("a b"));
    cr_assert_not(psd_name_valid("a/b"));
    cr_assert_not(psd_name_valid("\xc3\xa9"));
    cr_assert_not(psd_name_valid(longest));
    longest[PSD_MAX_NAME - 1] = '\0';
    cr_assert(psd_name_valid(longest));
}

static bool utf8(const char *text)
{
    return psd_utf8_valid(text, strlen(text));
}

PSD_TEST(conf, utf8)
{
    cr_assert(utf8(""));
    cr_assert(utf8("plain"));
    cr_assert(utf8(
        "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc3",
                                      "\xc3(",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xe2\x82",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xf0\x9f\x90"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not(utf8(bad[i]), "case %zu", i);
    cr_assert_eq(psd_utf8_prefix("ab\xc3\xa9\xff", 5), 4);
    cr_assert_eq(psd_utf8_prefix("ab\xc3", 3), 2);
    cr_assert(psd_utf8_valid("a\0b", 3));
}

static void assert_bytes(int64_t value, const char *want)
{
    char out[32];
    cr_assert_str_eq(psd_format_bytes(value, out, sizeof out), want);
}

static void assert_ns(int64_t value, const char *want)
{
    char out[32];
    cr_assert_str_eq(psd_format_ns(value, out, sizeof out), want);
}

PSD_TEST(conf, formats)
{
    assert_bytes(0, "0 B");
    assert_bytes(1023, "1023 B");
    assert_bytes(1024, "1 KiB");
    assert_bytes(64 << 20, "64 MiB");
    assert_bytes(1536, "1.5 KiB");
    assert_bytes((1 << 20) - 1, "1 MiB");
    assert_bytes(-2048, "-2 KiB");
    assert_bytes(INT64_MAX, "8 EiB");
    assert_ns(0, "0 ns");
    assert_ns(999, "999 ns");
    assert_ns(1500, "1.5 us");
    assert_ns(250000000, "250 ms");
    assert_ns(1500000000, "1.5 s");
    assert_ns(999999999, "1 s");
    assert_ns(INT64_C(61) * 1000000000, "1m 01s");
    assert_ns(INT64_C(7260) * 1000000000, "2h 01m");
}

static void assert_echo(const char *text, size_t out_bytes, const char *expected)
{
    char out[64];
    memset(out, '#', sizeof out);
    cr_assert_str_eq(psd_echo(text, out, out_bytes), expected, "%s", out);
    cr_assert_lt(strlen(out), out_bytes);
}

PSD_TEST(conf, echo)
{
    assert_echo("", 64, "");
    assert_echo("plain", 64, "plain");
    assert_echo("a\xff\x62", 64, "a\\xffb");
    assert_echo("\xc3\xa9t\xc3\xa9", 64, "\xc3\xa9t\xc3\xa9");
    assert_echo("cut \xc3", 64, "cut \\xc3");
    assert_echo("\033[1mbold\n", 64, "\\x1b[1mbold\\x0a");
    assert_echo("\xc2\x9b", 64, "\\xc2\\x9b");
    assert_echo("12345678", 9, "12345678");
    assert_echo("123456789", 9, "12345...");
    assert_echo("1234\xff", 8, "1234...");
    assert_echo("12345\xff", 8, "1234...");
    assert_echo("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 8, "\xc3\xa9\xc3\xa9...");
}

PSD_TEST(conf, huge_numbers)
{
    cr_assert(psd_number_is_huge("9223372036854775807"));
    cr_assert(psd_number_is_huge("99999999999999999999h"));
    cr_assert_not(psd_number_is_huge("0000000000000000001x"));
    cr_assert_not(psd_number_is_huge("soon"));
    cr_assert_not(psd_number_is_huge("86400000"));
}

PSD_TEST(conf, append_cuts)
{
    char out[8] = "abc";
    psd_append(out, sizeof out, "%d", 12);
    cr_assert_str_eq(out, "abc12");
    psd_append(out, sizeof out, "%s", "6789");
    cr_assert_str_eq(out, "abc1267");
    psd_append(out, sizeof out, "%s", "x");
    cr_assert_str_eq(out, "abc1267");
}
