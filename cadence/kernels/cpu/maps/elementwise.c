/* Norms, gated activations, and rotary embedding. */
#include "runtime/powers.h"
#include "runtime/threads.h"

#define WORTH_SHARING 8192 /* elements that are worth a thread */

/* Rows that are worth a thread. */
INLINE int64_t least_rows(int64_t elements) { return WORTH_SHARING / max64(elements, 1) + 1; }

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

INLINE void *row_of(void *p, int64_t elements, int dtype) { return (char *)p + elements * element_size(dtype); }
INLINE const void *crow_of(const void *p, int64_t elements, int dtype) {
    return (const char *)p + elements * element_size(dtype);
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
    share_evenly(rows, least_rows(width), norm_rows, &norm);
}

static void add_norm_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Norm *n = work;
    int64_t width = n->width;
    for (int64_t r = begin; r < end; r++) {
        const void *a = crow_of(n->x, r * width, n->dtype), *b = crow_of(n->residual, r * width, n->dtype);
        void *sum = row_of(n->total, r * width, n->dtype), *target = row_of(n->out, r * width, n->dtype);
        WITH_DTYPE(n->dtype, {
            for (int64_t i = 0; i < width; i += VL) {
                vf v = load_upto(a, i, DTYPE, width - i) + load_upto(b, i, DTYPE, width - i);
                store_upto(sum, i, DTYPE, width - i, v);
            }
            norm_row(target, sum, n->weight, width, n->eps, DTYPE, n->wtype);
        })
    }
}

/* total = x + residual, out = rms_norm(total); all [rows, width] contiguous. */
void cadence_add_rms_norm(void *out, void *total, const void *x, const void *residual, const void *weight,
                                 int64_t rows, int64_t width, float eps, int dtype, int wtype) {
    Norm norm = {out, total, x, residual, weight, NULL, width, eps, dtype, wtype};
    share_evenly(rows, least_rows(width), add_norm_rows, &norm);
}

#define GATES 4 /* vectors at once */

/* out[i] = activation of gate[i] * up[i] for n vectors from element i on. */
INLINE void gate_vectors(const int n, void *out, const void *gate, const void *up, int64_t i, int dtype, int gelu) {
    vf g[GATES];
    EACH(j, n) g[j] = load(gate, i + j * VL, dtype);
    if (gelu)
        EACH(j, n) g[j] = gelu_tanh(g[j]);
    else
        silu_each(n, g);
    EACH(j, n) store(out, i + j * VL, dtype, g[j] * load(up, i + j * VL, dtype));
}

/* The part of a vector goes by itself: beside calls no constant would stay in a register. */
INLINE void gate_row(void *out, const void *gate, const void *up, int64_t width, int dtype, int gelu) {
    int64_t i = 0;
    for (; i + GATES * VL <= width; i += GATES * VL) gate_vectors(GATES, out, gate, up, i, dtype, gelu);
    for (; i + VL <= width; i += VL) gate_vectors(1, out, gate, up, i, dtype, gelu);
    if (i < width) {
        vf g = load_part(gate, i, dtype, width - i), u = load_part(up, i, dtype, width - i);
        store_part(out, i, dtype, width - i, (gelu ? gelu_tanh(g) : silu(g)) * u);
    }
}

typedef struct {
    void *out;
    const void *x;
    int64_t width, x_stride;
    int dtype, gelu;
} Gate;

static void gate_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Gate *g = work;
    for (int64_t r = begin; r < end; r++) {
        const void *gate = crow_of(g->x, r * g->x_stride, g->dtype), *up = crow_of(gate, g->width, g->dtype);
        void *target = row_of(g->out, r * g->width, g->dtype);
        if (g->gelu) {
            WITH_DTYPE(g->dtype, gate_row(target, gate, up, g->width, DTYPE, 1))
        } else {
            WITH_DTYPE(g->dtype, gate_row(target, gate, up, g->width, DTYPE, 0))
        }
    }
}

/* x [rows, 2 * width] = (gate, up) -> out [rows, width]. */
void cadence_gate_mul(void *out, const void *x, int64_t rows, int64_t width, int64_t x_stride, int dtype,
                             int gelu) {
    Gate gate = {out, x, width, x_stride, dtype, gelu};
    share_evenly(rows, least_rows(width), gate_rows, &gate);
}

INLINE void rotate_heads(void *x, int64_t heads, int64_t head_stride, const float *cos, int64_t half, int dtype) {
    const float *sin = cos + half;
    for (int64_t h = 0; h < heads; h++) {
        void *head = row_of(x, h * head_stride, dtype);
        for (int64_t i = 0; i < half; i += VL) {
            int64_t n = half - i;
            vf a = load_upto(head, i, dtype, n), b = load_upto(head, half + i, dtype, n);
            vf c = load_upto(cos, i, F32, n), s = load_upto(sin, i, F32, n);
            store_upto(head, i, dtype, n, a * c - b * s);
            store_upto(head, half + i, dtype, n, b * c + a * s);
        }
    }
}

typedef struct {
    void *q, *k;
    const int64_t *positions, *q_shape, *k_shape;
    const float *cos_sin;
    int64_t half;
    int dtype;
} Rope;

static void rotate_tokens(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Rope *r = work;
    const int64_t *q = r->q_shape, *k = r->k_shape; /* heads, elements between tokens, between heads */
    for (int64_t t = begin; t < end; t++) {
        const float *cos = r->cos_sin + r->positions[t] * 2 * r->half;
        WITH_DTYPE(r->dtype, {
            rotate_heads(row_of(r->q, t * q[1], DTYPE), q[0], q[2], cos, r->half, DTYPE);
            rotate_heads(row_of(r->k, t * k[1], DTYPE), k[0], k[2], cos, r->half, DTYPE);
        })
    }
}

/* cos_sin [max_len, 2 * half]; q_shape, k_shape: heads, elements between tokens, elements between heads. */
void cadence_rope(void *q, void *k, const int64_t *positions, const float *cos_sin, int64_t tokens,
                         const int64_t *q_shape, const int64_t *k_shape, int64_t half, int dtype) {
    Rope rope = {q, k, positions, q_shape, k_shape, cos_sin, half, dtype};
    share_evenly(tokens, least_rows((q_shape[0] + k_shape[0]) * 2 * half), rotate_tokens, &rope);
}
