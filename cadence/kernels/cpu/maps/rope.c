/* Rotary embedding, neox style. */
#include "maps/row_maps.h"

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
    share_rows(tokens, (q_shape[0] + k_shape[0]) * 2 * half, rotate_tokens, &rope);
}
