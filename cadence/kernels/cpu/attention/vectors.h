/* Vectors as attention needs them beyond common.h: rows of any cache type, lane sums. Where an instruction set
 * has one instruction for what the portable form says in several, it is named here; the values are the same. */
#ifndef CADENCE_ATTENTION_VECTORS_H
#define CADENCE_ATTENTION_VECTORS_H

#include "attention/kv.h"
#include "runtime/powers.h"

#if defined(NEON_LANES) || (defined(__AVX512F__) && VL == 16)
#define MANY_REGISTERS 1 /* 32 vectors, else 16 */
#else
#define MANY_REGISTERS 0
#endif

#define I8_STEP 16 /* entries of int8 taken at once */

typedef int8_t vc __attribute__((vector_size(VL), aligned(1), may_alias));

/* ---- rows of a cache ---- */

#if defined(NEON_LANES)
/* Interleaving is twice as fast as shifting, and four times as fast as converting. */

INLINE vf bf16_entries(const char *p) { /* the upper halves of floats */
    uint16x8_t h = vcombine_u16(vld1_u16((const uint16_t *)p), vdup_n_u16(0));
    return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), h));
}

/* Bytes in the low bits of 2^23 make 2^23 + byte; offset by 128, so that bytes have no sign. */
INLINE void i8_entries(const char *p, vf *to) {
    const uint16x8_t upper = vdupq_n_u16(0x4b00);
    const vf offset = splat(0x1p23f + 128.0f);
    uint8x16_t b = veorq_u8(vld1q_u8((const uint8_t *)p), vdupq_n_u8(0x80));
    uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(b, vdupq_n_u8(0)));
    uint16x8_t high = vreinterpretq_u16_u8(vzip2q_u8(b, vdupq_n_u8(0)));
    to[0] = vreinterpretq_f32_u16(vzip1q_u16(low, upper)) - offset;
    to[1] = vreinterpretq_f32_u16(vzip2q_u16(low, upper)) - offset;
    to[2] = vreinterpretq_f32_u16(vzip1q_u16(high, upper)) - offset;
    to[3] = vreinterpretq_f32_u16(vzip2q_u16(high, upper)) - offset;
}
#endif

/* VL entries of a row from entry i on. */
INLINE vf load_entries(const char *row, int64_t i, const int type) {
    if (type == I8) return __builtin_convertvector(__builtin_convertvector(*(const vc *)(row + i), vi), vf);
#if defined(NEON_LANES)
    if (type == BF16) return bf16_entries(row + i * 2);
#endif
    return load(row, i, type);
}

/* `width` vectors of a row from entry i on. */
INLINE void load_strip(const char *row, int64_t i, const int width, const int type, vf *to) {
#if defined(NEON_LANES)
    if (type == I8 && width >= 4) {
        i8_entries(row + i, to);
        if (width == 8) i8_entries(row + i + I8_STEP, to + 4);
        return;
    }
#endif
#pragma GCC unroll 8
    for (int w = 0; w < width; w++) to[w] = load_entries(row, i + w * VL, type);
}

/* ---- lanes ---- */

#if VL > 4
/* Lanes i, j, k, l (4 and above: of b) of every group of four. */
#define LANE(x, group) ((x) < 4 ? (x) + 4 * (group) : (x) + VL - 4 + 4 * (group))
#define OF_GROUP(i, j, k, l, g) LANE(i, g), LANE(j, g), LANE(k, g), LANE(l, g)
#if VL == 8
#define OF_ALL(i, j, k, l) OF_GROUP(i, j, k, l, 0), OF_GROUP(i, j, k, l, 1)
#else
#define OF_ALL(i, j, k, l) \
    OF_GROUP(i, j, k, l, 0), OF_GROUP(i, j, k, l, 1), OF_GROUP(i, j, k, l, 2), OF_GROUP(i, j, k, l, 3)
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define IN_FOURS(a, b, i, j, k, l) __builtin_shufflevector(a, b, OF_ALL(i, j, k, l))
#else
#define IN_FOURS(a, b, i, j, k, l) __builtin_shuffle(a, b, (vi){OF_ALL(i, j, k, l)})
#endif
#endif

/* Lane sums of four vectors: four lanes at a time first, so that most of it is done on whole vectors. */
INLINE v4 sums_of_four(vf a, vf b, vf c, vf d) {
#if defined(NEON_LANES)
    return (v4)vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
#elif VL == 4
    return sum4(a, b, c, d);
#else
    vf ab = IN_FOURS(a, b, 0, 4, 2, 6) + IN_FOURS(a, b, 1, 5, 3, 7);
    vf cd = IN_FOURS(c, d, 0, 4, 2, 6) + IN_FOURS(c, d, 1, 5, 3, 7);
    return fold(IN_FOURS(ab, cd, 0, 1, 4, 5) + IN_FOURS(ab, cd, 2, 3, 6, 7));
#endif
}

INLINE float largest(vf v) {
#if defined(NEON_LANES)
    return vmaxvq_f32(v);
#else
    return max1(v);
#endif
}

/* ---- sums of products of int8: exact, so in any order ---- */

#if defined(NEON_LANES)

typedef int8x16_t vbytes;
typedef int32x4_t vsums;

INLINE vbytes load_bytes(const void *p) { return vld1q_s8(p); }

INLINE vsums add_products(vsums sums, vbytes a, vbytes b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sums, a, b);
#else
    sums = vpadalq_s16(sums, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    return vpadalq_s16(sums, vmull_high_s8(a, b));
#endif
}

INLINE v4 totals_of_four(vsums a, vsums b, vsums c, vsums d) {
    return (v4)vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
}

#elif defined(__AVX2__)

typedef __m256i vbytes; /* widened to int16 */
typedef __m256i vsums;

INLINE vbytes load_bytes(const void *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(p)); }
INLINE vsums add_products(vsums sums, vbytes a, vbytes b) { return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)); }

INLINE v4 totals_of_four(vsums a, vsums b, vsums c, vsums d) {
    __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return (v4)_mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

#else

typedef int8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int16_t vbytes __attribute__((vector_size(32)));
typedef int32_t vsums __attribute__((vector_size(64)));

INLINE vbytes load_bytes(const void *p) { return __builtin_convertvector(*(const bytes16 *)p, vbytes); }
INLINE vsums add_products(vsums sums, vbytes a, vbytes b) { return sums + __builtin_convertvector(a * b, vsums); }

INLINE float total_of(vsums v) {
    int32_t total = 0;
    for (int i = 0; i < I8_STEP; i++) total += v[i];
    return (float)total;
}

INLINE v4 totals_of_four(vsums a, vsums b, vsums c, vsums d) {
    return (v4){total_of(a), total_of(b), total_of(c), total_of(d)};
}

#endif
#endif
