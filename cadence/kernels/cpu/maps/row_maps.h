/* For kernels that treat every row of a matrix by itself. */
#ifndef CADENCE_ROW_MAPS_H
#define CADENCE_ROW_MAPS_H

#include "runtime/common.h"
#include "runtime/threads.h"

#define ROW_ELEMENTS 8192 /* that are worth a thread */

INLINE void share_rows(Body *body, void *work, int64_t rows, int64_t width) {
    share_evenly(rows, ROW_ELEMENTS / max64(width, 1) + 1, body, work);
}

INLINE float float_of_word(int64_t word) {
    int32_t bits = (int32_t)word;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* v with lanes n and above zero. */
INLINE vf first_lanes(vf v, int64_t n) {
    for (int64_t i = n; i < VL; i++) v[i] = 0.0f;
    return v;
}

/* out = x + y over a row; y of ytype, the others of dtype. */
INLINE void add_row(void *out, const void *x, const void *y, int64_t width, const int dtype, const int ytype) {
    for (int64_t i = 0; i < width; i += VL) {
        vf v = load_upto(x, i, dtype, width - i) + load_upto(y, i, ytype, width - i);
        store_upto(out, i, dtype, width - i, v);
    }
}

#endif
