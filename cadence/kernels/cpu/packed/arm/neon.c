/* Packed products on 64-bit Arm, without the dot product instructions; floats for both. */
#if defined(__aarch64__)

#include "packed/generic.h"
#include "packed/arm/neon.h"

/* ---- x ---- */

static void quantize(const float *x, int64_t k, const Acts *a, int64_t row) { quantize_generic(x, k, a, row); }

/* ---- weights ---- */

/* A step of 4, 5 or 6 bits -> [8 quads][16 rows][4]. The top bit is stored inverted: the sign, where numbers have one. */
INLINE void unpack_step(const int kind, const uint8_t *from, int8_t *to) {
    static const int8_t fours[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    const Format f = formats[kind];
    if (f.bits == 4) {
        unpack_codes(fours, from, to);
        return;
    }
    EACH(v, 4) {
        uint8x16_t p[6], top[8];
        EACH(i, f.bits) p[i] = vld1q_u8(from + i * 64 + v * 16);
        if (f.bits == 5)
            top_fives(p, top);
        else
            top_sixes(p, top);
        EACH(g, 8) {
            int8x16_t number = vreinterpretq_s8_u8(top[g]);
            if (f.bits == 6)
                number = vshrq_n_s8(number, 2);
            else if (f.zero)
                number = vshrq_n_s8(number, 3);
            else
                number = vreinterpretq_s8_u8(vshrq_n_u8(top[g] ^ vdupq_n_u8(0x80), 3));
            vst1q_s8(to + g * 64 + v * 16, number);
        }
    }
}

INLINE void unpack_inverted(const int kind, const uint8_t *from, int64_t k, Tile *to) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    to->at = to->q, to->step_bytes = K_STEP * GROUP;
    for (int64_t at = 0; at < k / K_STEP; at += steps) {
        unpack_header(kind, from, to->scale + at * f.halves * GROUP, to->shift + at * GROUP);
        from += f.header;
        for (int64_t s = 0; s < steps; s++, from += f.step_bytes)
            unpack_step(kind, from, to->q + (at + s) * K_STEP * GROUP);
    }
}

void packed_neon_unpack(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to) {
    switch (kind) {
        case P_Q4_0: unpack_inverted(P_Q4_0, from, k, to); break;
        case P_Q5_0: unpack_inverted(P_Q5_0, from, k, to); break;
        case P_Q5_1: unpack_inverted(P_Q5_1, from, k, to); break;
        case P_Q5_K: unpack_inverted(P_Q5_K, from, k, to); break;
        case P_Q6_K: unpack_inverted(P_Q6_K, from, k, to); break;
        default: unpack_generic(kind, plane, 1, from, k, to);
    }
}
void packed_neon_widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

/* ---- floats ---- */

/* ROWS rows of a tile of x [k][TILE_ROWS] times w [k][16]. */
INLINE void dot_wide_rows(const int rows, const float *w, const float *x, int64_t k, float *acc) {
    float32x4_t sum[TILE_ROWS][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vld1q_f32(acc + m * GROUP + v * 4);
    for (int64_t i = 0; i < k; i++) {
        float32x4_t wv[4];
        EACH(v, 4) wv[v] = vld1q_f32(w + i * GROUP + v * 4);
        float32x4_t xv = vld1q_f32(x + i * TILE_ROWS);
        EACH(m, rows) EACH(v, 4) sum[m][v] = vfmaq_n_f32(sum[m][v], wv[v], xv[m]);
    }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v]);
}

void packed_neon_dot_wide(const float *w, const Stretch *x) {
    const Acts *a = x->acts;
    FOR_TILES(x, dot_wide_rows(ROWS, w, a->wide + (T * a->padded + x->at) * TILE_ROWS, x->count, ACC))
}

/* Packed bf16 as it lies, for few rows. */
INLINE void direct_bf16(const int rows, const uint8_t *from, const Acts *a, float *acc) {
    float32x4_t sum[2][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vdupq_n_f32(0.0f);
    const uint32x4_t top = vdupq_n_u32(0xffff0000u);
    const float *x = a->wide;
    for (int64_t i = 0; i < a->padded; i += 4, from += 128, x += 4 * TILE_ROWS)
        EACH(pair, 2) {
            float32x4_t x0 = vld1q_f32(x + pair * 2 * TILE_ROWS), x1 = vld1q_f32(x + (pair * 2 + 1) * TILE_ROWS);
            EACH(v, 4) {
                uint32x4_t both = vld1q_u32((const uint32_t *)(from + pair * 64 + v * 16));
                float32x4_t even = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
                float32x4_t odd = vreinterpretq_f32_u32(vandq_u32(both, top));
                EACH(m, rows) sum[m][v] = vfmaq_n_f32(sum[m][v], even, x0[m]);
                EACH(m, rows) sum[m][v] = vfmaq_n_f32(sum[m][v], odd, x1[m]);
            }
        }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v]);
}

/* Eight float16: by an instruction, which takes the time of four others; or, since their exponents lie 112 below those of
 * floats, with their bits moved to the places of a float's, times 2^-112. */
INLINE void eight_halves(const int moved, const uint8_t *from, float32x4_t *to) {
    int16x8_t bits = vld1q_s16((const int16_t *)from);
    if (!moved) {
        to[0] = vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_s16(bits)));
        to[1] = vcvt_high_f32_f16(vreinterpretq_f16_s16(bits));
        return;
    }
    const int32x4_t mask = vdupq_n_s32((int32_t)0x8fffffff); /* the sign came three times more */
    to[0] = vreinterpretq_f32_s32(vshll_n_s16(vget_low_s16(bits), 13) & mask);
    to[1] = vreinterpretq_f32_s32(vshll_high_n_s16(bits, 13) & mask);
}

/* Packed float16 as it lies, for few rows. */
INLINE void direct_half(const int moved, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    float32x4_t sum[2][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vdupq_n_f32(0.0f);
    const float *x = a->wide;
    for (int64_t i = 0; i < a->padded; i += 4, from += 128, x += 4 * TILE_ROWS)
        EACH(k, 4) {
            float32x4_t xv = vld1q_f32(x + k * TILE_ROWS) * (moved ? 0x1p112f : 1.0f), w[4];
            EACH(part, 2) eight_halves(moved, from + k * 32 + part * 16, w + part * 2);
            EACH(v, 4) EACH(m, rows) sum[m][v] = vfmaq_n_f32(sum[m][v], w[v], xv[m]);
        }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v]);
}

/* x of 2^15 and more, times 2^112, is infinite, and so are its sums, or not numbers: those are made again. */
INLINE void direct_f16(const int rows, const uint8_t *from, const Acts *a, float *acc) {
    float none = 0.0f;
    direct_half(1, rows, from, a, acc);
    for (int i = 0; i < rows * GROUP; i++) none += acc[i] * 0.0f;
    if (none != 0.0f) direct_half(0, rows, from, a, acc);
}

int packed_neon_direct_wide(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if ((kind != P_BF16 && kind != P_F16) || a->rows > 2) return 0;
    if (kind == P_BF16 && a->rows == 2)
        direct_bf16(2, from, a, acc);
    else if (kind == P_BF16)
        direct_bf16(1, from, a, acc);
    else if (a->rows == 2)
        direct_f16(2, from, a, acc);
    else
        direct_f16(1, from, a, acc);
    return 1;
}

/* ---- integers ---- */

/* Sums of a quad's four products for 4 output rows: two in 16 bits (they cannot overflow), then the pairs. */
INLINE int32x4_t quad_without(int32x4_t sum, int8x16_t w, int8x16_t x) {
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    int32x4_t high = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(sum, vpaddq_s32(low, high));
}

INLINE void row_without(const int halves, const int shift, const Tile *w, const Acts *a, int64_t row, int64_t step,
                        int64_t steps, float *acc) {
    const int quads = 8 / halves;
    float32x4_t sum[4];
    EACH(v, 4) sum[v] = vld1q_f32(acc + v * 4);
    for (int64_t s = 0; s < steps; s++) {
        int64_t at = (row / TILE_ROWS * a->steps + step + s) * TILE_ROWS + row % TILE_ROWS;
        EACH(h, halves) {
            const int8_t *x = a->q + row * a->padded + (step + s) * K_STEP + h * quads * 4;
            const int8_t *q = w->at + s * w->step_bytes + h * quads * 64;
            int32x4_t part[4];
            EACH(v, 4) part[v] = vdupq_n_s32(0);
            EACH(g, quads) {
                int32_t four;
                memcpy(&four, x + g * 4, 4);
                int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(four));
                EACH(v, 4) part[v] = quad_without(part[v], vld1q_s8(q + g * 64 + v * 16), xv);
            }
            EACH(v, 4) {
                float32x4_t scale = vld1q_f32(w->scale + (s * halves + h) * GROUP + v * 4);
                sum[v] = vfmaq_f32(sum[v], vmulq_n_f32(vcvtq_f32_s32(part[v]), a->scale[at]), scale);
            }
        }
        if (shift)
            EACH(v, 4) sum[v] = vfmaq_n_f32(sum[v], vld1q_f32(w->shift + s * GROUP + v * 4), a->sum[at]);
    }
    EACH(v, 4) vst1q_f32(acc + v * 4, sum[v]);
}

static void dot_without(int64_t kind, const Tile *w, const Stretch *x) {
    for (int64_t m = 0; m < stretch_rows(x); m++) {
        int64_t row = x->tile * TILE_ROWS + m;
        WITH_SCALES(kind, row_without(HALVES, SHIFT, w, x->acts, row, x->at, x->count, x->acc + m * GROUP))
    }
}

const Backend packed_neon = {.quantize = quantize,
                             .unpack = packed_neon_unpack,
                             .dot = dot_without,
                             .direct = packed_neon_direct_wide,
                             .direct_rows = TILE_ROWS,
                             .widen = packed_neon_widen,
                             .dot_wide = packed_neon_dot_wide};

#endif
