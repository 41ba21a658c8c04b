/* Attention over a paged cache: ragged queries, grouped heads, causal, window, soft-cap; softmax in float32.
 *
 * The keys of a sequence are cut into tiles of KEY_TILE counted from position 0. Each tile gives a softmax of its own;
 * the tiles of a query are merged in order. Masked keys add exact zeros. So the result of a (query, head) depends on
 * its own position alone: not on the batch, not on how the prompt was cut, not on which thread took which tile.
 *
 * A work item is (sequence, kv head, run of queries): its rows are the query heads of that kv head for each query of
 * the run, row = query * group + head. Rows are taken ROW_TILE at a time. */
#include "attention_tile.h"
#include "threads.h"

#define ROWS_TARGET 48          /* rows per item where there are that many queries */
#define WIDEN_ABOVE 4           /* rows: with more, 16-bit and int8 rows are widened once per tile, before they are used */
#define NOTHING -1e30f          /* maximum of no key; finite, so that differences are never NaN */
#define LOG2_E 1.44269504f      /* scores are kept in units of log 2, so that weights are 2^x */
#define MOST_PARTS (1 << 24)    /* floats: what shared items may take */

typedef struct {
    void *out;
    const void *q;
    const char *k_cache, *v_cache;
    const int32_t *rows, *query_start, *seq_lens, *table;
    int64_t table_stride, q_token, q_head, k_block, v_block; /* strides in entries, those of int8 caches in bytes */
    int64_t num_seqs, num_heads, num_kv_heads, dim, block_size, window;
    int type, cache_type;
    float scale, softcap;
} Attention;

/* Geometry shared by all items of a call. */
typedef struct {
    int64_t group;        /* query heads per kv head */
    int64_t run;          /* queries per item */
    int64_t max_rows;     /* rows per item, a multiple of ROW_TILE */
    int64_t padded;       /* dim rounded up to VL */
    int64_t num_runs;     /* of all sequences */
    int64_t max_tiles;    /* of keys, of any sequence */
    int64_t *first_run;   /* [num_seqs + 1] */
} Plan;

typedef struct {
    int64_t kv_head, table_row, first_token, num_rows, first_pos, num_queries;
} Item;

/* Softmax of an item's rows over some keys. */
typedef struct {
    float *max, *sum; /* [max_rows] */
    float *acc;       /* [max_rows, padded], not yet divided by sum */
} State;

/* A thread's. */
typedef struct {
    Queries q;
    float *scores;       /* [max_rows, KEY_TILE] */
    char *k, *v;         /* [KEY_TILE] rows, widened or padded */
    int32_t *low, *high; /* [max_rows / ROW_TILE]: keys of the tile that some row of the four sees */
    State part, total;
} Scratch;

INLINE int64_t state_floats(const Plan *p) { return p->max_rows * (p->padded + 2); }

static State state_at(float *base, const Plan *p) {
    State s = {base, base + p->max_rows, base + 2 * p->max_rows};
    return s;
}

static Scratch scratch_for(const Attention *a, const Plan *p) {
    int64_t rows = p->max_rows, wide = rows * p->padded, bytes = round_up(a->dim, I8_STEP);
    int64_t row = max64(p->padded * 4, bytes) / 4; /* floats */
    float *at = thread_buffer(wide + rows * (KEY_TILE + 2 + bytes / 4) + 2 * KEY_TILE * row + 2 * state_floats(p));
    Scratch s = {.q = {.wide = at, .padded = p->padded, .padded_bytes = bytes}};
    s.scores = at += wide;
    s.part = state_at(at += rows * KEY_TILE, p);
    s.total = state_at(at += state_floats(p), p);
    s.k = (char *)(at += state_floats(p));
    s.v = (char *)(at += KEY_TILE * row);
    s.q.bytes = (int8_t *)(at += KEY_TILE * row);
    s.q.scale = at += rows * (bytes / 4);
    s.low = (int32_t *)(at += rows);
    s.high = s.low + rows / ROW_TILE;
    return s;
}

/* ---- the rows of a tile ---- */

/* `dim` entries -> floats, zeros up to `padded`. */
static void widen_row(const char *row, int64_t dim, int64_t padded, int type, float *to) {
    int64_t i = 0;
    if (type == I8) {
        for (vf wide[I8_STEP / VL]; i + I8_STEP <= dim; i += I8_STEP) {
            load_strip(row, i, I8_STEP / VL, I8, wide);
            memcpy(to + i, wide, sizeof wide);
        }
        for (; i < dim; i++) to[i] = (float)((const int8_t *)row)[i];
        for (; i < padded; i++) to[i] = 0.0f;
        return;
    }
    WITH_DTYPE(type, {
        for (; i + VL <= dim; i += VL) storef(to + i, load_entries(row, i, DTYPE));
        if (i < dim) storef(to + i, load_part(row, i, DTYPE, dim - i));
    })
}

/* Points key and value at the rows of positions [start, start + t->keys) as they lie in the cache. */
static void find_rows(const Attention *a, const Item *it, int64_t start, Tile *t) {
    int64_t bytes = cache_row_bytes(a->dim, a->cache_type), unit = a->cache_type == I8 ? 1 : element_size(a->cache_type);
    const int32_t *entry = a->table + it->table_row * a->table_stride + start / a->block_size;
    int64_t offset = start % a->block_size;
    for (int64_t n = 0; n < t->keys; offset = 0, entry++) {
        int64_t inside = (it->kv_head * a->block_size + offset) * bytes;
        const char *k = a->k_cache + *entry * a->k_block * unit + inside;
        const char *v = a->v_cache + *entry * a->v_block * unit + inside;
        for (int64_t end = min64(n + a->block_size - offset, t->keys); n < end; n++, k += bytes, v += bytes)
            t->key[n] = k, t->value[n] = v;
    }
}

/* Entries that fill up the last step of keys repeat the last key: they are masked, but they are read. */
static void repeat_last(Tile *t) {
    int64_t last = t->keys - 1;
    for (int64_t n = t->keys; n < round_up(t->keys, KEY_STEP); n++) {
        t->key[n] = t->key[last], t->value[n] = t->value[last];
        t->key_scale[n] = t->key_scale[last], t->value_scale[n] = t->value_scale[last];
    }
}

/* Puts the rows where and how the register tiles want them: whole vectors, wide if many queries will use them. */
static void make_ready(const Attention *a, const Plan *p, const Item *it, Scratch *s, Tile *t) {
    int narrow = a->cache_type != F32, odd = a->dim % (a->cache_type == I8 ? max64(VL, I8_STEP) : VL) != 0;
    t->key_type = t->value_type = a->cache_type;
    if (a->cache_type == I8)
        for (int64_t n = 0; n < t->keys; n++) {
            t->key_scale[n] = scale_of_row(t->key[n], a->dim);
            t->value_scale[n] = scale_of_row(t->value[n], a->dim);
        }
    if (odd || (narrow && it->num_rows > WIDEN_ABOVE)) {
        t->value_type = F32;
        for (int64_t n = 0; n < t->keys; n++) {
            float *to = (float *)s->v + n * p->padded;
            widen_row(t->value[n], a->dim, p->padded, a->cache_type, to);
            t->value[n] = (const char *)to;
        }
    }
    if (a->cache_type == I8 && odd) {
        for (int64_t n = 0; n < t->keys; n++) {
            char *to = s->k + n * s->q.padded_bytes;
            memset(to, 0, (size_t)s->q.padded_bytes);
            t->key[n] = memcpy(to, t->key[n], (size_t)a->dim);
        }
    } else if (a->cache_type != I8 && (odd || (narrow && it->num_rows > WIDEN_ABOVE))) {
        t->key_type = F32;
        for (int64_t n = 0; n < t->keys; n++) {
            float *to = (float *)s->k + n * p->padded;
            widen_row(t->key[n], a->dim, p->padded, a->cache_type, to);
            t->key[n] = (const char *)to;
        }
    }
    repeat_last(t);
}

/* ---- one tile of keys ---- */

INLINE int64_t first_key_of(const Attention *a, int64_t pos) { return a->window ? max64(pos + 1 - a->window, 0) : 0; }

/* For each four rows the keys [low, high) of the tile that any of them sees, in whole steps. */
static void find_ranges(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    for (int64_t m = 0; m < it->num_rows; m += ROW_TILE) {
        int64_t first = it->first_pos + m / p->group;
        int64_t last = it->first_pos + (min64(m + ROW_TILE, it->num_rows) - 1) / p->group;
        int64_t low = max64(first_key_of(a, first) - start, 0) / KEY_STEP * KEY_STEP;
        int64_t high = min64(round_up(max64(last + 1 - start, 0), KEY_STEP), KEY_TILE);
        s->low[m / ROW_TILE] = (int32_t)min64(low, high);
        s->high[m / ROW_TILE] = (int32_t)high;
    }
}

/* Values are read strip by strip, in an order that the hardware cannot guess: they are asked for as keys are read. */
INLINE void prefetch_row(const char *row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2); /* into the second level of caches */
}

static void score_tile(const Attention *a, const Item *it, const Tile *t, Scratch *s) {
    ScoreKeys *score = score_keys[t->key_type];
    int64_t bytes = cache_row_bytes(a->dim, t->value_type);
    for (int64_t n = 0; n < t->keys; n += KEY_STEP) {
        for (int j = 0; j < KEY_STEP; j++) prefetch_row(t->value[n + j], bytes);
        for (int64_t m = 0; m < it->num_rows; m += ROW_TILE) {
            if (n < s->low[m / ROW_TILE] || n >= s->high[m / ROW_TILE]) continue;
            score((int)min64(it->num_rows - m, ROW_TILE), &s->q, m, t, n, s->scores + m * KEY_TILE + n);
        }
    }
}

/* Soft-cap, mask, softmax: turns the scores of row m for keys [low, high) into weights -> part.max, part.sum. */
static void softmax_row(const Attention *a, const Plan *p, const Item *it, int64_t start, const Tile *t, Scratch *s,
                        int64_t m) {
    float *row = s->scores + m * KEY_TILE;
    int64_t low = s->low[m / ROW_TILE], high = s->high[m / ROW_TILE], pos = it->first_pos + m / p->group;
    int64_t begin = min64(max64(first_key_of(a, pos) - start, low), high), end = max64(min64(pos + 1 - start, high), low);
    if (a->softcap > 0.0f)
        for (int64_t i = low; i < high; i += VL)
            storef(row + i, splat(a->softcap * LOG2_E) * tanhv(loadf(row + i)));
    for (int64_t i = low; i < begin; i++) row[i] = -INFINITY;
    for (int64_t i = end; i < high; i++) row[i] = -INFINITY;
    vf best[KEY_STEP / VL], sum[KEY_STEP / VL] = {{0}};
    for (int j = 0; j < KEY_STEP / VL; j++) best[j] = splat(NOTHING);
    for (int64_t i = low; i < high; i += KEY_STEP)
#pragma GCC unroll 4
        for (int j = 0; j < KEY_STEP / VL; j++) best[j] = larger(best[j], loadf(row + i + j * VL));
    for (int j = 1; j < KEY_STEP / VL; j++) best[0] = larger(best[0], best[j]);
    float top = largest(best[0]);
    vf shift = splat(top);
    for (int64_t i = low; i < high; i += KEY_STEP)
#pragma GCC unroll 4
        for (int j = 0; j < KEY_STEP / VL; j++) {
            vf weight = exp2_bounded(loadf(row + i + j * VL) - shift);
            storef(row + i + j * VL, weight);
            sum[j] += weight;
        }
    for (int j = 1; j < KEY_STEP / VL; j++) sum[0] += sum[j];
    s->part.max[m] = top;
    s->part.sum[m] = sum1(sum[0]);
    if (a->cache_type == I8)
        for (int64_t i = low; i < high; i += VL) storef(row + i, loadf(row + i) * loadf(t->value_scale + i));
}

static void weigh_tile(const Plan *p, const Item *it, const Tile *t, Scratch *s) {
    WeighValues *weigh = weigh_values[t->value_type];
    for (int64_t at = 0; at < p->padded;) {
        int width = strip_width(it->num_rows, (p->padded - at) / VL);
        for (int64_t m = 0; m < it->num_rows; m += ROW_TILE) {
            Weighted w = {s->scores + m * KEY_TILE, t, s->low[m / ROW_TILE], s->high[m / ROW_TILE], p->padded,
                          s->part.acc + m * p->padded};
            weigh((int)min64(it->num_rows - m, ROW_TILE), &w, width, at);
        }
        at += width * VL;
    }
}

/* The keys [start, start + KEY_TILE) -> s->part. */
static void attend_tile(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    Tile t = {.keys = min64(it->first_pos + it->num_queries - start, KEY_TILE)};
    find_rows(a, it, start, &t);
    make_ready(a, p, it, s, &t);
    find_ranges(a, p, it, start, s);
    score_tile(a, it, &t, s);
    for (int64_t m = 0; m < it->num_rows; m++) softmax_row(a, p, it, start, &t, s, m);
    weigh_tile(p, it, &t, s);
}

/* ---- items ---- */

/* Of the two factors, one is exactly 1. */
static void merge(State *total, const State *part, const Plan *p, int64_t rows) {
    for (int64_t m = 0; m < rows; m++) {
        int rises = part->max[m] > total->max[m];
        const float *base = (rises ? part->acc : total->acc) + m * p->padded;
        const float *other = (rises ? total->acc : part->acc) + m * p->padded;
        float factor = exp2_of(rises ? total->max[m] - part->max[m] : part->max[m] - total->max[m]);
        float *to = total->acc + m * p->padded;
        for (int64_t i = 0; i < p->padded; i += VL) storef(to + i, loadf(base + i) + loadf(other + i) * factor);
        total->sum[m] = rises ? part->sum[m] + total->sum[m] * factor : total->sum[m] + part->sum[m] * factor;
        total->max[m] = rises ? part->max[m] : total->max[m];
    }
}

/* In order of sequence, kv head, run: the keys and values of one head stay near while its runs are taken. */
static Item find_item(const Attention *a, const Plan *p, int64_t index) {
    int64_t run = index / a->num_kv_heads, low = 0, high = a->num_seqs - 1;
    while (low < high) {
        int64_t mid = (low + high + 1) / 2;
        if (p->first_run[mid] <= run)
            low = mid;
        else
            high = mid - 1;
    }
    int64_t inside = index - p->first_run[low] * a->num_kv_heads, runs = p->first_run[low + 1] - p->first_run[low];
    int64_t begin = a->query_start[low], count = a->query_start[low + 1] - begin;
    int64_t skip = inside % runs * p->run;
    Item it = {.kv_head = inside / runs, .table_row = a->rows[low], .first_token = begin + skip};
    it.num_queries = min64(p->run, count - skip);
    it.num_rows = it.num_queries * p->group;
    it.first_pos = a->seq_lens[low] - count + skip;
    return it;
}

/* Where row m's query or result lies: its token and its head. */
INLINE int64_t token_of(const Plan *p, const Item *it, int64_t m) { return it->first_token + m / p->group; }
INLINE int64_t head_of(const Plan *p, const Item *it, int64_t m) { return it->kv_head * p->group + m % p->group; }

/* Scores come out as soft-cap's argument, or in units of log 2. */
static void load_queries(const Attention *a, const Plan *p, const Item *it, Scratch *s) {
    float unit = a->softcap > 0.0f ? a->scale / a->softcap : a->scale * LOG2_E;
    float factor = a->cache_type == I8 ? 1.0f : unit;
    for (int64_t m = 0; m < it->num_rows; m++) {
        int64_t from = token_of(p, it, m) * a->q_token + head_of(p, it, m) * a->q_head;
        float *to = s->q.wide + m * p->padded;
        WITH_DTYPE(a->type, for (int64_t i = 0; i < a->dim; i += VL)
                                storef(to + i, load_upto(a->q, from + i, DTYPE, a->dim - i) * factor);)
        if (a->cache_type == I8) {
            int8_t *bytes = s->q.bytes + m * s->q.padded_bytes;
            memset(bytes + a->dim, 0, (size_t)(s->q.padded_bytes - a->dim));
            s->q.scale[m] = quantise_row(bytes, to, a->dim) * unit;
        }
    }
}

static void store_rows(const Attention *a, const Plan *p, const Item *it, const State *s) {
    for (int64_t m = 0; m < it->num_rows; m++) {
        int64_t to = (token_of(p, it, m) * a->num_heads + head_of(p, it, m)) * a->dim;
        float inverse = 1.0f / s->sum[m];
        const float *from = s->acc + m * p->padded;
        WITH_DTYPE(a->type, for (int64_t i = 0; i < a->dim; i += VL)
                                store_upto(a->out, to + i, DTYPE, a->dim - i, loadf(from + i) * inverse);)
    }
}

static int64_t tile_begin(const Attention *a, const Item *it) { return first_key_of(a, it->first_pos) / KEY_TILE; }
static int64_t tile_end(const Item *it) { return (it->first_pos + it->num_queries - 1) / KEY_TILE + 1; }

typedef struct {
    const Attention *a;
    const Plan *p;
    float *parts; /* [items, max_tiles] states, where threads share items */
} Work;

/* Many items: each thread takes whole ones. A sequence's last queries see most keys: they go first. */
static void attend_items(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Work *w = work;
    const Attention *a = w->a;
    const Plan *p = w->p;
    Scratch s = scratch_for(a, p);
    for (int64_t index = begin; index < end; index++) {
        Item it = find_item(a, p, p->num_runs * a->num_kv_heads - 1 - index);
        load_queries(a, p, &it, &s);
        for (int64_t tile = tile_begin(a, &it); tile < tile_end(&it); tile++) {
            attend_tile(a, p, &it, tile * KEY_TILE, &s);
            if (tile > tile_begin(a, &it)) {
                merge(&s.total, &s.part, p, it.num_rows);
            } else {
                State first = s.part;
                s.part = s.total, s.total = first;
            }
        }
        store_rows(a, p, &it, &s.total);
    }
}

/* Few items with long histories: threads share the tiles of each ... */
static void attend_parts(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Work *w = work;
    Scratch s = scratch_for(w->a, w->p);
    for (int64_t index = begin; index < end; index++) {
        Item it = find_item(w->a, w->p, index / w->p->max_tiles);
        int64_t tile = index % w->p->max_tiles;
        if (tile < tile_begin(w->a, &it) || tile >= tile_end(&it)) continue;
        load_queries(w->a, w->p, &it, &s);
        s.part = state_at(w->parts + index * state_floats(w->p), w->p);
        attend_tile(w->a, w->p, &it, tile * KEY_TILE, &s);
    }
}

/* ... then the parts are merged in the same order. */
static void merge_parts(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Work *w = work;
    int64_t size = state_floats(w->p);
    for (int64_t index = begin; index < end; index++) {
        Item it = find_item(w->a, w->p, index);
        float *parts = w->parts + index * w->p->max_tiles * size;
        State total = state_at(parts + tile_begin(w->a, &it) * size, w->p);
        for (int64_t tile = tile_begin(w->a, &it) + 1; tile < tile_end(&it); tile++) {
            State part = state_at(parts + tile * size, w->p);
            merge(&total, &part, w->p, it.num_rows);
        }
        store_rows(w->a, w->p, &it, &total);
    }
}

static void plan(const Attention *a, Plan *p) {
    int64_t most_queries = 0, longest = 0;
    for (int64_t r = 0; r < a->num_seqs; r++) {
        most_queries = max64(most_queries, a->query_start[r + 1] - a->query_start[r]);
        longest = max64(longest, a->seq_lens[r]);
    }
    p->group = a->num_heads / a->num_kv_heads;
    p->padded = round_up(a->dim, VL);
    p->run = max64(min64(ROWS_TARGET / p->group, most_queries), 1);
    p->max_rows = round_up(p->run * p->group, ROW_TILE);
    p->max_tiles = (longest + KEY_TILE - 1) / KEY_TILE;
    for (int64_t r = 0; r < a->num_seqs; r++) {
        p->first_run[r] = p->num_runs;
        p->num_runs += (a->query_start[r + 1] - a->query_start[r] + p->run - 1) / p->run;
    }
    p->first_run[a->num_seqs] = p->num_runs;
}

/* pointers: out, q, k_cache, v_cache, rows, query_start, seq_lens, table; sizes: as in Attention, in order, the last
 * one q's type + 256 * the caches' type. */
void cadence_attention(void *const *pointers, const int64_t *sizes, float scale, float softcap) {
    Attention a = {pointers[0], pointers[1], pointers[2], pointers[3], pointers[4], pointers[5], pointers[6],
                   pointers[7], sizes[0],    sizes[1],    sizes[2],    sizes[3],    sizes[4],    sizes[5],
                   sizes[6],    sizes[7],    sizes[8],    sizes[9],    sizes[10],   (int)sizes[11] & 255,
                   (int)sizes[11] >> 8,      scale,       softcap};
    Plan p = {.first_run = malloc((size_t)(a.num_seqs + 1) * 8)};
    plan(&a, &p);
    int64_t items = p.num_runs * a.num_kv_heads, parts = items * p.max_tiles;
    Work w = {&a, &p, NULL};
    if (p.max_tiles > 1 && items < 4 * threads_count() && parts * state_floats(&p) <= MOST_PARTS)
        w.parts = malloc((size_t)(parts * state_floats(&p)) * 4);
    if (w.parts) {
        share(parts, 1, attend_parts, &w);
        share(items, 1, merge_parts, &w);
    } else {
        share(items, 1, attend_items, &w);
    }
    free(w.parts);
    free(p.first_run);
}
