/* The register tiles of attention: scores of a few queries with a few keys, and their weights times the values.
 *
 * A score adds up its products lane by lane, then over lanes; a sum of values goes key by key. Neither depends on how
 * many rows or keys are taken at once, nor on whether a row was widened before or is widened here. */
#ifndef CADENCE_ATTENTION_TILE_H
#define CADENCE_ATTENTION_TILE_H

#include "attention/attention.h"
#include "attention/vectors.h"

/* scores[m][j] = q[m] . key[j] for j < 4 * fours; q rows of `padded` floats. */
INLINE void dot_tile(const int rows, const int fours, const int type, const float *q, int64_t padded,
                     const char *const *key, float *scores) {
    vf sum[ROW_TILE][8] = {{{0}}};
    for (int64_t i = 0; i < padded; i += VL) {
        vf k[8];
#pragma GCC unroll 8
        for (int j = 0; j < 4 * fours; j++) k[j] = load_entries(key[j], i, type);
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vf x = loadf(q + m * padded + i);
#pragma GCC unroll 8
            for (int j = 0; j < 4 * fours; j++) sum[m][j] = madd(sum[m][j], x, k[j]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int f = 0; f < fours; f++) {
            v4 total = sums_of_four(sum[m][4 * f], sum[m][4 * f + 1], sum[m][4 * f + 2], sum[m][4 * f + 3]);
            memcpy(scores + m * KEY_TILE + 4 * f, &total, 16);
        }
}

/* The same of int8 rows: q rows of `padded` bytes; the exact sums times the scales of the query and of the key. */
INLINE void dot_tile_i8(const int rows, const int8_t *q, const float *q_scale, int64_t padded, const char *const *key,
                        const float *key_scale, float *scores) {
    vsums sum[ROW_TILE][4];
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < padded; i += I8_STEP) {
        vbytes k[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) k[j] = load_bytes(key[j] + i);
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vbytes x = load_bytes(q + m * padded + i);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sum[m][j] = add_products(sum[m][j], x, k[j]);
        }
    }
    v4 scale;
    memcpy(&scale, key_scale, 16);
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) {
        v4 total = totals_of_four(sum[m][0], sum[m][1], sum[m][2], sum[m][3]) * q_scale[m] * scale;
        memcpy(scores + m * KEY_TILE, &total, 16);
    }
}

#define UNROLLED _Pragma("GCC unroll 8")

#if defined(NEON_LANES)
/* The value of key n + j, by lane j of the weights. */
#define ADD_VALUE(j)                                                                                    \
    {                                                                                                   \
        vf v[8];                                                                                        \
        load_strip(t->value[n + j], at, width, type, v);                                                \
        UNROLLED for (int i = 0; i < width; i++) UNROLLED for (int m = 0; m < rows; m++)                \
            sum[m][i] = vfmaq_laneq_f32(sum[m][i], v[i], w4[m], j);                                     \
    }
#endif

/* acc[m][at .. at + width * VL) = sum over keys [low, high) of weight[m][key] * value[key]; acc rows of `padded`. */
INLINE void value_tile(const int rows, const int width, const int type, const float *weight, const Tile *t,
                       int64_t at, int64_t low, int64_t high, int64_t padded, float *acc) {
    vf sum[ROW_TILE][8] = {{{0}}};
#if defined(NEON_LANES)
    if (rows == ROW_TILE) { /* four weights of a row per load; one by one costs the widest tile a tenth of its speed */
        for (int64_t n = low; n < high; n += 4) {
            vf w4[ROW_TILE];
#pragma GCC unroll 4
            for (int m = 0; m < rows; m++) w4[m] = loadf(weight + m * KEY_TILE + n);
            ADD_VALUE(0)
            ADD_VALUE(1)
            ADD_VALUE(2)
            ADD_VALUE(3)
        }
        low = high;
    }
#endif
    for (int64_t n = low; n < high; n++) {
        vf v[8];
        load_strip(t->value[n], at, width, type, v);
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            float w = weight[m * KEY_TILE + n];
#pragma GCC unroll 8
            for (int i = 0; i < width; i++) sum[m][i] = madd_by(sum[m][i], v[i], w);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 8
        for (int i = 0; i < width; i++) storef(acc + m * padded + at + i * VL, sum[m][i]);
}

/* ---- by number of rows and type ---- */

#define BY_ROWS(rows, CALL)     \
    switch (rows) {             \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        default: CALL(4); break; \
    }

/* One or two rows take eight keys at a time: with four, too few sums would be under way. */
INLINE void dot_step(const int rows, const int type, const float *q, int64_t padded, const char *const *key,
                     float *scores) {
    const int fours = MANY_REGISTERS && rows <= 2 ? 2 : 1;
    for (int j = 0; j < KEY_STEP; j += 4 * fours) dot_tile(rows, fours, type, q, padded, key + j, scores + j);
}

/* Scores of rows [m, m + rows) with keys [n, n + KEY_STEP). */
INLINE void score_step(const int rows, const int type, const Queries *q, int64_t m, const Tile *t, int64_t n,
                       float *scores) {
    const float *wide = q->wide + m * q->padded;
    if (MANY_REGISTERS || rows <= 2) {
        dot_step(rows, type, wide, q->padded, t->key + n, scores);
    } else { /* 16 registers hold the sums of two rows */
        dot_step(2, type, wide, q->padded, t->key + n, scores);
        dot_step(rows - 2, type, wide + 2 * q->padded, q->padded, t->key + n, scores + 2 * KEY_TILE);
    }
}

INLINE void score_step_i8(const int rows, const Queries *q, int64_t m, const Tile *t, int64_t n, float *scores) {
    for (int j = 0; j < KEY_STEP; j += 4)
        dot_tile_i8(rows, q->bytes + m * q->padded_bytes, q->scale + m, q->padded_bytes, t->key + n + j,
                    t->key_scale + n + j, scores + j);
}

#define SCORE_KEYS(name, TYPE)                                                                          \
    static void name(int rows, const Queries *q, int64_t m, const Tile *t, int64_t n, float *scores) {  \
        BY_ROWS(rows, TYPE)                                                                             \
    }
#define SCORE_F32(rows) score_step(rows, F32, q, m, t, n, scores + n)
#define SCORE_BF16(rows) score_step(rows, BF16, q, m, t, n, scores + n)
#define SCORE_F16(rows) score_step(rows, F16, q, m, t, n, scores + n)
#define SCORE_I8(rows) score_step_i8(rows, q, m, t, n, scores + n)
SCORE_KEYS(score_f32, SCORE_F32)
SCORE_KEYS(score_bf16, SCORE_BF16)
SCORE_KEYS(score_f16, SCORE_F16)
SCORE_KEYS(score_i8, SCORE_I8)
static ScoreKeys *const score_keys[] = {score_f32, score_bf16, score_f16, score_i8};

/* Vectors of a strip: with one or two rows more, or too few sums would be under way. */
INLINE int strip_width(int64_t rows, int64_t vectors_left) {
    int width = rows <= 2 ? 2 * NR_MAX : NR_MAX;
    while (width > vectors_left) width /= 2;
    return width;
}

INLINE void weigh_strip(const int rows, const int type, const Weighted *w, int width, int64_t at) {
#define WEIGH(WIDTH) \
    value_tile(rows, WIDTH, type, w->weight, w->tile, at, w->low, w->high, w->padded, w->acc)
    if (rows <= 2 && width == 8)
        WEIGH(8);
    else if (width == 4)
        WEIGH(4);
    else if (width == 2)
        WEIGH(2);
    else
        WEIGH(1);
}

/* The strip of `width` vectors from entry `at` on. */
typedef void WeighValues(int rows, const Weighted *w, int width, int64_t at);

#define WEIGH_VALUES(name, TYPE) \
    static void name(int rows, const Weighted *w, int width, int64_t at) { BY_ROWS(rows, TYPE) }
#define WEIGH_F32(rows) weigh_strip(rows, F32, w, width, at)
#define WEIGH_BF16(rows) weigh_strip(rows, BF16, w, width, at)
#define WEIGH_F16(rows) weigh_strip(rows, F16, w, width, at)
#define WEIGH_I8(rows) weigh_strip(rows, I8, w, width, at)
WEIGH_VALUES(weigh_f32, WEIGH_F32)
WEIGH_VALUES(weigh_bf16, WEIGH_BF16)
WEIGH_VALUES(weigh_f16, WEIGH_F16)
WEIGH_VALUES(weigh_i8, WEIGH_I8)
static WeighValues *const weigh_values[] = {weigh_f32, weigh_bf16, weigh_f16, weigh_i8};

#endif
