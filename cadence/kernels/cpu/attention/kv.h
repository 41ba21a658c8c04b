/* Rows of a KV cache. A row is the key or the value of one token for one head: `dim` entries of the cache's type; of
 * int8, the entries are multiples of a float32 scale that follows them: absmax / 127. */
#ifndef CADENCE_KV_H
#define CADENCE_KV_H

#include "runtime/common.h"

#define SCALE_BYTES 4
#define LEAST_ABSMAX 1e-30f /* a row below that is all zeros: its inverse scale would leave float32 */

typedef int32_t bits32 __attribute__((may_alias));

INLINE int64_t cache_row_bytes(int64_t dim, int type) {
    return type == I8 ? dim + SCALE_BYTES : dim * element_size(type);
}

INLINE float scale_of_row(const char *row, int64_t dim) {
    float scale;
    memcpy(&scale, row + dim, SCALE_BYTES);
    return scale;
}

/* x[0 .. n) -> multiples of the scale that is returned, ties to even. A NaN or an infinity makes the scale one. */
INLINE float quantise_row(int8_t *to, const float *x, int64_t n) {
    const bits32 *bits = (const bits32 *)x;
    int32_t top = 0; /* |x| as bits: their order is that of the numbers, NaN above all */
    for (int64_t i = 0; i < n; i++) {
        int32_t size = bits[i] & 0x7fffffff;
        top = size > top ? size : top;
    }
    float absmax;
    memcpy(&absmax, &top, 4);
    float inverse = absmax >= LEAST_ABSMAX && absmax < INFINITY ? 127.0f / absmax : 0.0f;
    for (int64_t i = 0; i < n; i++) to[i] = (int8_t)(int32_t)rintf(x[i] * inverse);
    return absmax / 127.0f;
}

#endif
