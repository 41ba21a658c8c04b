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
            store_upto(head, i, dtype, n, madd(a * c, -b, s));
            store_upto(head, half + i, dtype, n, madd(b * c, a, s));
        }
    }
}

static void rotate_tokens(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct rope *r = work;
    for (int64_t t = begin; t < end; t++) {
        const float *cos = r->cos_sin + r->positions[t] * 2 * r->half;
        WITH_DTYPE(r->dtype, {
            rotate_heads(row_of(r->q, t * r->q_token, DTYPE), r->q_heads, r->q_head, cos, r->half, DTYPE);
            rotate_heads(row_of(r->k, t * r->k_token, DTYPE), r->k_heads, r->k_head, cos, r->half, DTYPE);
        })
    }
}

EXPORT void call_rope(const void *words) {
    const struct rope *r = words;
    share_rows(r->tokens, (r->q_heads + r->k_heads) * 2 * r->half, rotate_tokens, (void *)r);
}
