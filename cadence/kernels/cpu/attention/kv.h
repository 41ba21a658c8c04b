/* Rows of a KV cache. A row is the key or the value of one token for one head: `dim` entries of the cache's type. Of int8
 * and float8 the entries are multiples of a float32 scale that follows them: absmax / the largest entry, or of float8
 * one that was given. Of int4 each run of 32 entries has a float16 scale, a float16 minimum and 16 bytes, of which byte i has entry i
 * in its low half and entry i + 16 in its high half: minimum + scale * entry. */
#ifndef CADENCE_KV_H
#define CADENCE_KV_H

#include "runtime/common.h"

#define SCALE_BYTES 4
#define RUN_ENTRIES 32 /* of int4 ... */
#define RUN_BYTES 20   /* ... and what they take */
#define LEAST_ABSMAX 1e-30f /* a row below that is all zeros: its inverse scale would leave float32 */

typedef int32_t bits32 __attribute__((may_alias));

/* Bytes in which strides of a cache are counted. */
INLINE int64_t cache_unit(int type) { return type >= I8 ? 1 : element_size(type); }

INLINE int64_t cache_row_bytes(int64_t dim, int type) {
    if (type == I4) return (dim + RUN_ENTRIES - 1) / RUN_ENTRIES * RUN_BYTES;
    return type >= I8 ? dim + SCALE_BYTES : dim * element_size(type);
}

INLINE float scale_of_row(const char *row, int64_t dim) {
    float scale;
    memcpy(&scale, row + dim, SCALE_BYTES);
    return scale;
}

INLINE float largest_entry(int type) { return type == I8 ? 127.0f : type == E4M3 ? 448.0f : 57344.0f; }

/* x[0 .. n), `fixed` as in write_kv -> the scale that is returned and its inverse, 0 where entries are to be zeros. A NaN
 * or an infinity makes the scale one. */
INLINE float find_scale(const float *x, int64_t n, float most, float fixed, float *inverse) {
    const bits32 *bits = (const bits32 *)x;
    int32_t top = 0; /* |x| as bits: their order is that of the numbers, NaN above all */
    for (int64_t i = 0; i < n; i++) {
        int32_t size = bits[i] & 0x7fffffff;
        top = size > top ? size : top;
    }
    float absmax;
    memcpy(&absmax, &top, 4);
    int usable = absmax >= LEAST_ABSMAX && absmax < INFINITY;
    *inverse = !usable ? 0.0f : fixed > 0.0f ? 1.0f / fixed : most / absmax;
    return fixed > 0.0f && absmax < INFINITY ? fixed : absmax / most;
}

INLINE float within(float x, float most) { return x < -most ? -most : x > most ? most : x; }

/* x[0 .. n) -> multiples of the scale that is returned, ties to even. */
INLINE float quantise_row(int8_t *to, const float *x, int64_t n) {
    float inverse, scale = find_scale(x, n, 127.0f, 0.0f, &inverse);
    for (int64_t i = 0; i < n; i++) to[i] = (int8_t)(int32_t)rintf(x[i] * inverse);
    return scale;
}

/* Bits of the exponent that a type of float8 has less than a float, and of the mantissa. */
#define LESS_EXPONENT(type) ((type) == E4M3 ? 127 - 7 : 127 - 15)
#define LESS_MANTISSA(type) ((type) == E4M3 ? 20 : 21)

/* x, finite and not beyond the largest entry -> the nearest float8, ties to even. */
INLINE uint8_t to_float8(float x, const int type) {
    int32_t bits, drop = LESS_MANTISSA(type);
    memcpy(&bits, &x, 4);
    int32_t size = bits & 0x7fffffff;
    float tiny = fabsf(x) * (type == E4M3 ? 0x1p9f : 0x1p16f); /* in steps of the smallest */
    int32_t near = ((size + ((1 << (drop - 1)) - 1) + (size >> drop & 1)) >> drop) -
                   (LESS_EXPONENT(type) << (23 - drop));
    int32_t entry = tiny < (type == E4M3 ? 8.0f : 4.0f) ? (int32_t)rintf(tiny) : near;
    return (uint8_t)(entry | (bits >> 24 & 0x80));
}

INLINE float float8_row(uint8_t *to, const float *x, int64_t n, const int type, float fixed) {
    float most = largest_entry(type), inverse, scale = find_scale(x, n, most, fixed, &inverse);
    for (int64_t i = 0; i < n; i++) to[i] = inverse > 0.0f ? to_float8(within(x[i] * inverse, most), type) : 0;
    return scale;
}

#endif
