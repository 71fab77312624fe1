/* What many links on one host cost: the rules, and a net that is told of many peers. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/link_pair.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/host/link.h"
#include "worker/backend/host/mesh.h"

PSD_TEST(mesh, few_ranks_get_whole_rings_many_smaller_ones)
{
    cr_assert_eq(mesh_ring_bytes(0), HOST_RING_DEFAULT);
    cr_assert_eq(mesh_ring_bytes(1), HOST_RING_DEFAULT);
    cr_assert_eq(mesh_ring_bytes(MESH_SMALL_PEERS), HOST_RING_DEFAULT);
    cr_assert_eq(mesh_ring_bytes(31), (uint64_t)128 << 10);
    cr_assert_eq(mesh_ring_bytes(63), (uint64_t)64 << 10);
    cr_assert_eq(mesh_ring_bytes(127), (uint64_t)32 << 10);
    cr_assert_eq(mesh_ring_bytes(199), MESH_RING_LEAST);
    for (uint32_t peers = 1; peers < 70000; peers = peers * 3 / 2 + 1) {
        uint64_t ring = mesh_ring_bytes(peers);
        cr_assert_eq(ring & (ring - 1), 0, "a power of two");
        cr_assert(ring >= MESH_RING_LEAST && ring <= HOST_RING_DEFAULT);
        cr_assert(ring == MESH_RING_LEAST || ring * peers <= (uint64_t)4 << 20);
    }
}

PSD_TEST(mesh, patience_and_places_grow_with_the_peers)
{
    cr_assert_eq(mesh_patience(5 * PSD_NS_PER_S, 0), 5 * PSD_NS_PER_S);
    cr_assert_eq(mesh_patience(5 * PSD_NS_PER_S, MESH_SMALL_PEERS), 5 * PSD_NS_PER_S);
    cr_assert_eq(mesh_patience(5 * PSD_NS_PER_S, MESH_SMALL_PEERS + 10), 6 * PSD_NS_PER_S);
    cr_assert_geq(mesh_patience(5 * PSD_NS_PER_S, 199), 20 * PSD_NS_PER_S);
    cr_assert_eq(mesh_places(0), 128);
    cr_assert_eq(mesh_places(64), 128);
    cr_assert_eq(mesh_places(199), 263, "all peers at once, and strangers");
}

PSD_TEST(mesh, memory_that_is_not_there_is_named)
{
    char why[512] = "";
    uint64_t need = mesh_bytes(200, (uint64_t)256 << 10);
    cr_assert_eq(mesh_bytes(0, 4096), 0);
    cr_assert_eq(mesh_bytes(1, 4096), 0);
    cr_assert_eq(mesh_bytes(2, 4096), 4096 + 2 * 4096 + 2 * lane_bytes(4096));
    cr_assert_eq(need, (uint64_t)19900 * (4096 + (512 << 10) + 2 * lane_bytes(256 << 10)));
    cr_assert_eq(mesh_check_memory(200, (uint64_t)256 << 10, -1, why, sizeof why), PSD_OK);
    cr_assert_eq(mesh_check_memory(200, (uint64_t)256 << 10, (int64_t)need, why, sizeof why), PSD_OK);
    cr_assert_eq(mesh_check_memory(200, (uint64_t)256 << 10, (int64_t)1 << 30, why, sizeof why),
                 PSD_ERR_NOMEM);
    cr_assert(strstr(why, "200 ranks on this host have 19900 links"), "%s", why);
    cr_assert(strstr(why, "need 11 GiB") && strstr(why, "have 1 GiB") && strstr(why, "PSD_HOST_RING"), "%s",
              why);
}

PSD_TEST(mesh, descriptors_that_are_not_there_are_named)
{
    char why[512] = "";
    cr_assert_eq(mesh_check_descriptors(0, 10, 9, why, sizeof why), PSD_OK);
    cr_assert_eq(mesh_check_descriptors(199, 1024, 20, why, sizeof why), PSD_OK);
    cr_assert_eq(mesh_check_descriptors(599, 1024, 20, why, sizeof why), PSD_ERR_LIMIT);
    cr_assert(strstr(why, "599 links need 1262 beside the 20 in use, the limit is 1024"), "%s", why);
    cr_assert(strstr(why, "at least 1282 (ulimit -n)"), "%s", why);
}

/* The connector, who makes the rings, goes by what it was told. */
PSD_TEST(mesh, a_net_told_of_many_peers_uses_small_rings)
{
    link_pair pair = {.net = {link_net_open("shm", 1), link_net_open("shm", 2)}};
    char address[2][PSD_MAX_ADDR];
    char made_up[40][PSD_MAX_ADDR];
    const char *all[40];
    char why[512] = "";
    for (int i = 0; i < 2; i++)
        cr_assert_eq(host_net_address(pair.net[i], address[i], sizeof address[i]), PSD_OK);
    for (int i = 0; i < 40; i++) {
        snprintf(made_up[i], sizeof made_up[i], "1;%016x;psd-%016x;", 1000 + i, i);
        all[i] = made_up[i];
    }
    all[0] = address[0];
    all[1] = address[1];
    for (int i = 0; i < 2; i++)
        cr_assert_eq(host_net_expect(pair.net[i], all, 40, why, sizeof why), PSD_OK, "%s", why);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(host_link_get(pair.net[i], address[1 - i], &pair.link[i], why, sizeof why), PSD_OK);
    cr_assert(link_pair_up(&pair));
    for (int i = 0; i < 2; i++)
        cr_assert(strstr(host_link_text(pair.link[i]), "rings of 64 KiB"), "%s",
                  host_link_text(pair.link[i]));
    link_pair_close(&pair);
}
