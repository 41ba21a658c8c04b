/* Attention with AMX tiles: queries, keys and values of bf16, of AMX_DIM_STEP to AMX_MOST_DIM entries.
 *
 * Scores are sums of exact products, the weights are rounded to bf16, and so is what they add up to: the sum of the
 * rounded ones. A row of products goes through the same tiles whatever lies in the rows beside it. State.acc keeps its
 * entries in the order of the value tiles until the end: `straighten`. */
#ifndef CADENCE_ATTENTION_AMX_H
#define CADENCE_ATTENTION_AMX_H

#include "attention/attention.h"

#define AMX_ROWS 16 /* rows of an item that share tiles */
#define AMX_DIM_STEP 32
#define AMX_MOST_DIM 256

struct AmxArithmetic {
    void (*begin)(void); /* on every thread before and after its work */
    void (*end)(void);
    void (*load)(const Attention *a, const Plan *p, const Item *it, Scratch *s); /* queries -> s->q.half */
    void (*attend)(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s); /* as attend_tile */
    void (*straighten)(float *row, int64_t dim); /* a row of State.acc, into the order of entries */
};

/* NULL where the compiler was not told of it. For processors that have it, and threads that may use it: see isas. */
const AmxArithmetic *amx_arithmetic(void);

#endif
