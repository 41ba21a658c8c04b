/* Attention in float16 arithmetic, over caches of float16, on processors that have it: NEON.
 *
 * A lane sums every eighth product of a score, then the lanes are summed in pairs. A sum of values over a tile is that
 * of sums over HALF_RUN keys, counted from position 0: the longer a sum in float16, the less exact. Beyond a tile all
 * is float32. Rows of scores hold float16 numbers here, in the first half of their memory; so do weights, as multiples
 * of 1 / WEIGHT_UNIT.
 *
 * Where a number leaves float16, it is noticed and the row of the tile is done in float32: see rows.c. */
#include "attention/attention.h"

#if defined(__aarch64__) && VL == 4

#include <arm_neon.h>

#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
#define HALF_TARGET
#elif defined(__clang__)
#define HALF_TARGET __attribute__((target("fullfp16")))
#else
#define HALF_TARGET __attribute__((target("arch=armv8.2-a+fp16")))
#endif
#define HALF_INLINE INLINE HALF_TARGET

typedef float16x8_t halves;

HALF_INLINE halves load_halves(const void *p) { return vreinterpretq_f16_u16(vld1q_u16(p)); }
HALF_INLINE void store_halves(void *p, halves v) { vst1q_u16(p, vreinterpretq_u16_f16(v)); }

static HALF_TARGET void narrow(uint16_t *to, const float *from, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += HALF_LANES) {
        float16x4_t low = vcvt_f16_f32(vmulq_n_f32(vld1q_f32(from + i), factor));
        store_halves(to + i, vcvt_high_f16_f32(low, vmulq_n_f32(vld1q_f32(from + i + 4), factor)));
    }
}

/* ---- scores ---- */

/* Lane sums of a[0 .. 4), b[0 .. 4). */
HALF_INLINE halves eight_sums(const halves *a, const halves *b) {
    halves x = vpaddq_f16(vpaddq_f16(a[0], a[1]), vpaddq_f16(a[2], a[3]));
    halves y = vpaddq_f16(vpaddq_f16(b[0], b[1]), vpaddq_f16(b[2], b[3]));
    return vpaddq_f16(x, y);
}

/* scores[m][j] = q[m] . key[j] for j < keys, 4 or 8. */
HALF_INLINE void dot_halves(const int rows, const int keys, const uint16_t *q, int64_t padded, const char *const *key,
                            uint16_t *scores) {
    const int64_t stride = 2 * KEY_TILE;
    halves sum[ROW_TILE][8], k[8];
    EACH(j, keys) k[j] = load_halves(key[j]);
    EACH(m, rows) EACH(j, keys) sum[m][j] = vmulq_f16(load_halves(q + m * padded), k[j]);
    for (int64_t i = HALF_LANES; i < padded; i += HALF_LANES) {
        EACH(j, keys) k[j] = load_halves(key[j] + i * 2);
        EACH(m, rows) {
            halves x = load_halves(q + m * padded + i);
            EACH(j, keys) sum[m][j] = vfmaq_f16(sum[m][j], x, k[j]);
        }
    }
    if (keys == 8) {
        EACH(m, rows) store_halves(scores + m * stride, eight_sums(sum[m], sum[m] + 4));
        return;
    }
    EACH(pair, (rows + 1) / 2) {
        const int m = 2 * pair, other = m + 1 < rows ? m + 1 : m;
        uint64x2_t both = vreinterpretq_u64_f16(eight_sums(sum[m], sum[other]));
        vst1q_lane_u64((uint64_t *)(scores + m * stride), both, 0);
        if (other > m) vst1q_lane_u64((uint64_t *)(scores + other * stride), both, 1);
    }
}

/* One or two rows take eight keys at a time: with four, too few sums would be under way. */
HALF_INLINE void score_rows(const int rows, const uint16_t *q, int64_t padded, const Tile *t, int64_t low, int64_t high,
                            uint16_t *scores) {
    const int keys = rows <= 2 ? 8 : 4;
    for (int64_t n = low; n < high; n += keys) dot_halves(rows, keys, q, padded, t->key + n, scores + n);
}

static HALF_TARGET void score(int rows, const Queries *q, int64_t m, const Tile *t, int64_t low, int64_t high,
                              float *scores) {
    const uint16_t *from = q->half + m * q->padded;
    uint16_t *to = (uint16_t *)scores;
    switch (rows) {
        case 1: score_rows(1, from, q->padded, t, low, high, to); break;
        case 2: score_rows(2, from, q->padded, t, low, high, to); break;
        case 3: score_rows(3, from, q->padded, t, low, high, to); break;
        default: score_rows(4, from, q->padded, t, low, high, to); break;
    }
}

/* ---- softmax ---- */

static void fill(uint16_t *row, int64_t begin, int64_t end, uint16_t with) {
    for (int64_t i = begin; i < end; i++) row[i] = with;
}

#define MINUS_INFINITY 0xfc00
#define SUM_RUN 32 /* weights, four a lane, that are summed in float16; counted from position 0 */
/* 1.5 * 2^10 leaves y, rounded, in the low bits; 15 is the exponent's bias, 2 that of WEIGHT_UNIT. */
#define TO_INTEGER 1553.0f

/* 2^r = 1 + r * (...) within 1e-4 for |r| <= 0.5, highest power first. Loaded where they are used: as copies of
 * registers they would take the place of arithmetic. */
#define EIGHT(x) {x, x, x, x, x, x, x, x}
static const float16_t series[4][HALF_LANES] __attribute__((aligned(64))) = {
    EIGHT(0.05502f), EIGHT(0.24219f), EIGHT(0.69336f), EIGHT(1.0f)};

HALF_INLINE halves coefficient(int i) {
    const float16_t *p = series[i];
    __asm__ volatile("" : "+r"(p));
    return load_halves(p);
}

/* y[j] = WEIGHT_UNIT * 2^y[j] for y <= 0, exactly WEIGHT_UNIT at 0 and exactly 0 from -16.5 down. In stages: each is a
 * chain, longer than a processor looks ahead. */
HALF_INLINE void weights_of(halves *y) {
    halves shifted[4], p[4];
    EACH(j, 4) y[j] = vmaxq_f16(y[j], vdupq_n_f16(-17.0f));
    EACH(j, 4) shifted[j] = vaddq_f16(y[j], vdupq_n_f16(TO_INTEGER));
    EACH(j, 4) y[j] = vsubq_f16(y[j], vsubq_f16(shifted[j], vdupq_n_f16(TO_INTEGER)));
    EACH(j, 4) p[j] = vfmaq_f16(coefficient(1), coefficient(0), y[j]);
    EACH(i, 2) EACH(j, 4) p[j] = vfmaq_f16(coefficient(i + 2), p[j], y[j]);
    EACH(j, 4) y[j] = vmulq_f16(p[j], vreinterpretq_f16_u16(vshlq_n_u16(vreinterpretq_u16_f16(shifted[j]), 10)));
}

static HALF_TARGET int soften(uint16_t *row, Span span, float *max, float *sum) {
    int64_t low = span.low / SUM_RUN * SUM_RUN, high = round_up(span.high, SUM_RUN);
    fill(row, low, span.begin, row[span.begin]); /* neither the largest nor the least changes */
    fill(row, span.end, high, row[span.begin]);
    halves most[2], least[2];
    EACH(j, 2) most[j] = least[j] = load_halves(row + low);
    for (int64_t i = low; i < high; i += 2 * HALF_LANES)
        EACH(j, 2) {
            halves x = load_halves(row + i + j * HALF_LANES);
            most[j] = vmaxq_f16(most[j], x), least[j] = vminq_f16(least[j], x);
        }
    halves top = vdupq_n_f16(vmaxvq_f16(vmaxq_f16(most[0], most[1])));
    float bottom = vminvq_f16(vminq_f16(least[0], least[1]));
    *max = vgetq_lane_f16(top, 0);
    if (!(*max <= HALF_TOP && *max >= -HALF_TOP && bottom > -INFINITY)) return 0;
    fill(row, low, span.begin, MINUS_INFINITY);
    fill(row, span.end, high, MINUS_INFINITY);
    float32x4_t total[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int64_t i = low; i < high; i += SUM_RUN) {
        halves w[4];
        EACH(j, 4) w[j] = vsubq_f16(load_halves(row + i + j * HALF_LANES), top);
        weights_of(w);
        EACH(j, 4) store_halves(row + i + j * HALF_LANES, w[j]);
        halves part = vaddq_f16(vaddq_f16(w[0], w[1]), vaddq_f16(w[2], w[3]));
        total[0] = vaddq_f32(total[0], vcvt_f32_f16(vget_low_f16(part)));
        total[1] = vaddq_f32(total[1], vcvt_high_f32_f16(part));
    }
    *sum = vaddvq_f32(vaddq_f32(total[0], total[1]));
    return 1;
}

/* ---- values ---- */

/* sum + v * lane j of w. Written out, since gcc copies lanes to registers of their own first, and runs out of them. */
#define ADD_PRODUCT(sum, v, w, j) __asm__ volatile("fmla %0.8h, %1.8h, %2.h[" #j "]" : "+w"(sum) : "w"(v), "x"(w))

/* The value of key n + j, by lane j of the weights. */
#define ADD_VALUE(j)                                                               \
    {                                                                              \
        const char *from = w->tile->value[n + j] + at * 2;                         \
        halves v[8];                                                               \
        EACH(i, width) v[i] = load_halves(from + i * 16);                          \
        EACH(i, width) EACH(m, rows) ADD_PRODUCT(sum[m][i], v[i], w8[m], j);       \
    }

/* acc[m][at .. at + 8 * width) = sums of weight * value over the keys [low, high). */
HALF_INLINE void weigh_strip(const int rows, const int width, const Weighted *w, int64_t at) {
    const uint16_t *weight = (const uint16_t *)w->weight;
    halves total[ROW_TILE][8];
    EACH(m, rows) EACH(i, width) total[m][i] = vdupq_n_f16(0);
    for (int64_t n = w->low; n < w->high;) {
        halves sum[ROW_TILE][8];
        EACH(m, rows) EACH(i, width) sum[m][i] = vdupq_n_f16(0);
        for (int64_t end = min64((n / HALF_RUN + 1) * HALF_RUN, w->high); n < end; n += HALF_LANES) {
            halves w8[ROW_TILE];
            EACH(m, rows) w8[m] = load_halves(weight + m * 2 * KEY_TILE + n);
            ADD_VALUE(0) ADD_VALUE(1) ADD_VALUE(2) ADD_VALUE(3)
            ADD_VALUE(4) ADD_VALUE(5) ADD_VALUE(6) ADD_VALUE(7)
        }
        EACH(m, rows) EACH(i, width) total[m][i] = vaddq_f16(total[m][i], sum[m][i]);
    }
    EACH(m, rows) EACH(i, width) {
        float *to = w->acc + m * w->padded + at + i * HALF_LANES;
        vst1q_f32(to, vcvt_f32_f16(vget_low_f16(total[m][i])));
        vst1q_f32(to + 4, vcvt_high_f32_f16(total[m][i]));
    }
}

/* With one or two rows strips are wider, or too few sums would be under way. */
HALF_INLINE void weigh_rows(const int rows, const Weighted *w) {
    int64_t at = 0, left = w->padded / HALF_LANES;
    if (rows <= 2)
        for (; left >= 8; left -= 8, at += 8 * HALF_LANES) weigh_strip(rows, 8, w, at);
    for (; left >= 4; left -= 4, at += 4 * HALF_LANES) weigh_strip(rows, 4, w, at);
    for (; left; left--, at += HALF_LANES) weigh_strip(rows, 1, w, at);
}

static HALF_TARGET void weigh(int rows, const Weighted *w) {
    switch (rows) {
        case 1: weigh_rows(1, w); break;
        case 2: weigh_rows(2, w); break;
        case 3: weigh_rows(3, w); break;
        default: weigh_rows(4, w); break;
    }
}

/* ---- */

static const HalfArithmetic neon = {narrow, score, soften, weigh};

const HalfArithmetic *half_arithmetic(void) { return &neon; }

#else

const HalfArithmetic *half_arithmetic(void) { return NULL; }

#endif
