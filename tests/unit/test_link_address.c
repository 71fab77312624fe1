/* Addresses of contexts, and where nets listen. */
#include <string.h>
#include <unistd.h>

#include "tests/lib/link_pair.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/host/address.h"

PSD_TEST(link_address, round_trip)
{
    const char *good[] = {
        "1;1;-;",
        "1;ffffffffffffffff;psd-0123;10.0.0.1:80",
        "1;ab;x;10.0.0.1:80,[fd00::2]:65535,127.0.0.1:1",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        host_address address;
        char text[PSD_MAX_ADDR];
        cr_assert(host_address_parse(good[i], &address), "%s", good[i]);
        cr_assert(host_address_format(&address, text, sizeof text));
        cr_assert_str_eq(text, good[i]);
    }
}

PSD_TEST(link_address, malformed)
{
    const char *bad[] = {
        "",
        "1",
        "2;1;-;",
        "1;0;-;",
        "1;;-;",
        "1;xyz;-;",
        "1;11111111111111111;-;",
        "1;1;;",
        "1;1;a/b;",
        "1;1;-",
        "1;1;0123456789012345678901234567890123456789;",
        "1;1;-;1.2.3.4",
        "1;1;-;1.2.3.4:0",
        "1;1;-;1.2.3.4:65536",
        "1;1;-;1.2.3.4:-1",
        "1;1;-;1.2.3:80",
        "1;1;-;host:80",
        "1;1;-;[::1:80",
        "1;1;-;[::1]80",
        "1;1;-;1.2.3.4:80,",
        "1;1;-;,1.2.3.4:80",
        "1;1;-;1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,"
        "1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1",
    };
    host_address address;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not(host_address_parse(bad[i], &address), "%s", bad[i]);
    cr_assert_not(host_address_parse(NULL, &address));
}

PSD_TEST(link_address, many_addresses_are_cut)
{
    host_address address = {
        .incarnation = UINT64_MAX, .unix_name = "psd-0123456789abcdef", .tcp_count = ADDRESS_MAX_TCP};
    host_address back;
    char text[PSD_MAX_ADDR];
    for (uint32_t i = 0; i < ADDRESS_MAX_TCP; i++)
        cr_assert(endpoint_parse("[fd00:1111:2222:3333:4444:5555:6666:7777]:65535", &address.tcp[i]));
    cr_assert(host_address_format(&address, text, sizeof text));
    cr_assert(host_address_parse(text, &back));
    cr_assert_eq(back.tcp_count, 3);
    cr_assert_not(host_address_format(&address, text, 20));
}

static psd_status open_on(const char *bind_host, const char *transport, host_net **net, char *why)
{
    host_net_config config = {
        .job = "test", .incarnation = 9, .bind_host = bind_host, .transport = transport};
    return host_net_open(&config, net, why, PSD_MAX_TEXT);
}

PSD_TEST(link_address, where_nets_listen)
{
    const char *hosts[] = {NULL, "127.0.0.1", "lo", "localhost", "127.0.0.2"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        host_net *net;
        char why[PSD_MAX_TEXT];
        char address[PSD_MAX_ADDR];
        host_address parsed;
        cr_assert_eq(open_on(hosts[i], "auto", &net, why), PSD_OK, "%s: %s", hosts[i] ? hosts[i] : "any",
                     why);
        cr_assert_eq(host_net_address(net, address, sizeof address), PSD_OK);
        cr_assert(host_address_parse(address, &parsed), "%s", address);
        cr_assert_geq(parsed.tcp_count, 1);
        host_net_close(net);
    }
}

PSD_TEST(link_address, what_a_net_refuses)
{
    host_net *net;
    char why[PSD_MAX_TEXT] = "";
    cr_assert_neq(open_on("no-such-interface.invalid", "tcp", &net, why), PSD_OK);
    cr_assert_not_null(strstr(why, "no-such-interface.invalid"), "%s", why);
    cr_assert_eq(open_on("192.0.2.77", "tcp", &net, why), PSD_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(why, "192.0.2.77"), "%s", why);
    cr_assert_eq(open_on(NULL, "pigeon", &net, why), PSD_ERR_INVAL);
    host_net_config config = {.job = "test", .incarnation = 9, .ring_bytes = 5000};
    cr_assert_eq(host_net_open(&config, &net, why, sizeof why), PSD_ERR_INVAL);
    host_net_close(NULL);
}

PSD_TEST(link_address, what_a_link_refuses)
{
    host_net *net = link_net_open("auto", 9);
    host_link *link;
    char why[PSD_MAX_TEXT];
    char address[PSD_MAX_ADDR];
    cr_assert_eq(host_net_address(net, address, sizeof address), PSD_OK);
    cr_assert_eq(host_link_get(net, address, &link, why, sizeof why), PSD_ERR_INVAL);
    cr_assert_eq(host_link_get(net, "garbage", &link, why, sizeof why), PSD_ERR_FORMAT);
    cr_assert_null(host_net_first(net));
    host_net_close(net);
}

PSD_TEST(link_address, unreachable_peers_are_named)
{
    host_net *net = link_net_open("auto", 9);
    host_net *gone = link_net_open("auto", 10);
    host_link *link;
    char why[PSD_MAX_TEXT];
    char address[PSD_MAX_ADDR];
    cr_assert_eq(host_net_address(gone, address, sizeof address), PSD_OK);
    host_net_close(gone);
    cr_assert_eq(host_link_get(net, address, &link, why, sizeof why), PSD_OK);
    psd_time_ns start = psd_now_ns();
    while (host_link_get_state(link) == HOST_LINK_CONNECTING && psd_now_ns() < start + 8 * PSD_NS_PER_S) {
        host_net_arm(net);
        host_net_sleep(net, host_net_deadline(net));
        host_net_disarm(net);
        (void)host_net_poll(net);
    }
    cr_assert_eq(host_link_get_state(link), HOST_LINK_BROKEN);
    cr_assert_eq(host_link_status(link), PSD_ERR_UNREACHABLE);
    const char *text = host_link_text(link);
    cr_assert_not_null(strstr(text, "Connection refused"), "%s", text);
    cr_assert_not_null(strstr(text, strrchr(address, ';') + 1), "%s", text);
    cr_assert_not_null(strstr(text, "(lo)"), "%s", text);
    host_link_put(net, &link);
    host_net_close(net);
}
