/* Attention over a paged cache: ragged queries, grouped heads, causal or both ways, window or chunks, soft-cap, bias by
 * distance; softmax in float32.
 * Over caches of float16 some of it may be done in float16: half.c; over those of bf16 with products of bf16:
 * amx.c.
 *
 * The keys of a sequence are cut into tiles of KEY_TILE counted from position 0. Each tile gives a softmax of its own;
 * the tiles of a query are merged in order. Masked keys add exact zeros. So the result of a (query, head) depends on
 * its own position alone: not on the batch, not on how the prompt was cut, not on which thread took which tile.
 *
 * A work item is (sequence, kv head, run of queries): its rows are the query heads of that kv head for each query of
 * the run, row = query * group + head. Rows are taken ROW_TILE at a time. */
#include "attention/attention.h"
#include "attention/vectors.h"
#include "runtime/isa.h"
#include "runtime/threads.h"

#define ROWS_TARGET 48          /* rows per item where there are that many queries */
#define MOST_PARTS (1 << 24)    /* floats: what shared items may take */

INLINE int64_t state_floats(const Plan *p) { return p->max_rows * (p->padded + 2); }

static State state_at(float *base, const Plan *p) {
    State s = {base, base + p->max_rows, base + 2 * p->max_rows};
    return s;
}

static Scratch scratch_for(const Attention *a, const Plan *p) {
    int64_t rows = p->max_rows, wide = rows * p->padded, bytes = round_up(a->dim, I8_STEP);
    int64_t row = max64(p->padded * 4, bytes) / 4; /* floats */
    float *at = thread_buffer(wide + wide / 2 + rows * (KEY_TILE + 2 + bytes / 4) + KEY_TILE * (2 * row + 1) +
                              2 * state_floats(p));
    Scratch s = {.q = {.wide = at, .padded = p->padded, .padded_bytes = bytes}};
    s.scores = at += wide;
    s.exact = at += rows * KEY_TILE;
    s.part = state_at(at += KEY_TILE, p);
    s.total = state_at(at += state_floats(p), p);
    s.k = (char *)(at += state_floats(p));
    s.v = (char *)(at += KEY_TILE * row);
    s.q.half = (uint16_t *)(at += KEY_TILE * row);
    s.q.bytes = (int8_t *)(at += wide / 2);
    s.q.scale = at += rows * (bytes / 4);
    s.low = (int32_t *)(at += rows);
    s.high = s.low + rows / ROW_TILE;
    return s;
}

/* ---- items ---- */

/* 2^-|difference of the maxima| of rows [m, m + VL), of which some may be none: what follows in memory, then. */
INLINE void find_factors(const State *total, const State *part, int64_t m, float *factor) {
    vf rise = loadf(part->max + m) - loadf(total->max + m);
    storef(factor, exp2_bounded(pick(rise > splat(0.0f), -rise, rise)));
}

/* The one of the larger maximum is taken as it is. */
INLINE vf merged(vi rises, vf total, vf part, float factor) {
    return madd_by(pick(rises, part, total), pick(rises, total, part), factor);
}

/* Without branches: which maximum is the larger cannot be guessed. */
static void merge(State *total, const State *part, const Plan *p, int64_t rows) {
    float factors[VL];
    for (int64_t m = 0; m < rows; m++) {
        if (m % VL == 0) find_factors(total, part, m, factors);
        float factor = factors[m % VL], *to = total->acc + m * p->padded;
        const float *from = part->acc + m * p->padded;
        vf old_max = splat(total->max[m]), new_max = splat(part->max[m]);
        vi rises = new_max > old_max;
        for (int64_t i = 0; i < p->padded; i += VL)
            storef(to + i, merged(rises, loadf(to + i), loadf(from + i), factor));
        total->sum[m] = merged(rises, splat(total->sum[m]), splat(part->sum[m]), factor)[0];
        total->max[m] = pick(rises, new_max, old_max)[0];
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
    it.num_keys = a->seq_lens[low];
    it.first_pos = it.num_keys - count + skip;
    return it;
}

/* Scores come out as soft-cap's argument, or in units of log 2. */
static void load_queries(const Attention *a, const Plan *p, const Item *it, Scratch *s) {
    if (p->amx) {
        p->amx->load(a, p, it, s);
        return;
    }
    float unit = a->softcap > 0.0f ? a->scale / a->softcap : a->scale * LOG2_E;
    float factor = a->cache_dtype == I8 ? 1.0f : unit;
    for (int64_t m = 0; m < it->num_rows; m++) {
        int64_t from = token_of(p, it, m) * a->q_token + head_of(p, it, m) * a->q_head;
        float *to = s->q.wide + m * p->padded;
        WITH_DTYPE(a->dtype, for (int64_t i = 0; i < a->dim; i += VL)
                                storef(to + i, load_upto(a->q, from + i, DTYPE, a->dim - i) * factor);)
        for (int64_t i = round_up(a->dim, VL); i < p->padded; i += VL) storef(to + i, splat(0.0f));
        if (p->half) p->half->narrow(s->q.half + m * p->padded, to, p->padded, 1.0f);
        if (a->cache_dtype == I8) {
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
        float *from = s->acc + m * p->padded;
        if (p->amx) p->amx->straighten(from, a->dim);
        WITH_DTYPE(a->dtype, for (int64_t i = 0; i < a->dim; i += VL)
                                store_upto(a->out, to + i, DTYPE, a->dim - i, loadf(from + i) * inverse);)
    }
}

static int64_t tile_begin(const Attention *a, const Item *it) { return first_key_of(a, it->first_pos) / KEY_TILE; }
static int64_t tile_end(const Attention *a, const Item *it) { return (item_end(a, it) - 1) / KEY_TILE + 1; }

/* What follows a tile of an item: its next one, or the first of the item that follows. */
static Ahead after_tile(const Attention *a, const Plan *p, const Item *it, int64_t tile, int64_t next_item) {
    if (!p->amx) return (Ahead){.start = 0};
    if (tile + 1 < tile_end(a, it)) return (Ahead){*it, (tile + 1) * KEY_TILE};
    if (next_item < 0 || next_item >= p->num_runs * a->num_kv_heads) return (Ahead){.start = 0};
    Item next = find_item(a, p, next_item);
    return (Ahead){next, tile_begin(a, &next) * KEY_TILE};
}

static void begin_work(const Plan *p) {
    if (p->amx) p->amx->begin();
}

static void end_work(const Plan *p) {
    if (p->amx) p->amx->end();
}

static void attend(const Attention *a, const Plan *p, const Item *it, int64_t tile, Scratch *s) {
    if (p->amx)
        p->amx->attend(a, p, it, tile * KEY_TILE, s);
    else
        attend_tile(a, p, it, tile * KEY_TILE, s);
}

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
    begin_work(p);
    for (int64_t index = begin; index < end; index++) {
        int64_t place = p->num_runs * a->num_kv_heads - 1 - index;
        Item it = find_item(a, p, place);
        load_queries(a, p, &it, &s);
        for (int64_t tile = tile_begin(a, &it); tile < tile_end(a, &it); tile++) {
            s.ahead = after_tile(a, p, &it, tile, place - 1);
            attend(a, p, &it, tile, &s);
            if (tile > tile_begin(a, &it)) {
                merge(&s.total, &s.part, p, it.num_rows);
            } else {
                State first = s.part;
                s.part = s.total, s.total = first;
            }
        }
        store_rows(a, p, &it, &s.total);
    }
    end_work(p);
}

/* Few items with long histories: threads share the tiles of each ... */
static void attend_parts(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Work *w = work;
    Scratch s = scratch_for(w->a, w->p);
    begin_work(w->p);
    for (int64_t index = begin; index < end; index++) {
        Item it = find_item(w->a, w->p, index / w->p->max_tiles);
        int64_t tile = index % w->p->max_tiles;
        if (tile < tile_begin(w->a, &it) || tile >= tile_end(w->a, &it)) continue;
        load_queries(w->a, w->p, &it, &s);
        s.part = state_at(w->parts + index * state_floats(w->p), w->p);
        s.ahead = after_tile(w->a, w->p, &it, tile, index / w->p->max_tiles + 1);
        attend(w->a, w->p, &it, tile, &s);
    }
    end_work(w->p);
}

/* ... then the parts are merged in the same order. */
static void merge_parts(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Work *w = work;
    int64_t size = state_floats(w->p);
    for (int64_t index = begin; index < end; index++) {
        Item it = find_item(w->a, w->p, index);
        float *parts = w->parts + index * w->p->max_tiles * size;
        State total = state_at(parts + tile_begin(w->a, &it) * size, w->p);
        for (int64_t tile = tile_begin(w->a, &it) + 1; tile < tile_end(w->a, &it); tile++) {
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
    p->padded = round_up(a->dim, p->half ? HALF_LANES : VL);
    p->run = max64(min64(ROWS_TARGET / p->group, most_queries), 1);
    p->max_rows = round_up(p->run * p->group, p->amx ? AMX_ROWS : ROW_TILE);
    p->max_tiles = (longest + KEY_TILE - 1) / KEY_TILE;
    for (int64_t r = 0; r < a->num_seqs; r++) {
        p->first_run[r] = p->num_runs;
        p->num_runs += (a->query_start[r + 1] - a->query_start[r] + p->run - 1) / p->run;
    }
    p->first_run[a->num_seqs] = p->num_runs;
}

static int fits_amx(const Attention *a) {
    return a->dtype == BF16 && a->cache_dtype == BF16 && a->dim % AMX_DIM_STEP == 0 && a->dim <= AMX_MOST_DIM &&
           a->scale > 0.0f;
}

EXPORT void call_attention(const void *words) {
    const Attention *a = words;
    const Isa *isa = &isas[a->isa];
    Plan p = {.first_run = malloc((size_t)(a->num_seqs + 1) * 8)};
    if (isa->half && a->cache_dtype == F16 && !(a->softcap > 0.0f) && !a->bias) p.half = half_arithmetic();
    if (isa->tiles && fits_amx(a)) p.amx = amx_arithmetic();
    plan(a, &p);
    int64_t items = p.num_runs * a->num_kv_heads, parts = items * p.max_tiles;
    Work w = {a, &p, NULL};
    if (p.max_tiles > 1 && items < 4 * threads_count() && parts * state_floats(&p) <= MOST_PARTS)
        w.parts = aligned_alloc(64, (size_t)round_up(parts * state_floats(&p) * 4, 64));
    if (w.parts) {
        share(parts, 1, attend_parts, &w);
        share(items, 1, merge_parts, &w);
    } else {
        share(items, max64(items / (16 * threads_count()), 1), attend_items, &w);
    }
    free(w.parts);
    free(p.first_run);
}
