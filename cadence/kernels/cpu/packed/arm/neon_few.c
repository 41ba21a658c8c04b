/* Few rows of x with Arm's dot product instructions, straight from the packed bytes.
 *
 * Quants that have a sign are multiplied where they lie in their bytes, `unit` times too large, and so are the sums. A
 * Neoverse N1 has two pipes for vectors. A step of 32 columns of one row takes of their slots (a dot product, a logical
 * operation or a multiply-add one, a shift one of the second pipe, four float16 to float32 two of the first):
 *   64 for the integer sums of 4 bits, 88 of 5 bits, 80 of 6 bits; 8 to scale them, 16 for 6 bits; 8 for scales or shifts
 *   in float16, and as many for small integers; 4 to add shifts.
 * That is, in cycles, predicted (and measured with weights from memory): Q4_0 40 (46), Q4_1 46 (52), Q5_0 52 (63), Q5_1 58
 * (69), Q4_K 48 (60), Q5_K 60 (75), Q6_K 57 (72), IQ4_NL 56 (60). The memory takes 41 to 60. */
#if defined(__aarch64__)

#include "packed/arm/neon_k.h"

/* ---- scales ---- */

/* Vector v of [16] float16. */
INLINE float32x4_t halves_at(const uint8_t *from, const int v) {
    return vcvt_f32_f16(vld1_f16((const float16_t *)(from + v * 8)));
}

/* Vector v of [16] exponents, as exponent_to_float has them. */
INLINE float32x4_t exponents_at(const uint8_t *from, const int v) {
    uint8x16_t in_place = vqtbl1q_u8(vld1q_u8(from), vld1q_u8(places[v])); /* in the second bytes of words */
    uint32x4_t bits = vmaxq_u32(vshlq_n_u32(vreinterpretq_u32_u8(in_place), 15), vdupq_n_u32(0x400000));
    return vmulq_n_f32(vreinterpretq_f32_u32(bits), 0.5f);
}

/* unit: so many times too large. */
INLINE void begin_small(const uint8_t *from, const int excess, const float unit, SmallScales *s) {
    EACH(v, 4) {
        float32x4_t d = vmulq_n_f32(halves_at(from, v), unit);
        vst1q_f32(s->d + v * 4, d);
        vst1q_f32(s->lift + v * 4, vmulq_n_f32(d, -32768.0f - (float)excess));
    }
}

/* Vector v of the scales that the [16] integers at `from` stand for. */
INLINE float32x4_t small_at(const uint8_t *from, const SmallScales *s, const int v) {
    uint8x16_t number = vqtbx1q_u8(vld1q_u8(again(lifted)), vld1q_u8(from), vld1q_u8(places[v]));
    return vfmaq_f32(vld1q_f32(again(s->lift + v * 4)), vreinterpretq_f32_u8(number), vld1q_f32(s->d + v * 4));
}

/* ---- integer sums of a step ---- */

/* Parts of a step: vectors of 4 output rows, [16 rows][4] bytes apart. */
INLINE int parts_of(const int kind) { return formats[kind].step_bytes / 64; }

/* Adds quad g of 4 output rows, w, for rows of x, to half h of their sums. */
#define DOT(h, g, w) \
    EACH(m, rows) sum[h][m] = vdotq_laneq_s32(sum[h][m], vreinterpretq_s8_u8(w), x[m][(g) / 4], (g) % 4)

DOT_TARGET INLINE void dot_fours(const int is_signed, const int rows, const uint8x16_t *p, int8x16_t x[][2],
                                 int32x4_t sum[][2]) {
    const uint8x16_t low = vdupq_n_u8(15), high = vdupq_n_u8(0xf0);
    DOT(0, 0, is_signed ? vshlq_n_u8(p[0], 4) : p[0] & low);
    DOT(0, 1, is_signed ? vshlq_n_u8(p[1], 4) : p[1] & low);
    DOT(0, 2, is_signed ? vshlq_n_u8(p[2], 4) : p[2] & low);
    DOT(0, 3, is_signed ? vshlq_n_u8(p[3], 4) : p[3] & low);
    DOT(0, 4, is_signed ? p[0] & high : vshrq_n_u8(p[0], 4));
    DOT(0, 5, is_signed ? p[1] & high : vshrq_n_u8(p[1], 4));
    DOT(0, 6, is_signed ? p[2] & high : vshrq_n_u8(p[2], 4));
    DOT(0, 7, is_signed ? p[3] & high : vshrq_n_u8(p[3], 4));
}

DOT_TARGET INLINE void dot_fives(const int rows, const uint8x16_t *p, int8x16_t x[][2], int32x4_t sum[][2]) {
    const uint8x16_t mask = vdupq_n_u8(0xf8);
    uint8x16_t top[8];
    top_fives(p, top);
    DOT(0, 5, top[5] & mask);
    DOT(0, 0, top[0] & mask);
    DOT(0, 6, top[6] & mask);
    DOT(0, 1, top[1] & mask);
    DOT(0, 7, top[7]);
    DOT(0, 2, top[2] & mask);
    DOT(0, 3, top[3] & mask);
    DOT(0, 4, top[4] & mask);
}

DOT_TARGET INLINE void dot_sixes(const int rows, const uint8x16_t *p, int8x16_t x[][2], int32x4_t sum[][2]) {
    const uint8x16_t mask = vdupq_n_u8(0xfc);
    uint8x16_t top[8];
    top_sixes(p, top);
    DOT(0, 3, top[3]);
    DOT(0, 0, top[0] & mask);
    DOT(0, 1, top[1] & mask);
    DOT(0, 2, top[2] & mask);
    DOT(1, 7, top[7]);
    DOT(1, 4, top[4] & mask);
    DOT(1, 5, top[5] & mask);
    DOT(1, 6, top[6] & mask);
}

DOT_TARGET INLINE void dot_eights(const int rows, const uint8x16_t *p, int8x16_t x[][2], int32x4_t sum[][2]) {
    DOT(0, 0, p[0]);
    DOT(0, 1, p[1]);
    DOT(0, 2, p[2]);
    DOT(0, 3, p[3]);
    DOT(0, 4, p[4]);
    DOT(0, 5, p[5]);
    DOT(0, 6, p[6]);
    DOT(0, 7, p[7]);
}

/* Codes, looked up in a table. */
DOT_TARGET INLINE void dot_codes(const int halves, const int rows, uint8x16_t table, const uint8x16_t *p,
                                 int8x16_t x[][2], int32x4_t sum[][2]) {
    const uint8x16_t low = vdupq_n_u8(15);
    DOT(0, 0, vqtbl1q_u8(table, p[0] & low));
    DOT(0, 1, vqtbl1q_u8(table, p[1] & low));
    DOT(0, 2, vqtbl1q_u8(table, p[2] & low));
    DOT(0, 3, vqtbl1q_u8(table, p[3] & low));
    DOT(halves - 1, 4, vqtbl1q_u8(table, vshrq_n_u8(p[0], 4)));
    DOT(halves - 1, 5, vqtbl1q_u8(table, vshrq_n_u8(p[1], 4)));
    DOT(halves - 1, 6, vqtbl1q_u8(table, vshrq_n_u8(p[2], 4)));
    DOT(halves - 1, 7, vqtbl1q_u8(table, vshrq_n_u8(p[3], 4)));
}

/* sum [halves][rows] of 4 output rows. */
DOT_TARGET INLINE void dot_parts(const int kind, const int rows, const uint8x16_t *p, int8x16_t x[][2],
                                 const TileStep *from, const uint8_t *header, int32x4_t sum[][2]) {
    const Format f = formats[kind];
    EACH(h, f.halves) EACH(m, rows)
        sum[h][m] = f.bits == 5 && f.zero == 0 ? vld1q_dup_s32(again(&from->begin[m])) : vld1q_s32(again(starts));
    if (f.table)
        dot_codes(f.halves, rows, vld1q_u8((const uint8_t *)table_of(kind, header)), p, x, sum);
    else if (f.bits == 4)
        dot_fours(kind == P_Q4_0, rows, p, x, sum);
    else if (f.bits == 5)
        dot_fives(rows, p, x, sum);
    else if (f.bits == 6)
        dot_sixes(rows, p, x, sum);
    else
        dot_eights(rows, p, x, sum);
}

/* ---- one or two rows ---- */

INLINE float unit_of(const int kind) {
    const int bits = formats[kind].bits;
    return bits == 5 ? FIVES : bits == 6 ? SIXES : kind == P_Q4_0 ? 16.0f : 1.0f;
}

typedef struct {
    SmallScales scale, least;
} BlockScales;

/* Scales and shifts of step s for 4 output rows. */
typedef struct {
    float32x4_t scale[2], shift;
} StepScales;

INLINE StepScales direct_scales(const int kind, const uint8_t *header, int s, const BlockScales *b, const int v) {
    StepScales found;
    const int halves = formats[kind].halves;
    if (has_small_scales(kind)) {
        EACH(h, halves) found.scale[h] = small_at(header + 32 + (s * halves + h) * GROUP, &b->scale, v);
    } else if (kind == P_Q8_F || kind == P_T4_F) {
        EACH(h, halves) found.scale[h] = vld1q_f32((const float *)header + h * GROUP + v * 4);
    } else if (kind == P_MXFP4) {
        found.scale[0] = exponents_at(header, v);
    } else if (formats[kind].block != K_STEP) {
        found.scale[0] = small_at(header + 64 + s * GROUP, &b->scale, v);
        found.shift = small_at(header + 64 + (8 + s) * GROUP, &b->least, v);
    } else {
        found.scale[0] = halves_at(header, v);
        if (formats[kind].shift) found.shift = halves_at(header + 32, v);
        if (has_zeros(kind)) found.shift = vmulq_f32(found.shift, found.scale[0]);
    }
    return found;
}

/* Asks for lines v and v + 4 of those that steps take. Kinds that lie in bytes leave the processor time to ask by itself. */
INLINE void ask_ahead(const int kind, const uint8_t *q, const int v) {
    const Format f = formats[kind];
    const int lines = (f.step_bytes + f.header * K_STEP / f.block + 63) / 64;
    if (lies_in_bytes(kind)) return;
    __builtin_prefetch(q + AHEAD + v * 64);
    if (v + 4 < lines) __builtin_prefetch(q + AHEAD + (v + 4) * 64);
}

/* One step: the integer sums of all output rows, which are then scaled. */
DOT_TARGET INLINE void direct_step(const int kind, const int rows, const uint8_t *header, int s, const BlockScales *b,
                                   const uint8_t *q, const TileStep *from, float32x4_t sum[][4]) {
    const Format f = formats[kind];
    const float unit = f.block == K_STEP ? unit_of(kind) : -1.0f;
    int8x16_t x[2][2];
    int32x4_t part[4][2][2];
    EACH(m, rows) EACH(i, 2) x[m][i] = vld1q_s8(from->q[m] + i * 16);
    EACH(v, 4) {
        uint8x16_t p[8];
        ask_ahead(kind, q, v);
        EACH(i, parts_of(kind)) p[i] = vld1q_u8(q + i * 64 + v * 16);
        dot_parts(kind, rows, p, x, from, header, part[v]);
    }
    EACH(v, 4) {
        const StepScales with = direct_scales(kind, header, s, b, v);
        EACH(m, rows) {
            EACH(h, f.halves) sum[m][v] = vfmaq_f32(sum[m][v], scaled(part[v][h][m], from, m), with.scale[h]);
            if (f.shift) sum[m][v] = vfmaq_n_f32(sum[m][v], with.shift, from->sum[m] * unit);
        }
    }
}

/* The first rows of the first tile. */
DOT_TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int steps = f.block / K_STEP, is_long = f.block != K_STEP;
    float32x4_t sum[2][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vdupq_n_f32(0.0f);
    const TileStep *x = a->tiles;
    for (int64_t k = 0; k < a->padded; k += f.block) {
        BlockScales b;
        const uint8_t *header = from;
        if (is_long) begin_small(header, has_small_scales(kind) ? 128 : 0, 1.0f, &b.scale);
        if (is_long && f.shift) begin_small(header + 32, 0, unit_of(kind), &b.least);
        __asm__ volatile("" ::: "memory");
        from += f.header;
        const uint8_t *small = header + (f.shift ? 64 : 32);
        for (int s = 0; s < steps; s++, x++, from += f.step_bytes) {
            if (rows == 1 && is_long && !f.table)
                k_step(f.bits, from, x, small + s * f.halves * GROUP, &b.scale, &b.least, sum[0]);
            else
                direct_step(kind, rows, header, s, &b, from, x, sum);
        }
    }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v] * (1.0f / unit_of(kind)));
}

/* ---- three or four rows ---- */

/* Of Q4_1, Q4_Z or Q4_0. */
DOT_TARGET INLINE void direct_tile(const int kind, const uint8_t *from, const Acts *a, float *acc) {
    const Sums sums = {acc, GROUP, 1};
    packed_tile(kind, from, a->tiles, a->steps, 0, sums);
    packed_tile(kind, from, a->tiles, a->steps, 8, sums);
    if (kind == P_Q4_0)
        for (int i = 0; i < TILE_ROWS * GROUP; i++) acc[i] *= 0.0625f;
}

#define DIRECT(kind)                            \
    case kind:                                  \
        if (a->rows == 2)                       \
            direct_rows(kind, 2, from, a, acc); \
        else                                    \
            direct_rows(kind, 1, from, a, acc); \
        return 1;

DOT_TARGET int packed_neon_dot_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows > 2 && kind == P_Q4_1) return direct_tile(P_Q4_1, from, a, acc), 1;
    if (a->rows > 2 && kind == P_Q4_Z) return direct_tile(P_Q4_Z, from, a, acc), 1;
    if (a->rows > 2 && kind == P_Q4_0) return direct_tile(P_Q4_0, from, a, acc), 1;
    if (a->rows > 2) return 0; /* unpacking once pays */
    if (!is_float_kind(kind) && has_planes(kind)) return packed_neon_direct_planes(kind, from, a, acc);
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
        DIRECT(P_Q8_Z)
        DIRECT(P_IQ4_NL)
        DIRECT(P_IQ4_XS)
        DIRECT(P_MXFP4)
        DIRECT(P_T4_F)
        default: return packed_neon_direct_wide(kind, from, a, acc);
    }
}

#endif
