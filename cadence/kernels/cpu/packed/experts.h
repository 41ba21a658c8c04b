/* What experts make of tokens, before it is added up; experts.c finds it. */
#ifndef CADENCE_EXPERTS_H
#define CADENCE_EXPERTS_H

#include "runtime/common.h"

/* A pair is a token and one of its routes: pair p is route p % top_k of token p / top_k. */
typedef struct {
    const struct packed_experts *job;
    int64_t *starts; /* [count + 1]: places of each expert's pairs */
    int64_t *places; /* [pairs]: where a pair lies among those of all experts, or -1 */
    int64_t *pairs;  /* [pairs]: the pair at each place */
    char *x, *inner, *gated, *out; /* [pairs][hidden], [2 * width], [width], [hidden] */
} Sorted;

/* Fills in `s`, in memory that lasts until the next call of this thread. */
void find_outputs(Sorted *s, const struct packed_experts *job);

/* y of the job, of `places` and `out`. */
void add_outputs(Sorted *s);

#endif
