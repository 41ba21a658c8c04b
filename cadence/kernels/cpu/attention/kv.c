/* Storing keys and values. */
#include "attention/kv.h"
#include "runtime/threads.h"

typedef struct {
    const char *k, *v;
    char *k_cache, *v_cache;
    const int64_t *slots, *strides; /* in entries: between tokens and heads of k, of v; between blocks of both caches */
    int64_t heads, dim, block_size;
    int type, cache_type;
} Storing;

/* `dim` numbers of `type` -> a row of the cache. */
INLINE void store_row(char *to, const char *from, int64_t dim, int type, int cache_type) {
    if (type == cache_type) {
        memcpy(to, from, (size_t)(dim * element_size(type)));
    } else if (cache_type == I8) {
        float *wide = thread_buffer(round_up(dim, VL));
        for (int64_t i = 0; i < dim; i += VL) storef(wide + i, load_upto(from, i, type, dim - i));
        float scale = quantise_row((int8_t *)to, wide, dim);
        memcpy(to + dim, &scale, SCALE_BYTES);
    } else {
        for (int64_t i = 0; i < dim; i += VL) store_upto(to, i, cache_type, dim - i, load_upto(from, i, type, dim - i));
    }
}

static void store_tokens(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Storing *w = work;
    const int64_t *stride = w->strides, row = cache_row_bytes(w->dim, w->cache_type);
    int64_t size = element_size(w->type), unit = w->cache_type == I8 ? 1 : element_size(w->cache_type);
    for (int64_t t = begin; t < end; t++) {
        int64_t block = w->slots[t] / w->block_size, offset = w->slots[t] % w->block_size;
        for (int64_t h = 0; h < w->heads; h++) {
            int64_t inside = (h * w->block_size + offset) * row;
            const char *k = w->k + (t * stride[0] + h * stride[1]) * size;
            const char *v = w->v + (t * stride[2] + h * stride[3]) * size;
            store_row(w->k_cache + block * stride[4] * unit + inside, k, w->dim, w->type, w->cache_type);
            store_row(w->v_cache + block * stride[5] * unit + inside, v, w->dim, w->type, w->cache_type);
        }
    }
}

/* k, v [tokens, heads, dim] -> caches [blocks, heads, block_size] of rows. strides: as in Storing, then k's type + 256 *
 * the caches' type. */
void cadence_write_kv(const char *k, const char *v, char *k_cache, char *v_cache, const int64_t *slots, int64_t tokens,
                      int64_t heads, int64_t dim, int64_t block_size, const int64_t *strides) {
    Storing work = {k, v, k_cache, v_cache, slots, strides, heads, dim, block_size, (int)strides[6] & 255,
                    (int)strides[6] >> 8};
    share_rows(tokens, heads * dim, store_tokens, &work);
}
