/* Attention with AMX tiles: queries, keys and values of bf16, of AMX_DIM_STEP to AMX_MOST_DIM entries.
 *
 * Scores are sums of exact products, the weights are rounded to bf16, and so is what they add up to: the sum of the
 * rounded ones. A row of products goes through the same tiles whatever lies in the rows beside it. State.acc keeps its
 * entries in the order of the value tiles until the end: `straighten`. */
#include "attention/attention.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512DQ__) && VL == 16

#include "attention/vectors.h"
#include "runtime/amx.h"

#define CHUNK 16 /* keys of a tile of scores */
#define WEIGHED 32 /* keys of a tile of weights */
#define SCORED 64  /* keys scored at once */
#define CHUNKS (KEY_TILE / CHUNK)
#define TILE_ENTRIES 512 /* bf16; 256 floats */

/* Tiles 0 to 3 hold sums, the others what is multiplied. */
static void begin(void) { SHAPE_TILES(&whole_tiles) }

static void end(void) { _tile_release(); }

/* Compilers do not know that loading a tile reads memory: what was written before must be there. */
INLINE void settle(void) { __asm__ volatile("" : : : "memory"); }

INLINE void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* In every lane of 128 bits: r[i][j] = r[j][i], of 32 bits each. */
INLINE void transpose_lanes(__m512i *r) {
    __m512i t[4] = {_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]),
                    _mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3])};
    r[0] = _mm512_unpacklo_epi64(t[0], t[2]);
    r[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    r[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    r[3] = _mm512_unpackhi_epi64(t[1], t[3]);
}

/* r[i][j] = r[j][i], of 32 bits each. */
INLINE void transpose(__m512i *r) {
    __m512i t[16];
    EACH(i, 4) transpose_lanes(r + 4 * i);
    EACH(c, 4) { /* then lanes themselves, of each four vectors */
        __m512i even = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), odd = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        __m512i even2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        __m512i odd2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even, even2, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even, even2, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
    }
    EACH(i, 16) r[i] = t[i];
}

/* ---- queries ---- */

static const uint16_t no_entries[AMX_MOST_DIM] __attribute__((aligned(64)));

/* The queries of rows [m, m + AMX_ROWS), zeros past the item's. */
static void find_queries(const Attention *a, const Plan *p, const Item *it, int64_t m, const uint16_t **row) {
    int64_t head = head_of(p, it, m), token = token_of(p, it, m), end = (it->kv_head + 1) * p->group;
    for (int64_t i = 0; i < AMX_ROWS; i++) {
        row[i] = m + i < it->num_rows ? (const uint16_t *)a->q + token * a->q_token + head * a->q_head : no_entries;
        if (++head == end) head -= p->group, token++;
    }
}

/* [tile of rows][dim / 32][16 pairs of entries][16 rows][2] */
static void load_tiles(const Attention *a, const Plan *p, const Item *it, Scratch *s) {
    uint16_t *to = s->q.half;
    for (int64_t m = 0; m < it->num_rows; m += AMX_ROWS) {
        const uint16_t *from[AMX_ROWS];
        find_queries(a, p, it, m, from);
        for (int64_t d = 0; d < a->dim; d += AMX_DIM_STEP, to += TILE_ENTRIES) {
            __m512i row[AMX_ROWS];
            EACH(i, AMX_ROWS) row[i] = _mm512_loadu_si512(from[i] + d);
            transpose(row);
            EACH(i, 16) _mm512_storeu_si512(to + i * 32, row[i]);
        }
    }
}

/* ---- keys and values ---- */

/* The rows of a tile of keys, CHUNK after CHUNK; those of a chunk lie one after another. Some row of the item sees some
 * of the keys [first, keys); no others are read, except those that share a chunk and a block of the cache with them. */
typedef struct {
    const char *key[CHUNKS], *value[CHUNKS];
    int64_t first, keys;
} Chunks;

/* Chunks that are not there have the keys of one that is. */
static Chunks find_chunks(const Attention *a, const Item *it, int64_t start) {
    Chunks c = {.first = max64(first_key_of(a, it->first_pos) - start, 0),
                .keys = min64(item_end(a, it) - start, KEY_TILE)};
    int64_t low = c.first / CHUNK, block = (start + low * CHUNK) / a->block_size;
    int64_t offset = start + low * CHUNK - block * a->block_size;
    const int32_t *entry = a->table + it->table_row * a->table_stride + block;
    for (int64_t i = low; i * CHUNK < c.keys; i++, offset += CHUNK) {
        for (; offset >= a->block_size; offset -= a->block_size) entry++;
        int64_t inside = (it->kv_head * a->block_size + offset) * a->dim;
        c.key[i] = a->k_cache + (*entry * a->k_block + inside) * 2;
        c.value[i] = a->v_cache + (*entry * a->v_block + inside) * 2;
    }
    for (int64_t i = 0; i < CHUNKS; i++)
        if (!c.key[i]) c.key[i] = c.key[low];
    return c;
}

/* Where chunks do not lie in one piece: copies, in s->k. */
static void copy_chunks(const Attention *a, const Item *it, int64_t start, Scratch *s, Chunks *c) {
    int64_t bytes = a->dim * 2;
    Tile t = {.keys = c->keys};
    find_rows(a, it, start, &t);
    memset(s->k, 0, (size_t)(2 * KEY_TILE * bytes));
    for (int64_t n = c->first; n < c->keys; n++) {
        memcpy(s->k + n * bytes, t.key[n], (size_t)bytes);
        memcpy(s->k + (KEY_TILE + n) * bytes, t.value[n], (size_t)bytes);
    }
    for (int64_t i = 0; i < CHUNKS; i++) {
        c->key[i] = s->k + i * CHUNK * bytes;
        c->value[i] = s->k + (KEY_TILE + i * CHUNK) * bytes;
    }
}

#define ASKED 256 /* bytes asked for together: four lines */

/* Chunks that will be wanted soon, asked for a little at a time, so that they arrive beside other work. */
typedef struct {
    const char *const *chunk;
    int64_t at, bytes; /* of a chunk, a multiple of ASKED */
    int64_t left;      /* times ASKED */
} Wish;

static Wish wish_for(const Attention *a, const char *const *chunk, const Chunks *c) {
    int64_t low = c->first / CHUNK, count = round_up(c->keys, CHUNK) / CHUNK - low, bytes = CHUNK * a->dim * 2;
    return (Wish){chunk + low, 0, bytes, count * bytes / ASKED};
}

INLINE void ask(Wish *w, int64_t times) {
    times = min64(times, w->left);
    w->left -= times;
    for (; times > 0; times--) {
        const char *at = *w->chunk + w->at;
        EACH(line, 4) __builtin_prefetch(at + line * 64, 0, 2); /* into the second level of caches */
        w->at += ASKED;
        if (w->at == w->bytes) w->at = 0, w->chunk++;
    }
}

/* How often to ask at each of so many turns. */
INLINE int64_t share_of(const Wish *w, int64_t turns) { return (w->left + turns - 1) / turns; }

INLINE const uint16_t *value_at(const Chunks *c, int64_t n, int64_t dim) {
    if (n < c->first || n >= c->keys) return no_entries;
    return (const uint16_t *)c->value[n / CHUNK] + n % CHUNK * dim;
}

/* Two values side by side, entry by entry: of each 32 entries the first tile has those whose number leaves 0 to 3 when
 * divided by 8, the second the others. */
INLINE void pair(const uint16_t *x, const uint16_t *y, int64_t dim, uint16_t *to) {
    for (int64_t d = 0; d < dim; d += 32, to += 2 * TILE_ENTRIES) {
        __m512i first = _mm512_loadu_si512(x + d), second = _mm512_loadu_si512(y + d);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi16(first, second));
        _mm512_storeu_si512(to + TILE_ENTRIES, _mm512_unpackhi_epi16(first, second));
    }
}

/* The values of a chunk, which are pairs 0.. or, of the second of WEIGHED keys, 8.. of a tile, as soften_block has the
 * weights: 0 and 2, 4 and 6, 8 and 10, 12 and 14, 1 and 3 ... */
static void pair_chunk(const Attention *a, const Chunks *c, int64_t chunk, Wish *keys, int64_t times, uint16_t *to) {
    int64_t begin = chunk * CHUNK, whole = begin >= c->first && begin + CHUNK <= c->keys;
    const uint16_t *from = (const uint16_t *)c->value[chunk];
    for (int64_t j = 0; j < CHUNK / 2; j++, to += 32) {
        int64_t n = j % 4 * 4 + j / 4;
        ask(keys, times);
        if (whole)
            pair(from + n * a->dim, from + (n + 2) * a->dim, a->dim, to);
        else
            pair(value_at(c, begin + n, a->dim), value_at(c, begin + n + 2, a->dim), a->dim, to);
    }
}

/* s->v [KEY_TILE / 32][dim / 16][16 pairs of keys][16 entries][2]. Unseen values may be anything in memory: zeros. */
static void pair_values(const Attention *a, const Chunks *c, Wish *keys, Scratch *s) {
    int64_t low = c->first / WEIGHED * (WEIGHED / CHUNK), high = round_up(c->keys, WEIGHED) / CHUNK;
    int64_t times = share_of(keys, (high - low) * (CHUNK / 2));
    for (int64_t i = low; i < high; i++) {
        uint16_t *to = (uint16_t *)s->v + i / 2 * (a->dim * WEIGHED) + i % 2 * (CHUNK / 2 * 32);
        pair_chunk(a, c, i, keys, times, to);
    }
}

static void straighten(float *row, int64_t dim) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < dim; i += 32) {
        __m512 low = _mm512_loadu_ps(row + i), high = _mm512_loadu_ps(row + i + 16);
        _mm512_storeu_ps(row + i, _mm512_permutex2var_ps(low, first, high));
        _mm512_storeu_ps(row + i + 16, _mm512_permutex2var_ps(low, second, high));
    }
}

/* ---- scores ---- */

/* What the rows of a tile of rows see of a tile of keys. Rows past the item's see what its last one does. */
typedef struct {
    __m512i begin, count;     /* by row */
    __m512i pos, bias;        /* by row: of the query, counted from the tile; where its head has the bias of distance 0 */
    int64_t low, high;        /* what some row sees, in whole blocks */
    int64_t all_from, all_to; /* what every row sees */
} Seen;

/* i / group, of small numbers. */
INLINE __m512i divided(__m512i i, int64_t group) {
    __m512 middle = _mm512_add_ps(_mm512_cvtepi32_ps(i), _mm512_set1_ps(0.5f));
    return _mm512_cvttps_epi32(_mm512_div_ps(middle, _mm512_set1_ps((float)group)));
}

/* By row: where its head has the bias of distance 0. */
INLINE __m512i bias_places(const Attention *a, const Plan *p, const Item *it, __m512i row, __m512i query) {
    __m512i first = _mm512_mullo_epi32(query, _mm512_set1_epi32((int32_t)p->group));
    __m512i head = _mm512_add_epi32(_mm512_sub_epi32(row, first), _mm512_set1_epi32((int32_t)(it->kv_head * p->group)));
    return _mm512_add_epi32(_mm512_mullo_epi32(head, _mm512_set1_epi32((int32_t)(2 * a->reach - 1))),
                            _mm512_set1_epi32((int32_t)a->reach - 1));
}

/* By row: the first key that a query sees, counted from the tile; where there are chunks, by the function of all ways to
 * attend. */
INLINE __m512i first_keys(const Attention *a, int64_t start, __m512i pos) {
    if (!a->chunk) return _mm512_sub_epi32(pos, _mm512_set1_epi32((int32_t)a->before));
    int32_t at[AMX_ROWS], first[AMX_ROWS];
    _mm512_storeu_si512(at, pos);
    for (int i = 0; i < AMX_ROWS; i++) first[i] = (int32_t)(first_key_of(a, start + at[i]) - start);
    return _mm512_loadu_si512(first);
}

static Seen find_seen(const Attention *a, const Plan *p, const Item *it, int64_t start, int64_t m) {
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i none = _mm512_setzero_si512(), last = _mm512_set1_epi32((int32_t)it->num_rows - 1);
    __m512i row = _mm512_min_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32((int32_t)m)), last);
    __m512i most = _mm512_set1_epi32((int32_t)min64(it->num_keys - start, KEY_TILE));
    __m512i query = divided(row, p->group);
    __m512i pos = _mm512_add_epi32(query, _mm512_set1_epi32((int32_t)(it->first_pos - start)));
    __m512i end = _mm512_add_epi32(pos, _mm512_set1_epi32((int32_t)a->after + 1));
    end = _mm512_max_epi32(_mm512_min_epi32(end, most), none);
    __m512i begin = first_keys(a, start, pos);
    begin = _mm512_min_epi32(_mm512_max_epi32(begin, none), end);
    int32_t begins[AMX_ROWS], ends[AMX_ROWS]; /* neither decreases */
    _mm512_storeu_si512(begins, begin);
    _mm512_storeu_si512(ends, end);
    int64_t low = begins[0] / WEIGHED * WEIGHED, high = round_up(ends[AMX_ROWS - 1], WEIGHED);
    return (Seen){begin, _mm512_sub_epi32(end, begin), pos, bias_places(a, p, it, row, query), low, high,
                  begins[AMX_ROWS - 1], ends[0]};
}

/* scores [SCORED][16 rows] of four chunks of keys. */
static void score_group(const uint16_t *q, const char *const *key, int64_t dim, float *scores) {
    zero_sums();
    for (int64_t d = 0; d < dim * 2; d += 64, q += TILE_ENTRIES) {
        _tile_loadd(6, q, 64);
        _tile_loadd(4, key[0] + d, dim * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, key[1] + d, dim * 2);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, key[2] + d, dim * 2);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, key[3] + d, dim * 2);
        _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + CHUNK * AMX_ROWS, 64);
    _tile_stored(2, scores + 2 * CHUNK * AMX_ROWS, 64);
    _tile_stored(3, scores + 3 * CHUNK * AMX_ROWS, 64);
}

static void soft_cap(const Attention *a, float *scores, const Seen *seen) {
    for (int64_t i = seen->low * AMX_ROWS; i < seen->high * AMX_ROWS; i += VL)
        storef(scores + i, splat(a->softcap * LOG2_E) * tanhv(loadf(scores + i) * splat(a->scale / a->softcap)));
}

/* Scales scores, and adds what each row's head has for the distances of keys. */
static void add_bias(const Attention *a, float *scores, const Seen *seen) {
    const __m512i most = _mm512_set1_epi32((int32_t)a->reach - 1), least = _mm512_set1_epi32(1 - (int32_t)a->reach);
    for (int64_t n = seen->low; n < seen->high; n++) {
        __m512i distance = _mm512_sub_epi32(_mm512_set1_epi32((int32_t)n), seen->pos);
        distance = _mm512_max_epi32(_mm512_min_epi32(distance, most), least);
        __m512 bias = _mm512_i32gather_ps(_mm512_add_epi32(seen->bias, distance), a->bias, 4);
        __m512 score = _mm512_loadu_ps(scores + n * AMX_ROWS);
        _mm512_storeu_ps(scores + n * AMX_ROWS, _mm512_fmadd_ps(score, _mm512_set1_ps(a->scale), bias));
    }
}

static void mask_keys(float *scores, const Seen *seen, int64_t low, int64_t high) {
    for (int64_t n = low; n < high; n++) {
        __m512i place = _mm512_sub_epi32(_mm512_set1_epi32((int32_t)n), seen->begin);
        __mmask16 sees = _mm512_cmplt_epu32_mask(place, seen->count);
        __m512 score = _mm512_loadu_ps(scores + n * AMX_ROWS);
        _mm512_storeu_ps(scores + n * AMX_ROWS, _mm512_mask_blend_ps(sees, _mm512_set1_ps(-INFINITY), score));
    }
}

/* What was not computed, or of keys that are none, is masked too. */
static void mask_scores(float *scores, const Seen *seen) {
    int64_t from = seen->all_from < seen->all_to ? seen->all_from : seen->high;
    mask_keys(scores, seen, seen->low, from);
    mask_keys(scores, seen, max64(seen->all_to, from), seen->high);
}

static __m512 largest_scores(const float *scores, const Seen *seen) {
    __m512 best[4];
    EACH(j, 4) best[j] = _mm512_set1_ps(-INFINITY);
    for (int64_t n = seen->low; n < seen->high; n += 4)
        EACH(j, 4) best[j] = _mm512_max_ps(_mm512_loadu_ps(scores + (n + j) * AMX_ROWS), best[j]);
    return _mm512_max_ps(_mm512_max_ps(best[0], best[1]), _mm512_max_ps(best[2], best[3]));
}

/* ---- weights ---- */

#define FLOOR 9         /* what is left of a number, without its floor; no exception */
#define NOT_LESS 5      /* or unordered */
#define LEAST (-126.0f) /* below, powers of 2 would be subnormal: zeros */

/* y[j] = 2^y[j] within 1e-4 for y <= 0; exactly 1 at 0, 0 below LEAST; NaN stays NaN. */
INLINE void raise_each(const int n, __m512 *y) {
    __m512 r[4], p[4];
    __mmask16 counts[4];
    EACH(j, n) counts[j] = _mm512_cmp_ps_mask(y[j], _mm512_set1_ps(LEAST), NOT_LESS);
    EACH(j, n) r[j] = _mm512_reduce_ps(y[j], FLOOR);
    EACH(j, n) p[j] = _mm512_fmadd_ps(r[j], _mm512_set1_ps(0.07706602f), _mm512_set1_ps(0.22764611f));
    EACH(j, n) p[j] = _mm512_fmadd_ps(r[j], p[j], _mm512_set1_ps(0.69511654f));
    EACH(j, n) p[j] = _mm512_fmadd_ps(r[j], p[j], _mm512_set1_ps(1.0f));
    EACH(j, n) y[j] = _mm512_maskz_scalef_ps(counts[j], p[j], y[j]); /* times 2 to the floor of y */
}

/* score * unit + shift: in units of log 2, below the largest. Sums of weights as four_keys has them. */
typedef struct {
    __m512 unit, shift, sum[2];
} Softmax;

/* Scores [4 keys][16 rows] -> weights in bf16 [2][4 lanes][4 rows][2 keys]: keys 0 and 2 of the rows 0.., 8.., then 1
 * and 3; the same of the rows 4.., 12... */
INLINE void four_keys(const float *scores, Softmax *x, __m512i *to) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512 y[4];
    EACH(j, 4) y[j] = _mm512_fmadd_ps(_mm512_loadu_ps(scores + j * AMX_ROWS), x->unit, x->shift);
    raise_each(4, y);
    __m512i low = (__m512i)_mm512_cvtne2ps_pbh(y[1], y[0]), high = (__m512i)_mm512_cvtne2ps_pbh(y[3], y[2]);
    to[0] = _mm512_unpacklo_epi16(low, high);
    to[1] = _mm512_unpackhi_epi16(low, high);
    EACH(j, 2) x->sum[j] = _mm512_dpbf16_ps(x->sum[j], (__m512bh)to[j], ones);
}

/* By row. */
static __m512 sums_of_weights(const Softmax *x) {
    __m512i low = (__m512i)x->sum[0], high = (__m512i)x->sum[1];
    __m512 even = (__m512)_mm512_shuffle_i32x4(low, high, 0x44), odd = (__m512)_mm512_shuffle_i32x4(low, high, 0xee);
    __m512i sum = (__m512i)_mm512_add_ps(even, odd); /* of rows 0.., 8.., 4.., 12.. */
    return (__m512)_mm512_shuffle_i32x4(sum, sum, 0xd8);
}

/* Scores [WEIGHED keys][16 rows] -> weights [16 rows][16 pairs of keys]: the pairs of 16 keys are 0 and 2, 4 and 6, 8
 * and 10, 12 and 14, 1 and 3 ... They may be written over scores that were read. */
INLINE void soften_block(const float *scores, float *weights, Softmax *x, Wish *values, int64_t times) {
    for (int64_t n = 0; n < WEIGHED; n += 4) {
        __m512i two[2];
        four_keys(scores + n * AMX_ROWS, x, two);
        EACH(j, 2) _mm512_storeu_si512(weights + (n / 2 + j) * AMX_ROWS, two[j]);
        ask(values, times);
    }
    __m512i part[4][4]; /* rows 0.. and 8.. of 16 keys, rows 4.. and 12.. of them, the same of the others */
    EACH(i, 4) EACH(j, 4) part[i][j] = _mm512_loadu_si512(weights + (i / 2 * 8 + i % 2 + 2 * j) * AMX_ROWS);
    EACH(i, 4) transpose_lanes(part[i]);
    EACH(i, 2) EACH(c, 4) {
        float *to = weights + (4 * i + c) * AMX_ROWS;
        _mm512_storeu_si512(to, _mm512_shuffle_i32x4(part[i][c], part[2 + i][c], 0x88));
        _mm512_storeu_si512(to + 8 * AMX_ROWS, _mm512_shuffle_i32x4(part[i][c], part[2 + i][c], 0xdd));
    }
}

/* ---- values ---- */

/* Adds weights times 32 or 64 entries of the values to tiles 0 to 1 or 3. */
INLINE void weigh_block(const int tiles, const float *weights, const uint16_t *values) {
    _tile_loadd(4, weights, 64);
    _tile_loadd(5, values, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, values + TILE_ENTRIES, 64);
    _tile_dpbf16ps(1, 4, 6);
    if (tiles < 4) return;
    _tile_loadd(5, values + 2 * TILE_ENTRIES, 64);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, values + 3 * TILE_ENTRIES, 64);
    _tile_dpbf16ps(3, 4, 6);
}

INLINE void store_sums(const int tiles, float *acc, int64_t padded) {
    _tile_stored(0, acc, padded * 4);
    _tile_stored(1, acc + 16, padded * 4);
    if (tiles < 4) return;
    _tile_stored(2, acc + 32, padded * 4);
    _tile_stored(3, acc + 48, padded * 4);
}

/* ---- a tile of keys ---- */

static void see_nothing(const Plan *p, int64_t m, const State *to) {
    for (int64_t i = m; i < m + AMX_ROWS; i++) to->max[i] = NOTHING, to->sum[i] = 0.0f;
    memset(to->acc + m * p->padded, 0, (size_t)(AMX_ROWS * p->padded * 4));
}

/* Scores, made below one another, as Softmax wants them. */
static Softmax begin_softmax(const Attention *a, float *scores, const Seen *seen, float *max) {
    if (a->softcap > 0.0f) soft_cap(a, scores, seen);
    if (a->bias) add_bias(a, scores, seen);
    mask_scores(scores, seen);
    Softmax x = {.unit = _mm512_set1_ps(a->softcap > 0.0f ? 1.0f : a->bias ? LOG2_E : a->scale * LOG2_E)};
    __m512 most = _mm512_mul_ps(largest_scores(scores, seen), x.unit);
    most = _mm512_max_ps(most, _mm512_set1_ps(NOTHING));
    _mm512_storeu_ps(max, most);
    x.shift = _mm512_sub_ps(_mm512_setzero_ps(), most);
    x.sum[0] = x.sum[1] = _mm512_setzero_ps();
    return x;
}

/* Weights take the place of scores, half as far from the beginning. The first 64 entries of the values are multiplied
 * by a block of them while the next is made. */
INLINE void weigh_rows(const int tiles, const Attention *a, const Seen *seen, Softmax *x, Wish *wish, Scratch *s,
                       float *acc) {
    const uint16_t *values = (const uint16_t *)s->v;
    int64_t times = share_of(wish, (seen->high - seen->low) / 4);
    zero_sums();
    for (int64_t n = seen->low; n < seen->high; n += WEIGHED) {
        float *weights = s->scores + n / 2 * AMX_ROWS;
        soften_block(s->scores + n * AMX_ROWS, weights, x, wish, times);
        settle();
        weigh_block(tiles, weights, values + n * a->dim);
    }
    store_sums(tiles, acc, a->dim);
}

static void weigh_strip(const int tiles, const Attention *a, const Seen *seen, int64_t d, Scratch *s, float *acc) {
    const uint16_t *values = (const uint16_t *)s->v + d * WEIGHED;
    zero_sums();
    for (int64_t n = seen->low; n < seen->high; n += WEIGHED)
        weigh_block(tiles, s->scores + n / 2 * AMX_ROWS, values + n * a->dim);
    store_sums(tiles, acc + d, a->dim);
}

static void attend_rows(const Attention *a, const Seen *seen, int64_t m, const Chunks *c, Wish *wish, Scratch *s) {
    const uint16_t *q = s->q.half + m * a->dim;
    float *acc = s->part.acc + m * a->dim;
    for (int64_t n = seen->low / SCORED * SCORED; n < seen->high; n += SCORED)
        score_group(q, c->key + n / CHUNK, a->dim, s->scores + n * AMX_ROWS);
    Softmax x = begin_softmax(a, s->scores, seen, s->part.max + m);
    if (a->dim < 64)
        weigh_rows(2, a, seen, &x, wish, s, acc);
    else
        weigh_rows(4, a, seen, &x, wish, s, acc);
    _mm512_storeu_ps(s->part.sum + m, sums_of_weights(&x));
    int64_t d = 64;
    for (; d + 64 <= a->dim; d += 64) weigh_strip(4, a, seen, d, s, acc);
    if (d < a->dim) weigh_strip(2, a, seen, d, s, acc);
}

static void attend(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    int whole = a->block_size % CHUNK == 0;
    Chunks c = find_chunks(a, it, start), next = {.keys = 0};
    if (!whole) copy_chunks(a, it, start, s, &c);
    if (whole && s->ahead.it.num_rows) next = find_chunks(a, &s->ahead.it, s->ahead.start);
    Wish keys = wish_for(a, next.key, &next), values = wish_for(a, next.value, &next);
    pair_values(a, &c, &keys, s);
    settle();
    for (int64_t m = 0; m < it->num_rows; m += AMX_ROWS) {
        Seen seen = find_seen(a, p, it, start, m);
        if (seen.low < seen.high)
            attend_rows(a, &seen, m, &c, &values, s);
        else
            see_nothing(p, m, &s->part);
    }
}

/* ---- */

static const AmxArithmetic tiles = {begin, end, load_tiles, attend, straighten};

const AmxArithmetic *amx_arithmetic(void) { return &tiles; }

#else

const AmxArithmetic *amx_arithmetic(void) { return NULL; }

#endif
