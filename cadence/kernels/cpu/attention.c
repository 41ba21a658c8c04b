/* Attention over a paged cache: ragged queries, grouped heads, causal, window, soft-cap; softmax in float32.
 *
 * The keys of a sequence are cut into tiles of KEY_TILE and chunks of KEY_CHUNK counted from position 0. Within a chunk
 * a running softmax goes tile by tile; finished chunks are merged in order. Masked keys add exact zeros. So the result
 * of a (query, head) depends on its own position alone: not on the batch, not on how the prompt was cut, not on which
 * thread took which chunk.
 *
 * A work item is (sequence, kv head, tile of queries): its rows are the query heads of that kv head for each query of
 * the tile, row = query * heads_per_kv + head. */
#include "common.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
#endif

#define KEY_TILE 64
#define KEY_CHUNK 512
#define ROWS_TARGET 48 /* rows per item where there are that many queries */
#define NOTHING -1e30f /* running maximum before any key; finite, so that differences are never NaN */

typedef struct {
    void *out;
    const void *q, *k_cache, *v_cache;
    const int32_t *rows, *query_start, *seq_lens, *table;
    int64_t table_stride, q_token, q_head, k_block, v_block; /* strides in elements */
    int64_t num_seqs, num_heads, num_kv_heads, dim, block_size, window;
    float scale, softcap;
    int dtype;
} Attention;

/* Geometry shared by all items of a call. */
typedef struct {
    int64_t group;       /* query heads per kv head */
    int64_t tile;        /* queries per item */
    int64_t max_rows;    /* rows per item, a multiple of 4 */
    int64_t padded;      /* dim rounded up to VL */
    int64_t num_tiles;   /* query tiles of all sequences */
    int64_t *first_tile; /* [num_seqs + 1] */
} Plan;

typedef struct {
    int64_t kv_head, table_row, first_token, num_rows, first_pos, num_queries;
} Item;

/* Softmax state of an item's rows over some range of keys. */
typedef struct {
    float *max, *sum; /* [max_rows] */
    float *acc;       /* [max_rows, padded], not yet divided by sum */
} State;

typedef struct {
    float *q, *scores, *k, *v;
    State chunk, total;
} Scratch;

INLINE int64_t state_floats(const Plan *p) { return p->max_rows * (p->padded + 2); }

static State state_at(float *base, const Plan *p) {
    State s = {base, base + p->max_rows, base + 2 * p->max_rows};
    return s;
}

static Scratch scratch_for(const Plan *p) {
    int64_t q = p->max_rows * p->padded, kv = KEY_TILE * p->padded, scores = p->max_rows * KEY_TILE;
    float *base = thread_buffer(q + scores + 2 * kv + 2 * state_floats(p));
    float *states = base + q + scores + 2 * kv;
    Scratch s = {.q = base, .scores = base + q, .k = base + q + scores, .v = base + q + scores + kv};
    s.chunk = state_at(states, p);
    s.total = state_at(states + state_floats(p), p);
    return s;
}

/* ---- the three inner products ---- */

/* scores[m][0..3] = q[m] . key[0..3] */
INLINE void dot_tile(const int rows, const float *q, const float *const *key, int64_t padded, float *scores) {
    vf acc[4][4] = {{{0}}};
    const float *k0 = key[0], *k1 = key[1], *k2 = key[2], *k3 = key[3];
    for (int64_t i = 0; i < padded; i += VL) {
        vf a = loadf(k0 + i), b = loadf(k1 + i), c = loadf(k2 + i), d = loadf(k3 + i);
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vf x = loadf(q + m * padded + i);
            acc[m][0] += x * a;
            acc[m][1] += x * b;
            acc[m][2] += x * c;
            acc[m][3] += x * d;
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) {
        v4 sums = sum4(acc[m][0], acc[m][1], acc[m][2], acc[m][3]);
        memcpy(scores + m * KEY_TILE, &sums, 16);
    }
}

/* acc[m][0 .. width * VL) += sum over keys of p[m][key] * value[key] */
INLINE void value_tile(const int rows, const int width, const float *p, const float *const *value, int64_t offset,
                       int64_t keys, int64_t padded, float *acc) {
    vf sum[4][NR_MAX];
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int w = 0; w < width; w++) sum[m][w] = loadf(acc + m * padded + offset + w * VL);
    for (int64_t n = 0; n < keys; n++) {
        const float *row = value[n] + offset;
        vf v[NR_MAX];
#pragma GCC unroll 4
        for (int w = 0; w < width; w++) v[w] = loadf(row + w * VL);
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            float weight = p[m * KEY_TILE + n];
#pragma GCC unroll 4
            for (int w = 0; w < width; w++) sum[m][w] += v[w] * weight;
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int w = 0; w < width; w++) storef(acc + m * padded + offset + w * VL, sum[m][w]);
}

INLINE void values_of_rows(const int rows, const float *p, const float *const *value, int64_t keys, int64_t padded,
                           float *acc) {
    int64_t offset = 0;
    for (; offset + NR_MAX * VL <= padded; offset += NR_MAX * VL)
        value_tile(rows, NR_MAX, p, value, offset, keys, padded, acc);
    for (; offset < padded; offset += VL) value_tile(rows, 1, p, value, offset, keys, padded, acc);
}

/* Asks for the lines of one row ahead of time: blocks lie scattered, so the hardware cannot guess them. */
INLINE void prefetch_row(const float *row, int64_t padded) {
    for (int64_t i = 0; i < padded; i += 16) __builtin_prefetch(row + i, 0, 3);
}

/* The first rows to come by also ask for the values of this tile. */
INLINE void scores_of_rows(const int rows, const float *q, const float *const *key, const float *const *value,
                           int64_t keys, int64_t padded, float *scores) {
    for (int64_t n = 0; n < keys; n += 4) {
        if (value)
            for (int j = 0; j < 4; j++) prefetch_row(value[n + j], padded);
        dot_tile(rows, q, key + n, padded, scores + n);
    }
}

#define BY_ROWS(rows, call4, call3, call2, call1) \
    switch (rows) {                               \
        case 1: call1; break;                     \
        case 2: call2; break;                     \
        case 3: call3; break;                     \
        default: call4; break;                    \
    }

/* ---- one tile of keys ---- */

/* Where a position's key and value lie, in elements. Walks forward block by block. */
typedef struct {
    const int32_t *entry;
    int64_t offset; /* inside the block */
} Cursor;

INLINE Cursor cursor_at(const Attention *a, const Item *it, int64_t pos) {
    Cursor c = {a->table + it->table_row * a->table_stride + pos / a->block_size, pos % a->block_size};
    return c;
}

INLINE int64_t inside_block(const Attention *a, const Item *it, const Cursor *c) {
    return (it->kv_head * a->block_size + c->offset) * a->dim;
}

INLINE void advance(const Attention *a, Cursor *c) {
    if (++c->offset == a->block_size) c->offset = 0, c->entry++;
}

INLINE void widen_row(const Attention *a, const void *cache, int64_t at, float *to) {
    WITH_DTYPE(a->dtype, for (int64_t i = 0; i < a->dim; i += VL)
                             storef(to + i, load_upto(cache, at + i, DTYPE, a->dim - i));)
}

/* Points key[n], value[n] at the float rows of positions [start, start + keys), rounded up to 4 with the last one. */
static void find_rows(const Attention *a, const Plan *p, const Item *it, int64_t start, int64_t keys, Scratch *s,
                      const float **key, const float **value) {
    int direct = a->dtype == F32 && p->padded == a->dim;
    Cursor c = cursor_at(a, it, start);
    for (int64_t n = 0; n < keys; n++, advance(a, &c)) {
        int64_t inside = inside_block(a, it, &c);
        int64_t at_k = *c.entry * a->k_block + inside, at_v = *c.entry * a->v_block + inside;
        if (direct) {
            key[n] = (const float *)a->k_cache + at_k;
            value[n] = (const float *)a->v_cache + at_v;
        } else {
            key[n] = s->k + n * p->padded;
            value[n] = s->v + n * p->padded;
            widen_row(a, a->k_cache, at_k, s->k + n * p->padded);
            widen_row(a, a->v_cache, at_v, s->v + n * p->padded);
        }
    }
    for (int64_t n = keys; n < round_up(keys, 4); n++) key[n] = key[keys - 1], value[n] = value[keys - 1];
}

/* Soft-cap, mask, running softmax: turns scores [rows, KEY_TILE] into weights and rescales what was summed before. */
static void softmax_tile(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    State *c = &s->chunk;
    for (int64_t m = 0; m < it->num_rows; m++) {
        float *row = s->scores + m * KEY_TILE;
        int64_t pos = it->first_pos + m / p->group;
        int64_t end = max64(min64(pos + 1 - start, KEY_TILE), 0);
        int64_t begin = a->window ? min64(max64(pos + 1 - a->window - start, 0), KEY_TILE) : 0;
        if (a->softcap > 0.0f) {
            vf cap = splat(a->softcap);
            for (int i = 0; i < KEY_TILE; i += VL) storef(row + i, cap * tanhv(loadf(row + i) / cap));
        }
        for (int64_t i = 0; i < begin; i++) row[i] = -INFINITY;
        for (int64_t i = end; i < KEY_TILE; i++) row[i] = -INFINITY;
        vf best = loadf(row);
        for (int i = VL; i < KEY_TILE; i += VL) best = maxv(best, loadf(row + i));
        float old = c->max[m], top = max1(best);
        top = top > old ? top : old;
        vf sum = splat(0.0f);
        for (int i = 0; i < KEY_TILE; i += VL) {
            vf weight = exp_bounded(loadf(row + i) - splat(top));
            storef(row + i, weight);
            sum += weight;
        }
        float shrink = exp1(old - top);
        c->max[m] = top;
        c->sum[m] = c->sum[m] * shrink + sum1(sum);
        if (shrink != 1.0f) {
            float *acc = c->acc + m * p->padded;
            for (int64_t i = 0; i < p->padded; i += VL) storef(acc + i, loadf(acc + i) * shrink);
        }
    }
}

static void attend_tile(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    const float *key[KEY_TILE], *value[KEY_TILE];
    int64_t keys = min64(it->first_pos + it->num_queries - start, KEY_TILE), padded = p->padded;
    find_rows(a, p, it, start, keys, s, key, value);
    for (int64_t m = 0; m < it->num_rows; m += 4) {
        const float *q = s->q + m * padded;
        const float *const *ahead = m == 0 ? value : NULL;
        float *out = s->scores + m * KEY_TILE;
        BY_ROWS(it->num_rows - m, scores_of_rows(4, q, key, ahead, keys, padded, out),
                scores_of_rows(3, q, key, ahead, keys, padded, out), scores_of_rows(2, q, key, ahead, keys, padded, out),
                scores_of_rows(1, q, key, ahead, keys, padded, out))
    }
    softmax_tile(a, p, it, start, s);
    for (int64_t m = 0; m < it->num_rows; m += 4) {
        const float *w = s->scores + m * KEY_TILE;
        float *acc = s->chunk.acc + m * padded;
        BY_ROWS(it->num_rows - m, values_of_rows(4, w, value, keys, padded, acc),
                values_of_rows(3, w, value, keys, padded, acc), values_of_rows(2, w, value, keys, padded, acc),
                values_of_rows(1, w, value, keys, padded, acc))
    }
}

/* ---- chunks and items ---- */

static void clear(State *s, const Plan *p, int64_t rows) {
    for (int64_t m = 0; m < rows; m++) s->max[m] = NOTHING, s->sum[m] = 0.0f;
    memset(s->acc, 0, (size_t)(rows * p->padded) * 4);
}

static void attend_chunk(const Attention *a, const Plan *p, const Item *it, int64_t chunk, Scratch *s) {
    clear(&s->chunk, p, it->num_rows);
    int64_t first_seen = a->window ? max64(it->first_pos + 1 - a->window, 0) : 0;
    int64_t start = max64(chunk * KEY_CHUNK, first_seen / KEY_TILE * KEY_TILE);
    int64_t end = min64((chunk + 1) * KEY_CHUNK, it->first_pos + it->num_queries);
    for (; start < end; start += KEY_TILE) attend_tile(a, p, it, start, s);
}

static void merge(State *total, const State *part, const Plan *p, int64_t rows) {
    for (int64_t m = 0; m < rows; m++) {
        float top = total->max[m] > part->max[m] ? total->max[m] : part->max[m];
        float keep = exp1(total->max[m] - top), add = exp1(part->max[m] - top);
        total->max[m] = top;
        total->sum[m] = total->sum[m] * keep + part->sum[m] * add;
        float *acc = total->acc + m * p->padded;
        const float *more = part->acc + m * p->padded;
        for (int64_t i = 0; i < p->padded; i += VL)
            storef(acc + i, loadf(acc + i) * keep + loadf(more + i) * add);
    }
}

static Item find_item(const Attention *a, const Plan *p, int64_t index) {
    int64_t tile = index / a->num_kv_heads, low = 0, high = a->num_seqs - 1;
    while (low < high) {
        int64_t mid = (low + high + 1) / 2;
        if (p->first_tile[mid] <= tile)
            low = mid;
        else
            high = mid - 1;
    }
    int64_t begin = a->query_start[low], count = a->query_start[low + 1] - begin;
    int64_t skip = (tile - p->first_tile[low]) * p->tile;
    Item it = {.kv_head = index % a->num_kv_heads, .table_row = a->rows[low], .first_token = begin + skip};
    it.num_queries = min64(p->tile, count - skip);
    it.num_rows = it.num_queries * p->group;
    it.first_pos = a->seq_lens[low] - count + skip;
    return it;
}

static void load_queries(const Attention *a, const Plan *p, const Item *it, Scratch *s) {
    for (int64_t m = 0; m < it->num_rows; m++) {
        int64_t token = it->first_token + m / p->group, head = it->kv_head * p->group + m % p->group;
        int64_t from = token * a->q_token + head * a->q_head;
        float *to = s->q + m * p->padded;
        WITH_DTYPE(a->dtype, for (int64_t i = 0; i < a->dim; i += VL)
                                 storef(to + i, load_upto(a->q, from + i, DTYPE, a->dim - i) * a->scale);)
    }
}

static void store_rows(const Attention *a, const Plan *p, const Item *it, const State *s) {
    for (int64_t m = 0; m < it->num_rows; m++) {
        int64_t token = it->first_token + m / p->group, head = it->kv_head * p->group + m % p->group;
        int64_t to = (token * a->num_heads + head) * a->dim;
        float inverse = 1.0f / s->sum[m];
        const float *from = s->acc + m * p->padded;
        WITH_DTYPE(a->dtype, for (int64_t i = 0; i < a->dim; i += VL)
                                 store_upto(a->out, to + i, DTYPE, a->dim - i, loadf(from + i) * inverse);)
    }
}

static int64_t chunk_begin(const Attention *a, const Item *it) {
    return a->window ? max64(it->first_pos + 1 - a->window, 0) / KEY_CHUNK : 0;
}

static int64_t chunk_end(const Item *it) { return (it->first_pos + it->num_queries - 1) / KEY_CHUNK + 1; }

/* Many items: each thread takes whole ones. */
static void run_items(const Attention *a, const Plan *p) {
    int64_t items = p->num_tiles * a->num_kv_heads;
#pragma omp parallel if (items > 1)
    {
        Scratch s = scratch_for(p);
#pragma omp for schedule(dynamic)
        for (int64_t i = items - 1; i >= 0; i--) { /* a sequence's last queries see most keys: they go first */
            Item it = find_item(a, p, i);
            load_queries(a, p, &it, &s);
            clear(&s.total, p, it.num_rows);
            for (int64_t c = chunk_begin(a, &it); c < chunk_end(&it); c++) {
                attend_chunk(a, p, &it, c, &s);
                merge(&s.total, &s.chunk, p, it.num_rows);
            }
            store_rows(a, p, &it, &s.total);
        }
    }
}

/* Few items with long histories: threads share the chunks of each, then the parts are merged in the same order. */
static int run_chunks(const Attention *a, const Plan *p, int64_t max_chunks) {
    int64_t items = p->num_tiles * a->num_kv_heads, size = state_floats(p);
    float *parts = malloc((size_t)(items * max_chunks * size) * 4);
    if (!parts) return 0;
#pragma omp parallel
    {
        Scratch s = scratch_for(p);
#pragma omp for schedule(dynamic)
        for (int64_t job = 0; job < items * max_chunks; job++) {
            Item it = find_item(a, p, job / max_chunks);
            int64_t c = job % max_chunks;
            if (c < chunk_begin(a, &it) || c >= chunk_end(&it)) continue;
            load_queries(a, p, &it, &s);
            s.chunk = state_at(parts + job * size, p);
            attend_chunk(a, p, &it, c, &s);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < items; i++) {
            Item it = find_item(a, p, i);
            clear(&s.total, p, it.num_rows);
            for (int64_t c = chunk_begin(a, &it); c < chunk_end(&it); c++) {
                State part = state_at(parts + (i * max_chunks + c) * size, p);
                merge(&s.total, &part, p, it.num_rows);
            }
            store_rows(a, p, &it, &s.total);
        }
    }
    free(parts);
    return 1;
}

/* pointers: out, q, k_cache, v_cache, rows, query_start, seq_lens, table; sizes: as in Attention, in order. */
void cadence_attention(void *const *pointers, const int64_t *sizes, float scale, float softcap) {
    Attention a = {pointers[0], pointers[1], pointers[2], pointers[3], pointers[4], pointers[5], pointers[6],
                   pointers[7], sizes[0],    sizes[1],    sizes[2],    sizes[3],    sizes[4],    sizes[5],
                   sizes[6],    sizes[7],    sizes[8],    sizes[9],    sizes[10],   scale,       softcap,
                   (int)sizes[11]};
    Plan p = {.group = a.num_heads / a.num_kv_heads, .padded = round_up(a.dim, VL)};
    p.tile = max64(ROWS_TARGET / p.group, 1);
    p.max_rows = round_up(p.tile * p.group, 4);
    p.first_tile = malloc((size_t)(a.num_seqs + 1) * 8);
    int64_t longest = 0;
    for (int64_t r = 0; r < a.num_seqs; r++) {
        p.first_tile[r] = p.num_tiles;
        p.num_tiles += (a.query_start[r + 1] - a.query_start[r] + p.tile - 1) / p.tile;
        longest = max64(longest, a.seq_lens[r]);
    }
    p.first_tile[a.num_seqs] = p.num_tiles;
    int64_t max_chunks = (longest + KEY_CHUNK - 1) / KEY_CHUNK;
    int few = p.num_tiles * a.num_kv_heads < 4 * omp_get_max_threads() && max_chunks > 1;
    if (!few || !run_chunks(&a, &p, max_chunks)) run_items(&a, &p);
    free(p.first_tile);
}
