/* Norms, gated activations, rotary embedding, and storing keys and values. */
#include "common.h"

/* Below this many elements starting the threads costs more than it saves. */
#define PARALLEL_FROM 32768

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

/* Row r of x lies at (r / inner) * outer_stride + (r % inner) * inner_stride, layout = (inner, outer_stride,
 * inner_stride) in elements; out [rows, width] contiguous. */
void cadence_rms_norm(void *out, const void *x, const void *weight, int64_t rows, int64_t width,
                      const int64_t *layout, float eps, int dtype, int wtype) {
#pragma omp parallel for if (rows * width >= PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const void *source = crow_of(x, r / layout[0] * layout[1] + r % layout[0] * layout[2], dtype);
        void *target = row_of(out, r * width, dtype);
        WITH_DTYPE(dtype, norm_row(target, source, weight, width, eps, DTYPE, wtype))
    }
}

/* total = x + residual, out = rms_norm(total); all [rows, width] contiguous. */
void cadence_add_rms_norm(void *out, void *total, const void *x, const void *residual, const void *weight,
                                 int64_t rows, int64_t width, float eps, int dtype, int wtype) {
#pragma omp parallel for if (rows * width >= PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const void *a = crow_of(x, r * width, dtype), *b = crow_of(residual, r * width, dtype);
        void *sum = row_of(total, r * width, dtype), *target = row_of(out, r * width, dtype);
        WITH_DTYPE(dtype, {
            for (int64_t i = 0; i < width; i += VL) {
                vf v = load_upto(a, i, DTYPE, width - i) + load_upto(b, i, DTYPE, width - i);
                store_upto(sum, i, DTYPE, width - i, v);
            }
            norm_row(target, sum, weight, width, eps, DTYPE, wtype);
        })
    }
}

INLINE vf silu(vf x) { return x / (splat(1.0f) + expv(-x)); }

INLINE vf gelu_tanh(vf x) {
    vf inner = splat(0.797884561f) * (x + splat(0.044715f) * x * x * x);
    return splat(0.5f) * x * (splat(1.0f) + tanhv(inner));
}

INLINE void gate_row(void *out, const void *gate, const void *up, int64_t width, int dtype, int gelu) {
    for (int64_t i = 0; i < width; i += VL) {
        vf g = load_upto(gate, i, dtype, width - i), u = load_upto(up, i, dtype, width - i);
        store_upto(out, i, dtype, width - i, (gelu ? gelu_tanh(g) : silu(g)) * u);
    }
}

/* x [rows, 2 * width] = (gate, up) -> out [rows, width]. */
void cadence_gate_mul(void *out, const void *x, int64_t rows, int64_t width, int64_t x_stride, int dtype,
                             int gelu) {
#pragma omp parallel for if (rows * width >= PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const void *gate = crow_of(x, r * x_stride, dtype), *up = crow_of(x, r * x_stride + width, dtype);
        void *target = row_of(out, r * width, dtype);
        if (gelu) {
            WITH_DTYPE(dtype, gate_row(target, gate, up, width, DTYPE, 1))
        } else {
            WITH_DTYPE(dtype, gate_row(target, gate, up, width, DTYPE, 0))
        }
    }
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

/* q, k: base, elements between tokens, elements between heads. cos_sin [max_len, 2 * half]. */
void cadence_rope(void *q, void *k, const int64_t *positions, const float *cos_sin, int64_t tokens,
                         const int64_t *q_shape, const int64_t *k_shape, int64_t half, int dtype) {
    int64_t q_heads = q_shape[0], q_token = q_shape[1], q_head = q_shape[2];
    int64_t k_heads = k_shape[0], k_token = k_shape[1], k_head = k_shape[2];
#pragma omp parallel for if (tokens * (q_heads + k_heads) * half >= PARALLEL_FROM)
    for (int64_t t = 0; t < tokens; t++) {
        const float *cos = cos_sin + positions[t] * 2 * half;
        WITH_DTYPE(dtype, {
            rotate_heads(row_of(q, t * q_token, DTYPE), q_heads, q_head, cos, half, DTYPE);
            rotate_heads(row_of(k, t * k_token, DTYPE), k_heads, k_head, cos, half, DTYPE);
        })
    }
}

/* k, v [tokens, heads, dim] (strides in bytes) -> caches [blocks, heads, block_size, dim], block_stride bytes each. */
void cadence_write_kv(const char *k, const char *v, char *k_cache, char *v_cache, const int64_t *slots,
                             int64_t tokens, int64_t heads, int64_t row_bytes, int64_t block_size,
                             const int64_t *strides) {
    int64_t k_token = strides[0], k_head = strides[1], v_token = strides[2], v_head = strides[3];
    int64_t k_block = strides[4], v_block = strides[5];
#pragma omp parallel for if (tokens * heads * row_bytes >= 4 * PARALLEL_FROM)
    for (int64_t t = 0; t < tokens; t++) {
        int64_t block = slots[t] / block_size, offset = slots[t] % block_size;
        for (int64_t h = 0; h < heads; h++) {
            int64_t inside = (h * block_size + offset) * row_bytes;
            memcpy(k_cache + block * k_block + inside, k + t * k_token + h * k_head, (size_t)row_bytes);
            memcpy(v_cache + block * v_block + inside, v + t * v_token + h * v_head, (size_t)row_bytes);
        }
    }
}

/* Row ids[i] of a table of rows of row_bytes -> row i of out. */
void cadence_embed(char *out, const char *table, const int32_t *ids, int64_t rows, int64_t row_bytes) {
    for (int64_t i = 0; i < rows; i++) memcpy(out + i * row_bytes, table + ids[i] * row_bytes, (size_t)row_bytes);
}
