/* For kernels that treat every row of a matrix by itself. */
#ifndef CADENCE_ROW_MAPS_H
#define CADENCE_ROW_MAPS_H

#include "runtime/common.h"
#include "runtime/threads.h"

/* What lies so many elements after p. */
INLINE void *row_of(void *p, int64_t elements, int dtype) { return (char *)p + elements * element_size(dtype); }
INLINE const void *crow_of(const void *p, int64_t elements, int dtype) {
    return (const char *)p + elements * element_size(dtype);
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
