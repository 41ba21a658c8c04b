/* Storing keys and values. */
#include "attention/kv.h"
#include "runtime/threads.h"

INLINE uint16_t to_half(float x) {
    uint16_t halves[VL];
    store(halves, 0, F16, splat(x));
    return halves[0];
}

INLINE float from_half(uint16_t h) {
    uint16_t halves[VL] = {h};
    return load(halves, 0, F16)[0];
}

/* x[0 .. n), n <= RUN_ENTRIES -> a run of int4. */
static void store_run(char *to, const float *x, int64_t n) {
    float low = x[0], high = x[0], none = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        none += x[i] * 0.0f; /* NaN where some number is none */
    }
    uint16_t scale = to_half((high - low) / 15.0f + none), least = to_half(low + none);
    float step = from_half(scale), start = from_half(least), inverse = step > 0.0f ? 1.0f / step : 0.0f;
    uint8_t entries[RUN_ENTRIES] = {0}, *bytes = (uint8_t *)to + 4;
    for (int64_t i = 0; i < n; i++) {
        float entry = rintf((x[i] - start) * inverse);
        entries[i] = entry > 0.0f ? (uint8_t)(entry < 15.0f ? entry : 15.0f) : 0;
    }
    memcpy(to, &scale, 2);
    memcpy(to + 2, &least, 2);
    for (int i = 0; i < RUN_ENTRIES / 2; i++) bytes[i] = (uint8_t)(entries[i] | entries[i + RUN_ENTRIES / 2] << 4);
}

static void store_few_bits(char *to, const float *wide, int64_t dim, int cache_type, float fixed) {
    float scale;
    if (cache_type == I4) {
        for (int64_t i = 0; i < dim; i += RUN_ENTRIES, to += RUN_BYTES)
            store_run(to, wide + i, min64(dim - i, RUN_ENTRIES));
        return;
    }
    if (cache_type == I8)
        scale = quantise_row((int8_t *)to, wide, dim);
    else if (cache_type == E4M3)
        scale = float8_row((uint8_t *)to, wide, dim, E4M3, fixed);
    else
        scale = float8_row((uint8_t *)to, wide, dim, E5M2, fixed);
    memcpy(to + dim, &scale, SCALE_BYTES);
}

/* `dim` numbers of `type` -> a row of the cache. */
INLINE void store_row(char *to, const char *from, int64_t dim, int type, int cache_type, float fixed) {
    if (type == cache_type) {
        memcpy(to, from, (size_t)(dim * element_size(type)));
    } else if (cache_type >= I8) {
        float *wide = thread_buffer(round_up(dim, VL));
        for (int64_t i = 0; i < dim; i += VL) storef(wide + i, load_upto(from, i, type, dim - i));
        store_few_bits(to, wide, dim, cache_type, fixed);
    } else {
        for (int64_t i = 0; i < dim; i += VL) store_upto(to, i, cache_type, dim - i, load_upto(from, i, type, dim - i));
    }
}

static void store_tokens(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct write_kv *w = work;
    const int64_t row = cache_row_bytes(w->dim, w->cache_dtype);
    int64_t size = element_size(w->dtype), unit = cache_unit(w->cache_dtype);
    for (int64_t t = begin; t < end; t++) {
        int64_t block = w->slots[t] / w->block_size, offset = w->slots[t] % w->block_size;
        for (int64_t h = 0; h < w->heads; h++) {
            int64_t inside = (h * w->block_size + offset) * row;
            const char *k = w->k + (t * w->k_token + h * w->k_head) * size;
            const char *v = w->v + (t * w->v_token + h * w->v_head) * size;
            store_row(w->k_cache + block * w->k_block * unit + inside, k, w->dim, w->dtype, w->cache_dtype,
                      w->k_scale);
            store_row(w->v_cache + block * w->v_block * unit + inside, v, w->dim, w->dtype, w->cache_dtype,
                      w->v_scale);
        }
    }
}

EXPORT void call_write_kv(const void *words) {
    const struct write_kv *w = words;
    share_rows(w->tokens, w->heads * w->dim, store_tokens, (void *)w);
}
