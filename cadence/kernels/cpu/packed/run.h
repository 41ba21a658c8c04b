/* One product under way: acts.c prepares its x, linear.c multiplies. */
#ifndef CADENCE_PACKED_RUN_H
#define CADENCE_PACKED_RUN_H

#include "packed/packed.h"

typedef struct {
    const PackedJob *job;
    const Backend *isa;
    Acts acts;
    float *rows; /* [threads][padded]: a row of x on its way to other forms */
    int64_t groups, threads;
    int64_t block; /* rows of x multiplied by one group after another */
    int quantized, wide, narrow, half; /* forms of x that are needed */
    int few;                           /* bf16 is multiplied by few_narrow */
} PackedRun;

/* In which forms the weights want x. */
void packed_find_needs(PackedRun *run);

/* Places x's forms in the work memory at `base` -> its bytes; with NULL only counts them. */
int64_t packed_lay_out(PackedRun *run, char *base);

/* The share of x that is thread's. Tiles of rows are shared out: the padding of the last goes with it. */
void packed_prepare_rows(const PackedRun *run, int64_t thread);

#endif
