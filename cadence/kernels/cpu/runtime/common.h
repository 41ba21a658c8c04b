/* Vectors of VL floats through the compiler's portable vector types, and the three element types of tensors.
 *
 * Every kernel here treats each output row with the same sequence of operations whatever else is in the batch: the
 * variants for fewer rows differ only in how many rows they carry along, never in the order of one row's sums. */
#ifndef CADENCE_COMMON_H
#define CADENCE_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/commands.h"

#if defined(VL) && defined(NR_MAX) /* chosen by hand */
#elif defined(__AVX512F__)
#define VL 16
#define NR_MAX 4 /* columns of a register tile: NR_MAX * 4 accumulators must fit beside the operands */
#elif defined(__AVX__)
#define VL 8
#define NR_MAX 2
#elif defined(__SSE2__)
#define VL 4
#define NR_MAX 2
#else
#define VL 4
#define NR_MAX 4
#endif

typedef float vf __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))
/* A loop of few turns, a constant number, written out. */
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#define EXPORT __attribute__((visibility("default")))

INLINE int64_t element_size(int dtype) { return dtype == F32 ? 4 : 2; }
INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

INLINE vf splat(float x) { return x - (vf){0}; } /* x + 0 would be an addition: of -0 it is 0 */
INLINE vf loadf(const float *p) { return *(const vf *)p; }
INLINE void storef(float *p, vf v) { *(vf *)p = v; }
INLINE vf pick(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
INLINE vf maxv(vf a, vf b) { return pick(a > b, a, b); }

/* sum + a * b, rounded once where the machine can. Written with operators it is rounded twice, and slower: build.py
 * forbids the compiler to decide. */
INLINE vf madd(vf sum, vf a, vf b) {
#if defined(__AVX512F__) && VL == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__) && VL == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__) && VL == 4 && defined(__clang__)
    return (vf)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#elif defined(__aarch64__) && VL == 4 /* of the intrinsic gcc copies sums about: in a loop of 16, 24 times */
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
#else
    return sum + a * b;
#endif
}

/* The same, by one number. */
INLINE vf madd_by(vf sum, vf a, float b) {
#if defined(__aarch64__) && VL == 4 && !defined(__clang__)
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
#else
    return madd(sum, a, splat(b));
#endif
}

/* Memory of `bytes` in place of `old` (or NULL), 64-byte aligned, that goes when the calling thread does. */
void *thread_memory(void *old, int64_t bytes);

/* A buffer each thread keeps between calls, one per source file; NULL = no memory. */
static inline float *thread_buffer(int64_t floats) {
    static _Thread_local float *buffer;
    static _Thread_local int64_t size;
    if (size < floats) {
        buffer = thread_memory(buffer, floats * 4);
        size = buffer ? floats : 0;
    }
    return buffer;
}

/* ---- element types ---- */

#if defined(__aarch64__) && VL == 4 /* gcc would convert element by element */
INLINE vu widened(vh h) { return (vu)vmovl_u16((uint16x4_t)h); }
INLINE vh narrowed(vu x) { return (vh)vmovn_u32((uint32x4_t)x); }
INLINE vf bf16_to_f32(vh h) { return (vf)vshll_n_u16((uint16x4_t)h, 16); } /* one instruction, where a shift is two */
#else
INLINE vu widened(vh h) { return __builtin_convertvector(h, vu); }
INLINE vh narrowed(vu x) { return __builtin_convertvector(x, vh); }
INLINE vf bf16_to_f32(vh h) { return (vf)(widened(h) << 16); }
#endif

/* To the nearest, ties to even. One exception: the processor's own instruction takes numbers of a magnitude below 2^-126
 * (subnormal ones) for zeros of their sign, as its products of bf16 do. Nothing a model computes hangs on those. */
#if defined(__AVX512BF16__) && VL == 16
INLINE vh f32_to_bf16(vf x) { return (vh)_mm512_cvtneps_pbh((__m512)x); }
#else
INLINE vh f32_to_bf16(vf x) {
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu nan = (bits >> 16) | 0x40;
    vu is_nan = (vu)(x != x);
    return narrowed((nan & is_nan) | (rounded & ~is_nan));
}
#endif

#if defined(__aarch64__) && VL == 4
INLINE vf f16_to_f32(vh h) { return (vf)vcvt_f32_f16((float16x4_t)h); }
INLINE vh f32_to_f16(vf x) { return (vh)vcvt_f16_f32((float32x4_t)x); }
#elif defined(__AVX512F__) && VL == 16
INLINE vf f16_to_f32(vh h) { return (vf)_mm512_cvtph_ps((__m256i)h); }
INLINE vh f32_to_f16(vf x) { return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__F16C__) && VL == 8
INLINE vf f16_to_f32(vh h) { return (vf)_mm256_cvtph_ps((__m128i)h); }
INLINE vh f32_to_f16(vf x) { return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE vf f16_to_f32(vh h) {
    vu bits = widened(h);
    vu sign = (bits & 0x8000) << 16, rest = (bits & 0x7fff) << 13;
    vf scaled = (vf)rest * splat(0x1p112f); /* re-biases the exponent; subnormals become exact normals */
    vu special = (vu)((vi)rest >= (vi)((vu){0} + (0x7c00u << 13)));
    return (vf)(sign | ((vu)scaled & ~special) | ((rest | 0x7f800000u) & special));
}

INLINE vh f32_to_f16(vf x) {
    vu bits = (vu)x, sign = (bits >> 16) & 0x8000, mag = bits & 0x7fffffff;
    /* Normal range: re-bias, round half to even on the 13 dropped bits; a carry past 0x7bff gives infinity. */
    vu normal = (mag - (112u << 23) + 0xfff + ((mag >> 13) & 1)) >> 13;
    /* Below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits. */
    vu small = (vu)((vf)mag + splat(0.5f)) - 0x3f000000u;
    vu is_small = (vu)((vi)mag < (vi)((vu){0} + 0x38800000u));
    vu is_huge = (vu)((vi)mag >= (vi)((vu){0} + 0x47800000u)); /* 65536 and above */
    vu is_nan = (vu)(x != x);
    vu half = (small & is_small) | (normal & ~is_small);
    half = (half & ~is_huge) | (0x7c00u & is_huge);
    half = (half & ~is_nan) | (0x7e00u & is_nan);
    return narrowed(half | sign);
}
#endif

/* VL elements at index i of an array of `dtype`. */
INLINE vf load(const void *p, int64_t i, int dtype) {
    if (dtype == F32) return loadf((const float *)p + i);
    vh h = *(const vh *)((const uint16_t *)p + i);
    return dtype == BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

INLINE void store(void *p, int64_t i, int dtype, vf v) {
    if (dtype == F32)
        storef((float *)p + i, v);
    else
        *(vh *)((uint16_t *)p + i) = dtype == BF16 ? f32_to_bf16(v) : f32_to_f16(v);
}

/* 2 * VL elements, of bf16. */
INLINE void store_two(uint16_t *p, vf first, vf second) {
#if defined(__AVX512BF16__) && VL == 16
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
    store(p, 0, BF16, first);
    store(p, VL, BF16, second);
#endif
}

/* load and store for the last n < VL elements; missing lanes read as zero. */
INLINE vf load_part(const void *p, int64_t i, int dtype, int64_t n) {
    float wide[VL] = {0};
    uint16_t narrow[VL] = {0};
    if (dtype == F32) {
        memcpy(wide, (const float *)p + i, (size_t)n * 4);
        return loadf(wide);
    }
    memcpy(narrow, (const uint16_t *)p + i, (size_t)n * 2);
    return load(narrow, 0, dtype);
}

INLINE void store_part(void *p, int64_t i, int dtype, int64_t n, vf v) {
    float wide[VL];
    store(wide, 0, dtype, v);
    memcpy((char *)p + i * element_size(dtype), wide, (size_t)(n * element_size(dtype)));
}

INLINE vf load_upto(const void *p, int64_t i, int dtype, int64_t n) {
    return n >= VL ? load(p, i, dtype) : load_part(p, i, dtype, n);
}

INLINE void store_upto(void *p, int64_t i, int dtype, int64_t n, vf v) {
    if (n >= VL)
        store(p, i, dtype, v);
    else
        store_part(p, i, dtype, n, v);
}

/* Runs `body` with DTYPE a compile-time constant. */
#define WITH_DTYPE(dtype, body)                  \
    if ((dtype) == F32) {                        \
        enum { DTYPE = F32 };                    \
        body;                                    \
    } else if ((dtype) == BF16) {                \
        enum { DTYPE = BF16 };                   \
        body;                                    \
    } else {                                     \
        enum { DTYPE = F16 };                    \
        body;                                    \
    }

/* ---- sums over lanes ---- */

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (v4i){i, j, k, l})
#endif

INLINE v4 fold(vf v) {
    union {
        vf v;
        v4 part[VL / 4];
    } u = {v};
    v4 sum = u.part[0];
    for (int i = 1; i < VL / 4; i++) sum += u.part[i];
    return sum;
}

/* Lane sums of four vectors at once. */
INLINE v4 sum4(vf a, vf b, vf c, vf d) {
    v4 p = fold(a), q = fold(b), r = fold(c), s = fold(d);
    v4 pq = SHUFFLE4(p, q, 0, 4, 2, 6) + SHUFFLE4(p, q, 1, 5, 3, 7);
    v4 rs = SHUFFLE4(r, s, 0, 4, 2, 6) + SHUFFLE4(r, s, 1, 5, 3, 7);
    return SHUFFLE4(pq, rs, 0, 1, 4, 5) + SHUFFLE4(pq, rs, 2, 3, 6, 7);
}

INLINE float sum1(vf v) {
    v4 s = fold(v);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

INLINE float max1(vf v) {
    float best = v[0];
    for (int i = 1; i < VL; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* ---- functions ---- */

/* e^x within 2 ulp for -87 <= x <= 88, exactly 1 at 0. */
INLINE vf exp_within(vf bounded) {
    vf shifted = madd(splat(0x1.8p23f), bounded, splat(1.44269504f)); /* rounds to the nearest integer */
    vi power = (vi)shifted - 0x4b400000;
    vf n = shifted - splat(0x1.8p23f);
    vf r = madd(madd(bounded, n, splat(-0.693145752f)), n, splat(-1.42860677e-6f));
    vf poly = splat(1.9875691e-4f);
    poly = madd(splat(1.3981999e-3f), poly, r);
    poly = madd(splat(8.3334519e-3f), poly, r);
    poly = madd(splat(4.1665796e-2f), poly, r);
    poly = madd(splat(1.6666665e-1f), poly, r);
    poly = madd(splat(5.0000001e-1f), poly, r);
    vf value = madd(r, poly * r, r) + splat(1.0f);
    return (vf)((vi)value + (power << 23));
}

/* The same for x <= 88, exactly 0 below -87 (there float32 turns subnormal). */
INLINE vf exp_bounded(vf x) {
    vi zero = x < splat(-87.0f);
    vf scaled = exp_within(pick(zero, splat(-87.0f), x));
    return pick(x != x, x, pick(zero, splat(0.0f), scaled));
}

INLINE vf expv(vf x) { return exp_bounded(pick(x > splat(88.0f), splat(88.0f), x)); }

/* tanh(x) = 1 - 2 / (e^2x + 1); near 0 the odd series, where the difference would cancel. */
INLINE vf tanhv(vf x) {
    vf limited = pick(x > splat(20.0f), splat(20.0f), pick(x < splat(-20.0f), splat(-20.0f), x));
    vf wide = splat(1.0f) - splat(2.0f) / (expv(limited + limited) + splat(1.0f));
    vf s = x * x;
    vf factor = madd(splat(-0.333333333f), s, madd(splat(0.133333333f), s, splat(-0.053968254f)));
    vf series = madd(x, x * s, factor);
    vi near = (x < splat(0.15f)) & (x > splat(-0.15f));
    return pick(near, series, wide);
}

#endif
