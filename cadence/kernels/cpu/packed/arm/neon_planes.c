/* Kinds of two planes with Arm's dot product instructions: one or two rows of x straight from the packed bytes. */
#if defined(__aarch64__)

#include "packed/arm/neon_tile.h"

/* Adds quad g of 4 output rows, w, for rows of x, to part p of their sums. */
#define DOT(p, g, w) \
    EACH(m, rows) part[p][m] = vdotq_laneq_s32(part[p][m], vreinterpretq_s8_u8(w), x[m][(g) / 4], (g) % 4)

/* A quad of codes, looked up in both tables. */
#define DOT_CODES(g, codes)                       \
    {                                             \
        const uint8x16_t found = codes;           \
        DOT(0, g, vqtbl1q_u8(tables[0], found));  \
        DOT(1, g, vqtbl1q_u8(tables[1], found));  \
    }

/* Adds a step of codes to the sums of 4 output rows in both planes; q: their first part. */
DOT_TARGET INLINE void add_codes(const int rows, const uint8x16_t *tables, const uint8_t *q, float32x4_t scale,
                                 const TileStep *from, const int8x16_t x[][2], float32x4_t sum[][2]) {
    const uint8x16_t low = vdupq_n_u8(15);
    int32x4_t part[2][2];
    uint8x16_t p[4];
    EACH(i, 4) p[i] = vld1q_u8(q + i * 64);
    EACH(plane, 2) EACH(m, rows) part[plane][m] = vld1q_s32((const int32_t *)again(starts));
    DOT_CODES(0, p[0] & low) DOT_CODES(1, p[1] & low) DOT_CODES(2, p[2] & low) DOT_CODES(3, p[3] & low)
    DOT_CODES(4, vshrq_n_u8(p[0], 4)) DOT_CODES(5, vshrq_n_u8(p[1], 4))
    DOT_CODES(6, vshrq_n_u8(p[2], 4)) DOT_CODES(7, vshrq_n_u8(p[3], 4))
    EACH(plane, 2) EACH(m, rows)
        sum[plane][m] = vfmaq_f32(sum[plane][m], scaled(part[plane][m], from, m), scale);
}

/* Vector v of [16] bytes, each in a word. */
INLINE int32x4_t small_words(uint8x16_t bytes, const int v) {
    const uint16x8_t half = v < 2 ? vmovl_u8(vget_low_u8(bytes)) : vmovl_high_u8(bytes);
    return vreinterpretq_s32_u32(v % 2 ? vmovl_high_u16(half) : vmovl_u16(vget_low_u16(half)));
}

/* Half h of a step of Q2_K, its four quads in pairs of bits. */
#define DOT_TWOS(h)                               \
    DOT(h, (h) * 4, quads[h] & three);            \
    DOT(h, (h) * 4 + 1, vshrq_n_u8(quads[h], 2) & three); \
    DOT(h, (h) * 4 + 2, vshrq_n_u8(quads[h], 4) & three); \
    DOT(h, (h) * 4 + 3, vshrq_n_u8(quads[h], 6));

/* The same of Q2_K, vector v of output rows. small: [2 halves][16 rows]; with: the block's scales and minimums. */
DOT_TARGET INLINE void add_two_bits(const int rows, const int v, const uint8_t *q, const uint8x16_t *small,
                                    const float32x4_t *with, const TileStep *from, const int8x16_t x[][2],
                                    float32x4_t sum[][2]) {
    const uint8x16_t three = vdupq_n_u8(3);
    const uint8x16_t quads[2] = {vld1q_u8(q), vld1q_u8(q + 64)};
    int32x4_t part[2][2], scales[2], least[2];
    EACH(h, 2) {
        scales[h] = small_words(small[h] & vdupq_n_u8(15), v);
        least[h] = small_words(vshrq_n_u8(small[h], 4), v);
        EACH(m, rows) part[h][m] = vdupq_n_s32(0);
    }
    DOT_TWOS(0)
    DOT_TWOS(1)
    EACH(m, rows) {
        int32x4_t whole = vdupq_n_s32(START), below = whole;
        EACH(h, 2) {
            whole = vmlaq_s32(whole, part[h][m], scales[h]);
            below = vmlaq_n_s32(below, least[h], vaddlvq_s8(x[m][h]));
        }
        sum[0][m] = vfmaq_f32(sum[0][m], scaled(whole, from, m), with[0]);
        sum[1][m] = vfmaq_f32(sum[1][m], scaled(below, from, m), with[1]);
    }
}

/* Scales of vector v of output rows, and what minimums are multiplied by. */
INLINE void scales_at(const int kind, const uint8_t *header, const int v, float32x4_t *with) {
    if (kind != P_Q2_K) {
        with[0] = vld1q_f32((const float *)header + v * 4);
        return;
    }
    with[0] = vcvt_f32_f16(vld1_f16((const float16_t *)(header + v * 8)));
    with[1] = vnegq_f32(vcvt_f32_f16(vld1_f16((const float16_t *)(header + 32 + v * 8))));
}

/* The first rows of the first tile. */
DOT_TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int table = kind == P_FP4 ? BNB_FIRST : NF4_FIRST;
    const uint8x16_t tables[2] = {vld1q_u8((const uint8_t *)code_tables[table]),
                                  vld1q_u8((const uint8_t *)code_tables[table + 1])};
    const TileStep *step = a->tiles;
    float32x4_t sum[4][2][2];
    EACH(v, 4) EACH(plane, 2) EACH(m, rows) sum[v][plane][m] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < a->padded; k += f.block) {
        const uint8_t *header = from;
        from += f.header;
        for (int s = 0; s < f.block / K_STEP; s++, step++, from += f.step_bytes) {
            int8x16_t x[2][2];
            uint8x16_t small[2];
            EACH(m, rows) EACH(i, 2) x[m][i] = vld1q_s8(step->q[m] + i * 16);
            if (kind == P_Q2_K) EACH(h, 2) small[h] = vld1q_u8(header + 64 + (s * 2 + h) * GROUP);
            EACH(v, 4) {
                float32x4_t with[2];
                scales_at(kind, header, v, with);
                if (kind == P_Q2_K)
                    add_two_bits(rows, v, from + v * 16, small, with, step, x, sum[v]);
                else
                    add_codes(rows, tables, from + v * 16, with[0], step, x, sum[v]);
            }
        }
    }
    EACH(m, rows) EACH(v, 4)
        vst1q_f32(acc + m * GROUP + v * 4, vfmaq_n_f32(sum[v][1][m], sum[v][0][m], (float)f.unit));
}

#define DIRECT(kind)                            \
    case kind:                                  \
        if (a->rows == 2)                       \
            direct_rows(kind, 2, from, a, acc); \
        else                                    \
            direct_rows(kind, 1, from, a, acc); \
        return 1;

DOT_TARGET int packed_neon_direct_planes(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    switch (kind) {
        DIRECT(P_NF4)
        DIRECT(P_FP4)
        DIRECT(P_Q2_K)
        default: return 0;
    }
}

#endif
