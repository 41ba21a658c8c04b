/* Layer norm: over rows, with mean; sums run lane by lane in the order of a row's elements. */
#include "maps/row_maps.h"

typedef struct layer_norm LayerNorm;

INLINE void norm_row(const LayerNorm *a, const void *x, void *out, int64_t head, const int dtype) {
    int64_t width = a->width, first = head * width; /* of the head's weights */
    const char *weight = a->weight, *bias = a->bias;
    if (weight) weight += first * element_size(a->weight_dtype);
    if (bias) bias += first * element_size(a->weight_dtype);
    vf sum = splat(0.0f), square = splat(0.0f);
    for (int64_t i = 0; i < width; i += VL) sum += load_upto(x, i, dtype, width - i);
    vf mean = splat(sum1(sum) / (float)width);
    for (int64_t i = 0; i < width; i += VL) {
        vf off = load_upto(x, i, dtype, width - i) - mean;
        if (width - i < VL) off = first_lanes(off, width - i);
        square = madd(square, off, off);
    }
    vf scale = splat(1.0f / sqrtf(sum1(square) / (float)width + a->eps));
    for (int64_t i = 0; i < width; i += VL) {
        vf v = (load_upto(x, i, dtype, width - i) - mean) * scale;
        if (weight) v *= load_upto(weight, i, a->weight_dtype, width - i);
        if (bias) v += load_upto(bias, i, a->weight_dtype, width - i);
        store_upto(out, i, dtype, width - i, v);
    }
}

static void norm_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const LayerNorm *a = work;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * a->width * element_size(a->dtype), head = r % a->heads;
        const void *x = a->x + (r / a->heads * a->x_stride + head * a->width) * element_size(a->dtype);
        if (a->residual) {
            WITH_DTYPE(a->dtype, add_row(a->total + at, x, a->residual + at, a->width, DTYPE, DTYPE))
            x = a->total + at;
        }
        WITH_DTYPE(a->dtype, norm_row(a, x, a->out + at, head, DTYPE))
    }
}

EXPORT void call_layer_norm(const void *words) {
    const LayerNorm *a = words;
    share_rows(a->rows, a->width, norm_rows, (void *)a);
}
