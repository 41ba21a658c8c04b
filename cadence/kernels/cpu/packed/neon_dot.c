/* Packed products with Arm's dot product instructions. */
#if defined(__aarch64__)

#include "packed/neon_tile.h"

/* p, of which the compiler does not know that it is: loads through it are loads again, not copies of a register (which
 * would take the place of a product). */
INLINE const void *again(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

INLINE int32x4_t start_at(const void *from, int v) { return vld1q_s32((const int32_t *)from + v * 4); }

/* sum * x_scale for row m of a tile, of an integer sum begun at START. */
INLINE float32x4_t scaled(int32x4_t sum, const TileStep *x, int m) {
    float32x4_t lift = vld1q_f32((const float *)again(x->lift[m]));
    return vfmaq_n_f32(lift, vreinterpretq_f32_s32(sum), x->scale[m]);
}

/* ---- x ---- */

/* The first K_STEP of the `left` elements at x, missing ones zero -> q [K_STEP]; returns the sum of q. */
INLINE int32_t quantize_step(const float *x, int64_t left, int8_t *q, float *scale) {
    float part[K_STEP] = {0}, inverse;
    if (left < K_STEP) {
        memcpy(part, x, (size_t)left * 4);
        x = part;
    }
    float32x4_t v[8];
    uint32x4_t top[8];
    EACH(i, 8) v[i] = vld1q_f32(x + i * 4), top[i] = vreinterpretq_u32_f32(vabsq_f32(v[i]));
    EACH(i, 4) top[i] = vmaxq_u32(top[i], top[i + 4]);
    uint32_t most = vmaxvq_u32(vmaxq_u32(vmaxq_u32(top[0], top[1]), vmaxq_u32(top[2], top[3])));
    *scale = step_scale(most, &inverse);
    int16x8_t h[4];
    EACH(i, 8) v[i] = vfmaq_n_f32(vdupq_n_f32(LIFT), v[i], inverse);
    EACH(i, 4) h[i] = vuzp1q_s16(vreinterpretq_s16_f32(v[2 * i]), vreinterpretq_s16_f32(v[2 * i + 1]));
    EACH(i, 2) vst1q_s8(q + i * 16, vuzp1q_s8(vreinterpretq_s8_s16(h[2 * i]), vreinterpretq_s8_s16(h[2 * i + 1])));
    return vaddlvq_s16(vaddq_s16(vaddq_s16(h[0], h[1]), vaddq_s16(h[2], h[3])));
}

void packed_neon_dot_quantize(const float *x, int64_t k, const Acts *a, int64_t row) {
    int64_t m = row % TILE_ROWS;
    TileStep *to = a->tiles + row / TILE_ROWS * a->steps;
    for (int64_t step = 0; step < a->steps; step++, to++) {
        float scale;
        int32_t sum = quantize_step(x + step * K_STEP, k - step * K_STEP, to->q[m], &scale);
        to->scale[m] = scale;
        to->sum[m] = scale * (float)sum;
        vst1q_f32(to->lift[m], vdupq_n_f32(-LIFT * scale));
    }
}

/* ---- the last one or two rows of many ---- */

/* Four quads against 16 output rows. */
#define QUAD(lane)                                                                                   \
    EACH(v, 4) {                                                                                     \
        int8x16_t wv = vld1q_s8(q + (lane) * 64 + v * 16);                                           \
        EACH(m, rows) part[m][v] = vdotq_laneq_s32(part[m][v], wv, xv[m], lane);                     \
    }

DOT_TARGET INLINE void dot_last(const int rows, const int halves, const int shift, const Tile *w, const TileStep *x,
                                int64_t steps, Sums sums) {
    const float *scale = w->scale;
    float32x4_t sum[2][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vld1q_f32(sums.begin ? zeros : sums.acc + m * sums.stride + v * 4);
    for (int64_t s = 0; s < steps; s++, x++) {
        const int8_t *q = w->at + s * w->step_bytes;
        int32x4_t part[2][4];
        EACH(half, 2) {
            if (half == 0 || halves == 2) EACH(m, rows) EACH(v, 4) part[m][v] = start_at(again(starts), v);
            int8x16_t xv[2];
            EACH(m, rows) xv[m] = vld1q_s8(x->q[m] + half * 16);
            QUAD(0) QUAD(1) QUAD(2) QUAD(3)
            q += 256;
            if (half == 0 && halves == 1) continue;
            EACH(v, 4) {
                float32x4_t sv = vld1q_f32(scale + v * 4);
                EACH(m, rows) sum[m][v] = vfmaq_f32(sum[m][v], scaled(part[m][v], x, m), sv);
            }
            scale += GROUP;
        }
        if (shift)
            EACH(m, rows) EACH(v, 4)
                sum[m][v] = vfmaq_n_f32(sum[m][v], vld1q_f32(w->shift + s * GROUP + v * 4), x->sum[m]);
    }
    EACH(m, rows) EACH(v, 4) vst1q_f32(sums.acc + m * sums.stride + v * 4, sum[m][v]);
}

DOT_TARGET void packed_neon_dot_tiles(int64_t kind, const Tile *w, const Stretch *x) {
    for (int64_t i = 0; i < x->tiles; i++) {
        int64_t rows = tile_rows_of(x->acts, x->tile + i);
        const TileStep *at = x->acts->tiles + (x->tile + i) * x->acts->steps + x->at;
        Sums acc = {x->acc + i * TILE_ROWS * x->stride, x->stride, x->at == 0};
        EACH(m, TILE_ROWS) __builtin_prefetch(acc.acc + m * acc.stride, 1);
        if (rows == 1)
            WITH_SCALES(kind, dot_last(1, HALVES, SHIFT, w, at, x->count, acc))
        else if (rows == 2)
            WITH_SCALES(kind, dot_last(2, HALVES, SHIFT, w, at, x->count, acc))
        else
            for (int64_t col = 0; col < GROUP; col += 8)
                WITH_SCALES(kind, dot_tile(HALVES, SHIFT, w, at, x->count, col, acc))
    }
}

/* ---- few rows, straight from the packed bytes ---- */

INLINE void load_halves(const uint8_t *from, float32x4_t *to) {
    EACH(i, 2) {
        float16x8_t h = vld1q_f16((const float16_t *)(from + i * 16));
        to[2 * i] = vcvt_f32_f16(vget_low_f16(h));
        to[2 * i + 1] = vcvt_high_f32_f16(h);
    }
}

/* [16] small integers times d. */
INLINE void load_scaled(const uint8_t *from, const int is_signed, const float32x4_t *d, float32x4_t *to) {
    int16x8_t low, high;
    if (is_signed) {
        int8x16_t b = vld1q_s8((const int8_t *)from);
        low = vmovl_s8(vget_low_s8(b)), high = vmovl_high_s8(b);
    } else {
        uint8x16_t b = vld1q_u8(from);
        low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b))), high = vreinterpretq_s16_u16(vmovl_high_u8(b));
    }
    to[0] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), d[0]);
    to[1] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(low)), d[1]);
    to[2] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), d[2]);
    to[3] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(high)), d[3]);
}

/* Integer sums of a step for 16 output rows. */
#define DOT_QUADS(half, m, w, i, lane) part[half][m][v] = vdotq_laneq_s32(part[half][m][v], w, x[m][i], lane)
#define NIBBLES(lane)                                                                \
    {                                                                                \
        uint8x16_t b = vld1q_u8(q + (lane) * 64 + v * 16);                           \
        int8x16_t low, high;                                                         \
        if (is_signed) { /* sixteen times the value */                               \
            low = vreinterpretq_s8_u8(vshlq_n_u8(b, 4));                             \
            high = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(0xf0)));               \
        } else {                                                                     \
            low = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15)));                  \
            high = vreinterpretq_s8_u8(vshrq_n_u8(b, 4));                            \
        }                                                                            \
        EACH(m, rows) DOT_QUADS(0, m, low, 0, lane), DOT_QUADS(0, m, high, 1, lane); \
    }
#define BYTES(lane)                                                                         \
    EACH(v, 4) {                                                                            \
        int8x16_t first = vreinterpretq_s8_u8(vld1q_u8(q + (lane) * 64 + v * 16));          \
        int8x16_t second = vreinterpretq_s8_u8(vld1q_u8(q + 256 + (lane) * 64 + v * 16));   \
        EACH(m, rows) DOT_QUADS(0, m, first, 0, lane), DOT_QUADS(0, m, second, 1, lane);    \
    }

/* The bit at `from` of every byte (and those above it that `mask` lets through) moved to bit 4. */
INLINE uint8x16_t high_bits(uint8x16_t plane, const int from, const uint8_t mask) {
    uint8x16_t moved = from <= 4 ? plane << (4 - from) : plane >> (from - 4);
    return moved & vdupq_n_u8(mask);
}

/* 5 and 6 bits: halves of a byte, completed from the planes behind them. */
#define HIGHER(lane)                                                                                        \
    {                                                                                                       \
        uint8x16_t b = vld1q_u8(q + (lane) * 64 + v * 16), low = b & vdupq_n_u8(15), high = b >> 4;         \
        if (bits == 5) {                                                                                    \
            low |= high_bits(plane[0], lane, 16), high |= high_bits(plane[0], (lane) + 4, 16);              \
        } else {                                                                                            \
            low |= high_bits(plane[(lane) % 2], (lane) / 2 * 2, 48);                                        \
            high |= high_bits(plane[(lane) % 2], (lane) / 2 * 2 + 4, 48);                                   \
        }                                                                                                   \
        int8x16_t first = vreinterpretq_s8_u8(low - zeros), second = vreinterpretq_s8_u8(high - zeros);     \
        EACH(m, rows) DOT_QUADS(0, m, first, 0, lane), DOT_QUADS(halves - 1, m, second, 1, lane);           \
    }

/* part [halves][rows][4 vectors of output rows], begun at START. */
DOT_TARGET INLINE void direct_step(const int kind, const int rows, const uint8_t *q, const TileStep *from,
                                   int32x4_t part[][2][4]) {
    const int bits = formats[kind].bits, halves = formats[kind].halves, is_signed = kind == P_Q4_0;
    int8x16_t x[2][2];
    EACH(m, rows) EACH(i, 2) x[m][i] = vld1q_s8(from->q[m] + i * 16);
    EACH(h, halves) EACH(m, rows) {
        const void *begin = again(starts);
        EACH(v, 4) part[h][m][v] = start_at(begin, v);
    }
    if (bits == 4) {
        EACH(v, 4) { NIBBLES(0) NIBBLES(1) NIBBLES(2) NIBBLES(3) }
    } else if (bits == 8) {
        BYTES(0) BYTES(1) BYTES(2) BYTES(3)
    } else {
        const uint8x16_t zeros = vdupq_n_u8((uint8_t)formats[kind].zero);
        EACH(v, 4) {
            uint8x16_t plane[2];
            EACH(p, bits - 4) plane[p] = vld1q_u8(q + 256 + p * 64 + v * 16);
            HIGHER(0) HIGHER(1) HIGHER(2) HIGHER(3)
        }
    }
}

/* Scales of half h of step s: of its own block, or its small integers times the block's d. */
INLINE void direct_scale(const int kind, const uint8_t *header, int s, int h, const float32x4_t *d, float32x4_t *to) {
    if (kind == P_Q6_K)
        load_scaled(header + 32 + (s * 2 + h) * GROUP, 1, d, to);
    else if (formats[kind].block != K_STEP)
        load_scaled(header + 64 + s * GROUP, 0, d, to);
    else if (kind == P_Q8_F)
        EACH(v, 4) to[v] = vld1q_f32((const float *)header + v * 4);
    else
        load_halves(header, to);
}

/* The first rows of the first tile. */
DOT_TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int steps = f.block / K_STEP, is_long = f.block != K_STEP;
    float32x4_t sum[2][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vdupq_n_f32(0.0f);
    const TileStep *x = a->tiles;
    for (int64_t k = 0; k < a->padded; k += f.block) {
        float32x4_t d[4], least[4];
        const uint8_t *header = from;
        if (is_long) load_halves(header, d);
        if (is_long && f.shift) load_halves(header + 32, least);
        from += f.header;
        for (int s = 0; s < steps; s++, x++, from += f.step_bytes) {
            int32x4_t part[2][2][4];
            float32x4_t scale[4], shift[4];
            direct_step(kind, rows, from, x, part);
            EACH(h, f.halves) {
                direct_scale(kind, header, s, h, d, scale);
                EACH(m, rows) EACH(v, 4) sum[m][v] = vfmaq_f32(sum[m][v], scaled(part[h][m][v], x, m), scale[v]);
            }
            if (!f.shift) continue;
            if (is_long)
                load_scaled(header + 64 + (8 + s) * GROUP, 0, least, shift);
            else
                load_halves(header + 32, shift);
            if (kind == P_Q4_Z) EACH(v, 4) shift[v] = vmulq_f32(shift[v], scale[v]);
            EACH(m, rows) EACH(v, 4) sum[m][v] = vfmaq_n_f32(sum[m][v], shift[v], is_long ? -x->sum[m] : x->sum[m]);
        }
    }
    const float unit = kind == P_Q4_0 ? 0.0625f : 1.0f; /* signed halves of bytes were sixteen times too large */
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v] * unit);
}

/* Three or four rows of Q4_1, Q4_Z or Q4_0. */
DOT_TARGET INLINE void direct_tile(const int kind, const uint8_t *from, const Acts *a, float *acc) {
    const Sums sums = {acc, GROUP, 1};
    packed_tile(kind, from, a->tiles, a->steps, 0, sums);
    packed_tile(kind, from, a->tiles, a->steps, 8, sums);
    if (kind == P_Q4_0)
        for (int i = 0; i < TILE_ROWS * GROUP; i++) acc[i] *= 0.0625f;
}

#define DIRECT(kind)                                                            \
    case kind:                                                                  \
        if (a->rows == 2)                                                       \
            direct_rows(kind, 2, from, a, acc);                              \
        else                                                                    \
            direct_rows(kind, 1, from, a, acc);                              \
        return 1;

DOT_TARGET int packed_neon_dot_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows > 2 && kind == P_Q4_1) return direct_tile(P_Q4_1, from, a, acc), 1;
    if (a->rows > 2 && kind == P_Q4_Z) return direct_tile(P_Q4_Z, from, a, acc), 1;
    if (a->rows > 2 && kind == P_Q4_0) return direct_tile(P_Q4_0, from, a, acc), 1;
    if (a->rows > 2) return 0; /* unpacking once pays */
    switch (kind) {
        DIRECT(P_Q8_0)
        DIRECT(P_Q4_0)
        DIRECT(P_Q4_1)
        DIRECT(P_Q5_0)
        DIRECT(P_Q5_1)
        DIRECT(P_Q4_K)
        DIRECT(P_Q5_K)
        DIRECT(P_Q6_K)
        DIRECT(P_Q4_Z)
        DIRECT(P_Q8_F)
        default: return packed_neon_direct_wide(kind, from, a, acc);
    }
}

const Backend packed_neon_dot = {.quantize = packed_neon_dot_quantize,
                                 .unpack = packed_neon_unpack,
                                 .dot = packed_neon_dot_tiles,
                                 .direct = packed_neon_dot_direct,
                                 .direct_rows = TILE_ROWS,
                                 .widen = packed_neon_widen,
                                 .dot_wide = packed_neon_dot_wide,
                                 .tiled = 1,
                                 .in_place = 1};

#endif
