/* Gates by values of their own, and norms of what they leave. */
#include "states/states.h"

/* silu of VL elements where asked, or as they are. */
INLINE vf gate_at(const char *gate, int64_t i, int64_t left, const int silu_too, const int dtype) {
    vf v = load_upto(gate, i, dtype, left);
    return silu_too ? silu(v) : v;
}

INLINE void norm_group(
    const struct gated_norm *w, char *out, const char *x, const char *gate, const char *weight, float *kept, const int dtype
) {
    vf square = splat(0.0f);
    for (int64_t i = 0; i < w->width; i += VL) {
        vf v = load_upto(x, i, dtype, w->width - i);
        if (!w->norm_first) v = v * gate_at(gate, i, w->width - i, 1, dtype);
        square = madd(square, v, v);
        storef(kept + i, v);
    }
    vf scale = splat(1.0f / sqrtf(sum1(square) / (float)w->width + w->eps));
    for (int64_t i = 0; i < w->width; i += VL) {
        int64_t left = w->width - i;
        vf v = loadf(kept + i) * scale * load_upto(weight, i, (int)w->weight_dtype, left);
        if (w->norm_first) v = v * gate_at(gate, i, left, 1, dtype);
        store_upto(out, i, dtype, left, v);
    }
}

static void norm_groups(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct gated_norm *w = work;
    float *kept = thread_buffer(round_up(w->width, VL));
    for (int64_t at = begin; kept && at < end; at++) {
        int64_t row = at / w->groups, group = at % w->groups, first = group * w->width;
        char *out = row_of(w->out, at * w->width, (int)w->dtype);
        const char *x = crow_of(w->x, row * w->x_stride + first, (int)w->dtype);
        const char *gate = crow_of(w->gate, row * w->gate_stride + first, (int)w->dtype);
        const char *weight = crow_of(w->weight, group * w->weight_step, (int)w->weight_dtype);
        WITH_DTYPE(w->dtype, norm_group(w, out, x, gate, weight, kept, DTYPE))
    }
}

EXPORT void call_gated_norm(const void *words) {
    const struct gated_norm *w = words;
    share_rows(w->rows * w->groups, w->width, norm_groups, (void *)w);
}

INLINE void gate_row(char *out, const char *x, const char *gate, int64_t width, const int silu_too, const int dtype) {
    for (int64_t i = 0; i < width; i += VL) {
        vf v = load_upto(x, i, dtype, width - i) * gate_at(gate, i, width - i, silu_too, dtype);
        store_upto(out, i, dtype, width - i, v);
    }
}

INLINE void sigmoid_row(char *out, const char *x, const char *gate, int64_t width, const int one_gate, const int dtype) {
    vf of_row = splat(0.0f);
    if (one_gate) {
        float first[VL];
        storef(first, sigmoid(load_upto(gate, 0, dtype, 1)));
        of_row = splat(first[0]);
    }
    for (int64_t i = 0; i < width; i += VL) {
        int64_t left = width - i;
        vf by = one_gate ? of_row : sigmoid(load_upto(gate, i, dtype, left));
        store_upto(out, i, dtype, left, load_upto(x, i, dtype, left) * by);
    }
}

static void gate_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct gate *w = work;
    for (int64_t r = begin; r < end; r++) {
        char *out = row_of(w->out, r * w->width, (int)w->dtype);
        const char *x = crow_of(w->x, r * w->x_stride, (int)w->dtype), *by = crow_of(w->gate, r * w->gate_stride, (int)w->dtype);
        if (w->sigmoid) {
            WITH_DTYPE(w->dtype, sigmoid_row(out, x, by, w->width, (int)w->one_gate, DTYPE))
        } else if (w->silu) {
            WITH_DTYPE(w->dtype, gate_row(out, x, by, w->width, 1, DTYPE))
        } else {
            WITH_DTYPE(w->dtype, gate_row(out, x, by, w->width, 0, DTYPE))
        }
    }
}

EXPORT void call_gate(const void *words) {
    const struct gate *w = words;
    share_rows(w->rows, w->width, gate_rows, (void *)w);
}
