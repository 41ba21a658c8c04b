/* Rows of float8 and int4 as floats. */
#ifndef CADENCE_ATTENTION_FEW_BITS_H
#define CADENCE_ATTENTION_FEW_BITS_H

#include "attention/vectors.h"

#define BYTES_STEP 16 /* entries taken at once */

/* BYTES_STEP float8 -> floats: their bits lie in a float's as they are, whose exponent is too small by LESS_EXPONENT. */
INLINE void float8_entries(const char *p, const int type, float scale, float *to) {
#if defined(NEON_LANES)
    uint8x16_t b = vld1q_u8((const uint8_t *)p);
    for (int half = 0; half < 2; half++) {
        uint16x8_t h = vreinterpretq_u16_u8(half ? vzip2q_u8(vdupq_n_u8(0), b) : vzip1q_u8(vdupq_n_u8(0), b));
        if (type == E4M3) /* by 2^-8, as float16 */
            h = vorrq_u16(vandq_u16(h, vdupq_n_u16(0x8000)), vshrq_n_u16(vandq_u16(h, vdupq_n_u16(0x7f00)), 1));
        float16x8_t f = vreinterpretq_f16_u16(h);
        const float unit = type == E4M3 ? 256.0f : 1.0f;
        storef(to + 8 * half, (vf)vcvt_f32_f16(vget_low_f16(f)) * unit * scale);
        storef(to + 8 * half + 4, (vf)vcvt_high_f32_f16(f) * unit * scale);
    }
#else
    for (int i = 0; i < BYTES_STEP; i += VL) {
        vi b = __builtin_convertvector(*(const vc *)(p + i), vi);
        vi bits = (b & 0x7f) << LESS_MANTISSA(type) | (b & (int32_t)0x80000000);
        storef(to + i, (vf)bits * splat(type == E4M3 ? 0x1p120f : 0x1p112f) * scale);
    }
#endif
}

/* `dim` entries -> floats, zeros up to `padded`. */
INLINE void widen_float8(const char *row, int64_t dim, int64_t padded, const int type, float *to) {
    float scale = scale_of_row(row, dim), rest[BYTES_STEP];
    char tail[BYTES_STEP] = {0};
    int64_t i = 0;
    for (; i + BYTES_STEP <= dim; i += BYTES_STEP) float8_entries(row + i, type, scale, to + i);
    if (i == padded) return;
    memcpy(tail, row + i, (size_t)(dim - i));
    float8_entries(tail, type, scale, rest);
    for (int64_t j = i; j < padded; j++) to[j] = j < dim ? rest[j - i] : 0.0f;
}

/* A run of int4 -> RUN_ENTRIES floats. */
INLINE void four_bit_entries(const char *run, float *to) {
    uint16_t halves[VL] = {0};
    float wide[VL];
    memcpy(halves, run, 4);
    storef(wide, load(halves, 0, F16));
    vf scale = splat(wide[0]), least = splat(wide[1]);
#if defined(NEON_LANES)
    /* Bytes in the low bits of 2^23 make 2^23 + byte. */
    const uint16x8_t upper = vdupq_n_u16(0x4b00);
    const vf offset = splat(0x1p23f);
    uint8x16_t b = vld1q_u8((const uint8_t *)run + 4);
    for (int half = 0; half < 2; half++) {
        uint8x16_t n = half ? vshrq_n_u8(b, 4) : vandq_u8(b, vdupq_n_u8(15));
        uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(n, vdupq_n_u8(0)));
        uint16x8_t high = vreinterpretq_u16_u8(vzip2q_u8(n, vdupq_n_u8(0)));
        vf q[4] = {vreinterpretq_f32_u16(vzip1q_u16(low, upper)), vreinterpretq_f32_u16(vzip2q_u16(low, upper)),
                   vreinterpretq_f32_u16(vzip1q_u16(high, upper)), vreinterpretq_f32_u16(vzip2q_u16(high, upper))};
        for (int j = 0; j < 4; j++) storef(to + 16 * half + 4 * j, madd(least, scale, q[j] - offset));
    }
#else
    for (int i = 0; i < RUN_ENTRIES / 2; i += VL) {
        vi b = __builtin_convertvector(*(const vc *)(run + 4 + i), vi);
        storef(to + i, madd(least, scale, __builtin_convertvector(b & 15, vf)));
        storef(to + RUN_ENTRIES / 2 + i, madd(least, scale, __builtin_convertvector(b >> 4 & 15, vf)));
    }
#endif
}

INLINE void widen_four_bits(const char *row, int64_t dim, int64_t padded, float *to) {
    float rest[RUN_ENTRIES];
    int64_t i = 0;
    for (; i + RUN_ENTRIES <= dim; i += RUN_ENTRIES, row += RUN_BYTES) four_bit_entries(row, to + i);
    if (i == padded) return;
    four_bit_entries(row, rest);
    for (int64_t j = i; j < padded; j++) to[j] = j < dim ? rest[j - i] : 0.0f;
}

#endif
