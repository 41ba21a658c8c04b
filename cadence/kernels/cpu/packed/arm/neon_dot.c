/* Packed products with Arm's dot product instructions. */
#if defined(__aarch64__)

#include "packed/arm/neon_tile.h"

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
        to->begin[m] = START + FIVES * 16 * sum;
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

/* Asks for the share of tile i. */
INLINE void ask_soon(const Stretch *x, int64_t i) {
    const int64_t lines = (x->soon.bytes + 63) / 64;
    for (int64_t line = lines * i / x->tiles; line < lines * (i + 1) / x->tiles; line++)
        __builtin_prefetch(x->soon.at + line * 64, 0, 2);
}

DOT_TARGET void packed_neon_dot_tiles(int64_t kind, const Tile *w, const Stretch *x) {
    for (int64_t i = 0; i < x->tiles; i++) {
        int64_t rows = tile_rows_of(x->acts, x->tile + i);
        const TileStep *at = x->acts->tiles + (x->tile + i) * x->acts->steps + x->at;
        Sums acc = {x->acc + i * TILE_ROWS * x->stride, x->stride, x->at == 0};
        EACH(m, TILE_ROWS) __builtin_prefetch(acc.acc + m * acc.stride, 1);
        ask_soon(x, i);
        if (rows == 1)
            WITH_SCALES(kind, dot_last(1, HALVES, SHIFT, w, at, x->count, acc))
        else if (rows == 2)
            WITH_SCALES(kind, dot_last(2, HALVES, SHIFT, w, at, x->count, acc))
        else
            for (int64_t col = 0; col < GROUP; col += 8)
                WITH_SCALES(kind, dot_tile(HALVES, SHIFT, w, at, x->count, col, acc))
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
