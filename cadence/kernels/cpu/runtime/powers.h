/* Powers of 2 and what is made of them, cheaper than exp_bounded. */
#ifndef CADENCE_POWERS_H
#define CADENCE_POWERS_H

#include "runtime/common.h"

#if defined(__aarch64__) && VL == 4
#include <arm_neon.h>
#define NEON_LANES 1
#endif

#define LOG2_E 1.44269504f

/* The larger; b where either is NaN, or NaN. */
INLINE vf larger(vf a, vf b) {
#if defined(NEON_LANES)
    return vmaxq_f32(a, b);
#elif defined(__AVX512F__) && VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && VL == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return pick(a > b, a, b);
#endif
}

INLINE vf smaller(vf a, vf b) {
#if defined(NEON_LANES)
    return vminq_f32(a, b);
#elif defined(__AVX512F__) && VL == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && VL == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return pick(a < b, a, b);
#endif
}

/* Highest power first: 2^r = 1 + ... within 2e-7 for |r| <= 0.5. */
#define LANES_OF(x) {(x), (x), (x), (x)}
static const float exp2_series[6][4] __attribute__((aligned(32))) = {
    LANES_OF(0.0013264727f), LANES_OF(0.009671513f), LANES_OF(0.055507336f),
    LANES_OF(0.24022242f),   LANES_OF(0.693147f),    LANES_OF(1.0f)};

/* Coefficient i. On NEON it is loaded for each use: a product adds to a register that holds one, and to copy it there
 * from another would take the place of arithmetic. */
INLINE vf coefficient(int i) {
    const float *p = exp2_series[i];
#if defined(NEON_LANES)
    __asm__ volatile("" : "+r"(p));
    return loadf(p);
#else
    return splat(*p);
#endif
}

/* 2^y[j] = y[j] * power[j], a product that may be part of a madd. Several at once and in stages: each is a chain, longer
 * than a processor looks ahead. */
INLINE void exp2_parts(const int n, vf *y, vf *power) {
    const vf to_integer = splat(0x1.8p23f + 127.0f); /* leaves y, rounded, plus the exponent's bias in the low bits */
    vf shifted[8], p[8];
    EACH(j, n) y[j] = larger(splat(-127.0f), y[j]);
    EACH(j, n) shifted[j] = y[j] + to_integer;
    EACH(j, n) y[j] = y[j] - (shifted[j] - to_integer);
    EACH(j, n) p[j] = madd(coefficient(1), coefficient(0), y[j]);
    EACH(i, 4) EACH(j, n) p[j] = madd(coefficient(i + 2), p[j], y[j]);
    EACH(j, n) y[j] = p[j], power[j] = (vf)((vi)shifted[j] << 23);
}

/* y[j] = 2^y[j] within 2e-7 for y <= 128; exactly 1 at 0, 0 from -126.5 down, infinity from 127.5 up; NaN stays NaN. */
INLINE void exp2_each(const int n, vf *y) {
    vf power[8];
    exp2_parts(n, y, power);
    EACH(j, n) y[j] *= power[j];
}

INLINE vf exp2_bounded(vf y) {
    exp2_each(1, &y);
    return y;
}

/* x[j] / (1 + e^-x[j]). */
INLINE void silu_each(const int n, vf *x) {
    vf y[8], power[8];
    EACH(j, n) y[j] = smaller(splat(128.0f), x[j] * splat(-LOG2_E));
    exp2_parts(n, y, power);
    EACH(j, n) x[j] = x[j] / madd(splat(1.0f), y[j], power[j]);
}

INLINE vf silu(vf x) {
    silu_each(1, &x);
    return x;
}

/* 1 / (1 + e^-x). */
INLINE vf sigmoid(vf x) {
    return splat(1.0f) / (splat(1.0f) + exp2_bounded(smaller(splat(128.0f), x * splat(-LOG2_E))));
}

INLINE vf gelu_tanh(vf x) {
    vf inner = splat(0.797884561f) * madd(x, splat(0.044715f) * x * x, x);
    return splat(0.5f) * x * (splat(1.0f) + tanhv(inner));
}

#endif
