/* Sums of rows of x with groups of packed weights, for linear.c, which stores them. */
#ifndef CADENCE_PACKED_GROUPS_H
#define CADENCE_PACKED_GROUPS_H

#include "packed/run.h"

#define ROWS_BLOCK 256 /* rows of x against one unpacking of a group: their sums stay in the L1 cache */

typedef struct {
    union {
        Tile tile;
        float wide[K_CHUNK_WIDE * GROUP] __attribute__((aligned(64)));
    };
    float acc[ROWS_BLOCK * GROUP] __attribute__((aligned(64)));
    float second[ROWS_BLOCK * GROUP] __attribute__((aligned(64))); /* sums of the second plane, or second group */
    Tile second_tile;
} GroupScratch;

/* Sums of rows [m, m + count) of x with one group of a segment, into s->acc. */
void packed_sum_group(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t m, int64_t count,
                      GroupScratch *s);

/* The same with whole tiles of rows and a group of quants, into y where it lies: for a backend that sums in place. */
void packed_sum_in_place(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t m, int64_t count, float *y,
                         GroupScratch *s);

/* Whether groups of a kind are multiplied two at a time: what is loaded of x serves both. */
int packed_in_pairs(const PackedRun *run, int64_t kind);

/* Sums with the group at `from` and the one `size` bytes after it, into s->acc and s->second. */
void packed_sum_pair(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t size, int64_t m, int64_t count,
                     GroupScratch *s);

#endif
