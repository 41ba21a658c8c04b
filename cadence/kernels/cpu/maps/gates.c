/* Gated activations: silu or gelu of one half of a row, times the other. */
#include "maps/row_maps.h"
#include "runtime/powers.h"

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

static void gate_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct gate_mul *g = work;
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

EXPORT void call_gate_mul(const void *words) {
    const struct gate_mul *g = words;
    share_rows(g->rows, g->width, gate_rows, (void *)g);
}
