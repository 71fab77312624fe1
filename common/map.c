#include "common/map.h"

#include <stdlib.h>

/* The finalizer of splitmix64 (Steele, Lea, Flood, 2014). */
uint64_t psd_hash_u64(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* FNV-1a, then spread. */
uint64_t psd_hash_text(const char *text, uint64_t seed)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ psd_hash_u64(seed + 1);
    for (const unsigned char *c = (const unsigned char *)text; *c != 0; c++)
        hash = (hash ^ *c) * UINT64_C(0x100000001b3);
    return psd_hash_u64(hash);
}

static size_t home_of(const psd_map *map, uint64_t key)
{
    return (size_t)psd_hash_u64(key + UINT64_C(0x9e3779b97f4a7c15)) & (map->capacity - 1);
}

/* The slot of the key, or the free slot where it would go. The map has at least one free slot. */
static size_t probe(const psd_map *map, uint64_t key)
{
    size_t at = home_of(map, key);
    while (map->slots[at].value != NULL && map->slots[at].key != key)
        at = (at + 1) & (map->capacity - 1);
    return at;
}

void *psd_map_get(const psd_map *map, uint64_t key)
{
    return map->capacity == 0 ? NULL : map->slots[probe(map, key)].value;
}

static bool grow(psd_map *map)
{
    psd_map bigger = {.capacity = map->capacity == 0 ? 16 : map->capacity * 2, .count = map->count};
    bigger.slots = calloc(bigger.capacity, sizeof(*bigger.slots));
    if (bigger.slots == NULL)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].value != NULL)
            bigger.slots[probe(&bigger, map->slots[i].key)] = map->slots[i];
    free(map->slots);
    *map = bigger;
    return true;
}

bool psd_map_put(psd_map *map, uint64_t key, void *value)
{
    if (map->count * 2 >= map->capacity && !grow(map))
        return false;
    psd_map_slot *slot = &map->slots[probe(map, key)];
    map->count += slot->value == NULL;
    slot->key = key;
    slot->value = value;
    return true;
}

void *psd_map_remove(psd_map *map, uint64_t key)
{
    if (map->capacity == 0)
        return NULL;
    size_t hole = probe(map, key);
    void *value = map->slots[hole].value;
    if (value == NULL)
        return NULL;
    map->count--;
    /* Knuth's algorithm R: move back every later entry of the run whose home is not between the hole and
     * itself. */
    size_t mask = map->capacity - 1;
    for (size_t at = (hole + 1) & mask; map->slots[at].value != NULL; at = (at + 1) & mask) {
        size_t home = home_of(map, map->slots[at].key);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole].value = NULL;
    return value;
}

void psd_map_free(psd_map *map)
{
    free(map->slots);
    *map = (psd_map){0};
}
