/* Storing keys and values. */
#include "attention/kv.h"
#include "runtime/threads.h"

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
    const struct write_kv *w = work;
    const int64_t row = cache_row_bytes(w->dim, w->cache_dtype);
    int64_t size = element_size(w->dtype), unit = w->cache_dtype == I8 ? 1 : element_size(w->cache_dtype);
    for (int64_t t = begin; t < end; t++) {
        int64_t block = w->slots[t] / w->block_size, offset = w->slots[t] % w->block_size;
        for (int64_t h = 0; h < w->heads; h++) {
            int64_t inside = (h * w->block_size + offset) * row;
            const char *k = w->k + (t * w->k_token + h * w->k_head) * size;
            const char *v = w->v + (t * w->v_token + h * w->v_head) * size;
            store_row(w->k_cache + block * w->k_block * unit + inside, k, w->dim, w->dtype, w->cache_dtype);
            store_row(w->v_cache + block * w->v_block * unit + inside, v, w->dim, w->dtype, w->cache_dtype);
        }
    }
}

EXPORT void call_write_kv(const void *words) {
    const struct write_kv *w = words;
    share_rows(w->tokens, w->heads * w->dim, store_tokens, (void *)w);
}
