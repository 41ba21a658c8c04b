/* Maps from rows to rows: plain activations, soft caps, scaling from one type to another, sums. */
#include "maps/row_maps.h"
#include "runtime/powers.h"

typedef struct {
    char *out; /* [rows, width] of `to` */
    const char *x; /* rows of `from`, x_stride elements apart */
    int64_t width, x_stride;
    float factor;
    int kind, from, to;
} Map;

enum { SCALE = GELU_TANH + 1, SOFTCAP, CLIP }; /* after enum activation */

INLINE vf relu(vf x) { return pick((x < splat(0.0f)), splat(0.0f), x); }

/* x * Phi(x). With z = |x| / sqrt(2): erfc(z) = e^(-z^2) * t * p(2t - 1), t = 1 / (1 + 0.3 z), p fitted to 6e-8.
 * Below e^-87 it is zero. What is no number stays so by the last product. */
INLINE vf gelu(vf x) {
    vf z = (vf)((vi)x & 0x7fffffff) * splat(0.707106781f), y = -z * z;
    vi seen = y >= splat(-87.0f);
    vf t = splat(1.0f) / madd(splat(1.0f), splat(0.3f), z), s = t + t - splat(1.0f);
    vf p = splat(-5.120281792e-04f);
    p = madd(splat(-2.433961514e-04f), p, s);
    p = madd(splat(4.380911820e-03f), p, s);
    p = madd(splat(2.041563250e-02f), p, s);
    p = madd(splat(5.695678699e-02f), p, s);
    p = madd(splat(1.187171711e-01f), p, s);
    p = madd(splat(1.987813367e-01f), p, s);
    p = madd(splat(2.765236064e-01f), p, s);
    p = madd(splat(3.249799205e-01f), p, s);
    vf power = (vf)((vi)exp_within(pick(seen, y, splat(-87.0f))) & seen);
    vf half = splat(0.5f) * p * t * power;
    return x * pick(x < splat(0.0f), half, splat(1.0f) - half);
}

INLINE vf mapped(vf x, float factor, const int kind) {
    if (kind == RELU) return relu(x);
    if (kind == SILU) return silu(x);
    if (kind == GELU) return gelu(x);
    if (kind == GELU_TANH) return gelu_tanh(x);
    if (kind == SOFTCAP) return splat(factor) * tanhv(x / splat(factor));
    if (kind == CLIP) {
        x = pick(x > splat(factor), splat(factor), x);
        return pick(x < splat(-factor), splat(-factor), x);
    }
    return x * splat(factor);
}

INLINE void map_row(const Map *a, int64_t row, const int kind, const int from, const int to) {
    const void *x = a->x + row * a->x_stride * element_size(from);
    void *out = a->out + row * a->width * element_size(to);
    int64_t whole = a->width / VL * VL, rest = a->width - whole; /* beside calls no constant stays in a register */
    for (int64_t i = 0; i < whole; i += VL) store(out, i, to, mapped(load(x, i, from), a->factor, kind));
    if (rest) store_part(out, whole, to, rest, mapped(load_part(x, whole, from, rest), a->factor, kind));
}

#define ROWS(kind, to) \
    for (int64_t r = begin; r < end; r++) WITH_DTYPE(a->from, map_row(a, r, kind, DTYPE, to))

static void map_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Map *a = work;
    switch (a->kind) {
        case RELU: ROWS(RELU, DTYPE) break;
        case SILU: ROWS(SILU, DTYPE) break;
        case GELU: ROWS(GELU, DTYPE) break;
        case GELU_TANH: ROWS(GELU_TANH, DTYPE) break;
        case SOFTCAP: ROWS(SOFTCAP, F32) break;
        case CLIP: ROWS(CLIP, DTYPE) break;
        default: ROWS(SCALE, a->to) break;
    }
}

EXPORT void call_activate(const void *words) {
    const struct activate *w = words;
    Map a = {w->out, w->x, w->width, w->x_stride, 1.0f, (int)w->kind, (int)w->dtype, (int)w->dtype};
    share_rows(w->rows, w->width, map_rows, &a);
}

EXPORT void call_scale(const void *words) {
    const struct scale *w = words;
    Map a = {w->out, w->x, w->width, w->x_stride, w->factor, SCALE, (int)w->dtype, (int)w->out_dtype};
    share_rows(w->rows, w->width, map_rows, &a);
}

EXPORT void call_softcap(const void *words) {
    const struct softcap *w = words;
    Map a = {w->out, w->x, w->width, w->x_stride, w->cap, SOFTCAP, (int)w->dtype, F32};
    share_rows(w->rows, w->width, map_rows, &a);
}

EXPORT void call_clip(const void *words) {
    const struct clip *w = words;
    Map a = {w->out, w->x, w->width, w->x_stride, w->cap, CLIP, (int)w->dtype, (int)w->dtype};
    share_rows(w->rows, w->width, map_rows, &a);
}

/* ---- sums ---- */

typedef struct {
    char *out;
    const char *x, *y; /* y: [rows, width], [width], or the table that `ids` picks rows of */
    const int64_t *ids; /* NULL: row r of y */
    int64_t width, offset, step; /* step 0: every row gets the first of y */
    int dtype, ytype;
} Sum;

static void sum_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Sum *a = work;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * a->width * element_size(a->dtype), row = a->ids ? a->ids[r] + a->offset : r * a->step;
        const char *y = a->y + row * a->width * element_size(a->ytype);
        WITH_DTYPE(a->dtype, add_row(a->out + at, a->x + at, y, a->width, DTYPE, a->ytype))
    }
}

EXPORT void call_add(const void *words) {
    const struct add *w = words;
    Sum a = {w->out, w->x, w->y, NULL, w->width, 0, 1, (int)w->dtype, (int)w->dtype};
    share_rows(w->rows, w->width, sum_rows, &a);
}

EXPORT void call_add_bias(const void *words) {
    const struct add_bias *w = words;
    Sum a = {w->out, w->x, w->y, NULL, w->width, 0, 0, (int)w->dtype, (int)w->y_dtype};
    share_rows(w->rows, w->width, sum_rows, &a);
}

EXPORT void call_add_rows(const void *words) {
    const struct add_rows *w = words;
    Sum a = {w->out, w->x, w->table, w->ids, w->width, w->offset, 1, (int)w->dtype, (int)w->table_dtype};
    share_rows(w->rows, w->width, sum_rows, &a);
}

/* ---- rows by their places ---- */

static void pick_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct pick *w = work;
    for (int64_t r = begin; r < end; r++)
        memcpy(w->out + r * w->row_bytes, w->x + w->at[r] * w->x_stride, (size_t)w->row_bytes);
}

EXPORT void call_pick(const void *words) {
    const struct pick *w = words;
    share_rows(w->rows, w->row_bytes / 4, pick_rows, (void *)w);
}
