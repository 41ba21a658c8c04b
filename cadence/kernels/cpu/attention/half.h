/* Attention in float16 arithmetic, over caches of float16, on processors that have it.
 *
 * A lane sums every eighth product of a score, then the lanes are summed in pairs. A sum of values over a tile is that
 * of sums over HALF_RUN keys, counted from position 0: the longer a sum in float16, the less exact. Beyond a tile all
 * is float32. Rows of scores hold float16 numbers here, in the first half of their memory; so do weights, as multiples
 * of 1 / WEIGHT_UNIT.
 *
 * Where a number leaves float16, it is noticed and the row of the tile is done in float32: see rows.c. */
#ifndef CADENCE_ATTENTION_HALF_H
#define CADENCE_ATTENTION_HALF_H

#include "attention/attention.h"

#define HALF_LANES 8
#define HALF_RUN 32
#define WEIGHT_UNIT 4.0f /* the largest weight: 2^-16 of it still counts, and values under 127 never overflow */
#define HALF_TOP 32.0f   /* a larger maximum has too few digits behind the point */

/* Of a row's scores in a tile the keys [begin, end) are seen, out of those that were computed. */
typedef struct {
    int64_t low, high, begin, end;
} Span;

struct HalfArithmetic {
    void (*narrow)(uint16_t *to, const float *from, int64_t n, float factor); /* n: a multiple of HALF_LANES */
    /* As ScoreKeys, with the keys [low, high), multiples of KEY_STEP. */
    void (*score)(int rows, const Queries *q, int64_t m, const Tile *t, int64_t low, int64_t high, float *scores);
    /* Scores -> weights, their maximum, the weights' sum; 0: they need float32, and are spoilt. Something is seen. */
    int (*soften)(uint16_t *row, Span span, float *max, float *sum);
    void (*weigh)(int rows, const Weighted *w);
};

/* NULL where the compiler knows of none. For processors that have it: see isas. */
const HalfArithmetic *half_arithmetic(void);

#endif
