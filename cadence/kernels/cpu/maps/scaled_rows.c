/* Rows times a number each. */
#include "maps/row_maps.h"

INLINE void scale_row(void *out, const void *x, float factor, int64_t width, const int dtype) {
    for (int64_t i = 0; i < width; i += VL)
        store_upto(out, i, dtype, width - i, load_upto(x, i, dtype, width - i) * splat(factor));
}

static void scale_some(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct scale_rows *w = work;
    for (int64_t r = begin; r < end; r++) {
        void *out = row_of(w->out, r * w->width, (int)w->dtype);
        const void *x = crow_of(w->x, r * w->x_stride, (int)w->dtype);
        WITH_DTYPE(w->dtype, scale_row(out, x, w->factors[w->at[r]], w->width, DTYPE))
    }
}

EXPORT void call_scale_rows(const void *words) {
    const struct scale_rows *w = words;
    share_rows(w->rows, w->width, scale_some, (void *)w);
}

static void weigh_some(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct weigh_inputs *w = work;
    for (int64_t r = begin; r < end; r++) {
        void *out = row_of(w->out, r * w->width, (int)w->dtype);
        const void *x = crow_of(w->x, r * w->x_stride, (int)w->dtype);
        WITH_DTYPE(w->dtype, scale_row(out, x, w->shares[r], w->width, DTYPE))
        w->ones[r] = 1.0f;
    }
}

EXPORT void call_weigh_inputs(const void *words) {
    const struct weigh_inputs *w = words;
    share_rows(w->rows, w->width, weigh_some, (void *)w);
}
