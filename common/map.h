/* Open-addressing hash map from a 64-bit key to a pointer. Linear probing, at most half full, deletion by
 * shifting back, so that it stays small and fast at a million entries. Any key is allowed; a NULL value is
 * not. */
#ifndef PSD_COMMON_MAP_H
#define PSD_COMMON_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct psd_map_slot {
    uint64_t key;
    void *value; /* NULL: free */
} psd_map_slot;

/* Zero-initialised is empty. */
typedef struct psd_map {
    psd_map_slot *slots;
    size_t capacity; /* 0 or a power of two */
    size_t count;
} psd_map;

void *psd_map_get(const psd_map *map, uint64_t key); /* NULL: not there */
/* Sets or replaces. False, and no change, if memory ran out. */
bool psd_map_put(psd_map *map, uint64_t key, void *value);
void *psd_map_remove(psd_map *map, uint64_t key); /* what was there, or NULL */
void psd_map_free(psd_map *map);                  /* not the values */

/* Spreads a number or a text over 64 bits. */
uint64_t psd_hash_u64(uint64_t x);
uint64_t psd_hash_text(const char *text, uint64_t seed);

#endif
