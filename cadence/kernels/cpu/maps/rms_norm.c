/* RMS norm, also of a sum. */
#include "maps/row_maps.h"

INLINE void norm_row(void *out, const void *x, const void *weight, int64_t width, float eps, int dtype, int wtype) {
    vf square = splat(0.0f);
    for (int64_t i = 0; i < width; i += VL) {
        vf v = load_upto(x, i, dtype, width - i);
        square += v * v;
    }
    vf scale = splat(1.0f / sqrtf(sum1(square) / (float)width + eps));
    for (int64_t i = 0; i < width; i += VL) {
        vf v = load_upto(x, i, dtype, width - i);
        store_upto(out, i, dtype, width - i, v * scale * load_upto(weight, i, wtype, width - i));
    }
}

typedef struct {
    void *out, *total;
    const void *x, *residual, *weight;
    const int64_t *layout;
    int64_t width;
    float eps;
    int dtype, wtype;
} Norm;

static void norm_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Norm *n = work;
    const int64_t *layout = n->layout;
    for (int64_t r = begin; r < end; r++) {
        const void *source = crow_of(n->x, r / layout[0] * layout[1] + r % layout[0] * layout[2], n->dtype);
        void *target = row_of(n->out, r * n->width, n->dtype);
        WITH_DTYPE(n->dtype, norm_row(target, source, n->weight, n->width, n->eps, DTYPE, n->wtype))
    }
}

/* Row r of x lies at (r / inner) * outer_stride + (r % inner) * inner_stride, layout = (inner, outer_stride,
 * inner_stride) in elements; out [rows, width] contiguous. */
void cadence_rms_norm(void *out, const void *x, const void *weight, int64_t rows, int64_t width,
                      const int64_t *layout, float eps, int dtype, int wtype) {
    Norm norm = {out, NULL, x, NULL, weight, layout, width, eps, dtype, wtype};
    share_rows(rows, width, norm_rows, &norm);
}

static void add_norm_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Norm *n = work;
    int64_t width = n->width;
    for (int64_t r = begin; r < end; r++) {
        const void *a = crow_of(n->x, r * width, n->dtype), *b = crow_of(n->residual, r * width, n->dtype);
        void *sum = row_of(n->total, r * width, n->dtype), *target = row_of(n->out, r * width, n->dtype);
        WITH_DTYPE(n->dtype, {
            add_row(sum, a, b, width, DTYPE, DTYPE);
            norm_row(target, sum, n->weight, width, n->eps, DTYPE, n->wtype);
        })
    }
}

/* total = x + residual, out = rms_norm(total); all [rows, width] contiguous. */
void cadence_add_rms_norm(void *out, void *total, const void *x, const void *residual, const void *weight,
                                 int64_t rows, int64_t width, float eps, int dtype, int wtype) {
    Norm norm = {out, total, x, residual, weight, NULL, width, eps, dtype, wtype};
    share_rows(rows, width, add_norm_rows, &norm);
}
