/* RMS norm, also of a sum. */
#include "maps/row_maps.h"

INLINE void norm_row(void *out, const void *x, const void *weight, int64_t width, float eps, int dtype, int wtype) {
    vf square = splat(0.0f);
    for (int64_t i = 0; i < width; i += VL) {
        vf v = load_upto(x, i, dtype, width - i);
        square = madd(square, v, v);
    }
    vf scale = splat(1.0f / sqrtf(sum1(square) / (float)width + eps));
    for (int64_t i = 0; i < width; i += VL) {
        vf v = load_upto(x, i, dtype, width - i);
        store_upto(out, i, dtype, width - i, v * scale * load_upto(weight, i, wtype, width - i));
    }
}

static void norm_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct rms_norm *n = work;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r / n->inner * n->outer_stride + r % n->inner * n->inner_stride;
        const void *source = crow_of(n->x, at, n->dtype);
        void *target = row_of(n->out, r * n->width, n->dtype);
        WITH_DTYPE(n->dtype, norm_row(target, source, n->weight, n->width, n->eps, DTYPE, n->weight_dtype))
    }
}

EXPORT void call_rms_norm(const void *words) {
    const struct rms_norm *n = words;
    share_rows(n->rows, n->width, norm_rows, (void *)n);
}

static void add_norm_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct add_rms_norm *n = work;
    int64_t width = n->width;
    for (int64_t r = begin; r < end; r++) {
        const void *a = crow_of(n->x, r * width, n->dtype), *b = crow_of(n->residual, r * width, n->dtype);
        void *sum = row_of(n->total, r * width, n->dtype), *target = row_of(n->out, r * width, n->dtype);
        WITH_DTYPE(n->dtype, {
            add_row(sum, a, b, width, DTYPE, DTYPE);
            norm_row(target, sum, n->weight, width, n->eps, DTYPE, n->weight_dtype);
        })
    }
}

EXPORT void call_add_rms_norm(const void *words) {
    const struct add_rms_norm *n = words;
    share_rows(n->rows, n->width, add_norm_rows, (void *)n);
}
