/* Maps from rows to rows: plain activations, soft caps, scaling from one type to another, sums. */
#include "maps/row_maps.h"
#include "runtime/powers.h"

typedef struct {
    char *out; /* [rows, width] of `to` */
    const char *x; /* rows of `from`, x_stride elements apart */
    int64_t rows, width, x_stride;
    float factor;
    int kind, from, to;
} Map;

enum { RELU, SILU, GELU, GELU_TANH, SCALE, SOFTCAP }; /* the first four: kernels.ops.Activation */

INLINE vf relu(vf x) { return pick((x < splat(0.0f)), splat(0.0f), x); }

/* x * Phi(x). With z = |x| / sqrt(2): erfc(z) = e^(-z^2) * t * p(2t - 1), t = 1 / (1 + 0.3 z), p fitted to 6e-8. */
INLINE vf gelu(vf x) {
    vf z = pick(x < splat(0.0f), -x, x) * splat(0.707106781f);
    vf t = splat(1.0f) / (splat(1.0f) + splat(0.3f) * z), s = t + t - splat(1.0f);
    vf p = splat(-5.120281792e-04f);
    p = p * s + splat(-2.433961514e-04f);
    p = p * s + splat(4.380911820e-03f);
    p = p * s + splat(2.041563250e-02f);
    p = p * s + splat(5.695678699e-02f);
    p = p * s + splat(1.187171711e-01f);
    p = p * s + splat(1.987813367e-01f);
    p = p * s + splat(2.765236064e-01f);
    p = p * s + splat(3.249799205e-01f);
    vf half = splat(0.5f) * p * t * expv(-z * z);
    return x * pick(x < splat(0.0f), half, splat(1.0f) - half);
}

INLINE vf mapped(vf x, float factor, const int kind) {
    if (kind == RELU) return relu(x);
    if (kind == SILU) return silu(x);
    if (kind == GELU) return gelu(x);
    if (kind == GELU_TANH) return gelu_tanh(x);
    if (kind == SOFTCAP) return splat(factor) * tanhv(x / splat(factor));
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
    (void)thread;
    switch (a->kind) {
        case RELU: ROWS(RELU, DTYPE) break;
        case SILU: ROWS(SILU, DTYPE) break;
        case GELU: ROWS(GELU, DTYPE) break;
        case GELU_TANH: ROWS(GELU_TANH, DTYPE) break;
        case SOFTCAP: ROWS(SOFTCAP, F32) break;
        default: ROWS(SCALE, a->to) break;
    }
}

/* For lists of calls: out, x, rows, width, x_stride, then what is said. */

/* kind, dtype */
EXPORT void call_activate(const int64_t *words) {
    Map a = {(char *)words[0], (const char *)words[1], words[2], words[3], words[4], 1.0f, (int)words[5],
             (int)words[6],    (int)words[6]};
    share_rows(a.rows, a.width, map_rows, &a);
}

/* factor, from, to */
EXPORT void call_scale(const int64_t *words) {
    Map a = {(char *)words[0], (const char *)words[1], words[2],      words[3],     words[4], float_of_word(words[5]),
             SCALE,            (int)words[6],          (int)words[7]};
    share_rows(a.rows, a.width, map_rows, &a);
}

/* cap, dtype of x; out is float32 */
EXPORT void call_softcap(const int64_t *words) {
    Map a = {(char *)words[0], (const char *)words[1], words[2], words[3], words[4], float_of_word(words[5]), SOFTCAP,
             (int)words[6],    F32};
    share_rows(a.rows, a.width, map_rows, &a);
}

/* ---- sums ---- */

typedef struct {
    char *out;
    const char *x, *y; /* y: [rows, width], or the table that `ids` picks rows of */
    const int64_t *ids; /* NULL: row r of y */
    int64_t rows, width, offset;
    int dtype, ytype;
} Sum;

static void sum_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Sum *a = work;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * a->width * element_size(a->dtype), row = a->ids ? a->ids[r] + a->offset : r;
        const char *y = a->y + row * a->width * element_size(a->ytype);
        WITH_DTYPE(a->dtype, add_row(a->out + at, a->x + at, y, a->width, DTYPE, a->ytype))
    }
}

/* out, x, y, rows, width, dtype */
EXPORT void call_add(const int64_t *words) {
    Sum a = {(char *)words[0], (const char *)words[1], (const char *)words[2], NULL, words[3], words[4], 0,
             (int)words[5],    (int)words[5]};
    share_rows(a.rows, a.width, sum_rows, &a);
}

/* out, x, table, ids, rows, width, offset, dtype, type of the table. Ids plus offset must exist in the table. */
EXPORT void call_add_rows(const int64_t *words) {
    Sum a = {(char *)words[0], (const char *)words[1], (const char *)words[2], (const int64_t *)words[3], words[4],
             words[5],         words[6],               (int)words[7],          (int)words[8]};
    share_rows(a.rows, a.width, sum_rows, &a);
}
