/* Attention of an item's rows over one tile of keys. */
#include "attention/few_bits.h"
#include "attention/tile.h"

#define WIDEN_ABOVE 4 /* rows: with more, 16-bit and int8 rows are widened once per tile, before they are used; those of
                       * float8 and int4 always are */

/* ---- the rows of a tile ---- */

/* `dim` entries -> floats, zeros up to `padded`. */
static void widen_row(const char *row, int64_t dim, int64_t padded, int type, float *to) {
    int64_t i = 0;
    if (type == E4M3) return widen_float8(row, dim, padded, E4M3, to);
    if (type == E5M2) return widen_float8(row, dim, padded, E5M2, to);
    if (type == I4) return widen_four_bits(row, dim, padded, to);
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

INLINE void repeat(Tile *t, int64_t at, int64_t from) {
    t->key[at] = t->key[from], t->value[at] = t->value[from];
    t->key_scale[at] = t->key_scale[from], t->value_scale[at] = t->value_scale[from];
}

/* Entries that fill up the first and the last step of keys repeat the first and the last that some row sees: they are
 * masked, but they are multiplied, and before a window may lie anything. */
static void repeat_ends(const Attention *a, const Item *it, int64_t start, Tile *t) {
    int64_t first = max64(first_key_of(a, it->first_pos) - start, 0);
    for (int64_t n = first / KEY_STEP * KEY_STEP; n < first; n++) repeat(t, n, first);
    for (int64_t n = t->keys; n < round_up(t->keys, KEY_STEP); n++) repeat(t, n, t->keys - 1);
}

/* `dim` entries of `bytes` in all, copied, zeros up to `padded_bytes`. */
static const char *padded_row(const char *row, int64_t bytes, int64_t padded_bytes, char *to) {
    memcpy(to, row, (size_t)bytes);
    memset(to + bytes, 0, (size_t)(padded_bytes - bytes));
    return to;
}

static const char *wide_row(const Attention *a, const Plan *p, const char *row, float *to) {
    widen_row(row, a->dim, p->padded, a->cache_dtype, to);
    return (const char *)to;
}

/* The rows where and how the register tiles want them: whole vectors, wide if many queries will use them. */
static void make_ready(const Attention *a, const Plan *p, const Item *it, Scratch *s, Tile *t) {
    int narrow = a->cache_dtype != F32, odd = a->dim % (a->cache_dtype == I8 ? max64(VL, I8_STEP) : VL) != 0;
    int widen = odd || a->cache_dtype > I8 || (narrow && it->num_rows > WIDEN_ABOVE);
    if (a->cache_dtype == I8)
        for (int64_t n = 0; n < t->keys; n++) {
            t->key_scale[n] = scale_of_row(t->key[n], a->dim);
            t->value_scale[n] = scale_of_row(t->value[n], a->dim);
        }
    t->value_type = widen ? F32 : a->cache_dtype;
    for (int64_t n = 0; widen && n < t->keys; n++)
        t->value[n] = wide_row(a, p, t->value[n], (float *)s->v + n * p->padded);
    t->key_type = widen && a->cache_dtype != I8 ? F32 : a->cache_dtype;
    if (a->cache_dtype == I8)
        for (int64_t n = 0; odd && n < t->keys; n++)
            t->key[n] = padded_row(t->key[n], a->dim, s->q.padded_bytes, s->k + n * s->q.padded_bytes);
    else
        for (int64_t n = 0; widen && n < t->keys; n++)
            t->key[n] = wide_row(a, p, t->key[n], (float *)s->k + n * p->padded);
}

/* The same for float16 arithmetic. */
static void make_half_ready(const Attention *a, const Plan *p, Scratch *s, Tile *t) {
    t->key_type = t->value_type = F16;
    if (a->dim == p->padded) return;
    for (int64_t n = 0; n < t->keys; n++) {
        t->key[n] = padded_row(t->key[n], a->dim * 2, p->padded * 2, s->k + n * p->padded * 2);
        t->value[n] = padded_row(t->value[n], a->dim * 2, p->padded * 2, s->v + n * p->padded * 2);
    }
}

/* ---- one tile of keys ---- */

/* For each four rows the keys [low, high) of the tile that any of them sees, in whole steps. */
static void find_ranges(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    for (int64_t m = 0; m < it->num_rows; m += ROW_TILE) {
        int64_t first = it->first_pos + m / p->group;
        int64_t last = it->first_pos + (min64(m + ROW_TILE, it->num_rows) - 1) / p->group;
        int64_t low = max64(first_key_of(a, first) - start, 0) / KEY_STEP * KEY_STEP;
        int64_t high = min64(round_up(max64(end_of_keys(a, it, last) - start, 0), KEY_STEP), KEY_TILE);
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
            score((int)min64(it->num_rows - m, ROW_TILE), &s->q, m, t, n, s->scores + m * KEY_TILE);
        }
    }
}

static void score_half_tile(const Attention *a, const Plan *p, const Item *it, const Tile *t, Scratch *s) {
    int64_t keys = round_up(t->keys, KEY_STEP);
    for (int64_t n = 0; n < keys; n += HALF_RUN) {
        int64_t end = min64(n + HALF_RUN, keys);
        for (int64_t j = n; j < end; j++) prefetch_row(t->value[j], a->dim * 2);
        for (int64_t m = 0; m < it->num_rows; m += ROW_TILE)
            p->half->score((int)min64(it->num_rows - m, ROW_TILE), &s->q, m, t, max64(n, s->low[m / ROW_TILE]),
                           min64(end, s->high[m / ROW_TILE]), s->scores + m * KEY_TILE);
    }
}

static Span find_span(const Attention *a, const Plan *p, const Item *it, int64_t start, const Scratch *s, int64_t m) {
    int64_t low = s->low[m / ROW_TILE], high = s->high[m / ROW_TILE], pos = it->first_pos + m / p->group;
    int64_t begin = min64(max64(first_key_of(a, pos) - start, low), high);
    return (Span){low, high, begin, max64(min64(end_of_keys(a, it, pos) - start, high), low)};
}

/* Entries of the distances [first, first + VL), those beyond `most` either way as that one's. */
INLINE vf biases_from(const float *middle, int64_t first, int64_t most) {
    float ends[VL];
    if (first >= -most && first + VL - 1 <= most) return loadf(middle + first);
    for (int64_t j = 0; j < VL; j++) ends[j] = middle[max64(min64(first + j, most), -most)];
    return loadf(ends);
}

/* Adds to the scores [low, high) of a row what its head has for their keys' distances from the query; `distance` is that
 * of the tile's first key. */
static void add_bias(const Attention *a, int64_t head, int64_t distance, int64_t low, int64_t high, float *row) {
    const float *middle = a->bias + head * (2 * a->reach - 1) + a->reach - 1;
    for (int64_t i = low; i < high; i += VL)
        storef(row + i, madd_by(loadf(row + i), biases_from(middle, distance + i, a->reach - 1), LOG2_E));
}

#define STEP_VECTORS (KEY_STEP / VL)

/* Scores of `steps` steps of keys -> weights, added to `sum`. */
INLINE void weigh_scores(const int steps, float *row, vf shift, vf *sum) {
    vf y[2 * STEP_VECTORS];
    EACH(j, steps * STEP_VECTORS) y[j] = loadf(row + j * VL) - shift;
    exp2_each(steps * STEP_VECTORS, y);
    EACH(j, steps * STEP_VECTORS) storef(row + j * VL, y[j]);
    EACH(j, steps * STEP_VECTORS) sum[j % STEP_VECTORS] += y[j];
}

/* Soft-cap, mask, softmax: turns the scores of a row into weights -> their maximum, the weights' sum. */
static void soften_row(const Attention *a, float *row, Span span, float *max, float *total) {
    int64_t low = span.low, high = span.high;
    if (a->softcap > 0.0f)
        for (int64_t i = low; i < high; i += VL)
            storef(row + i, splat(a->softcap * LOG2_E) * tanhv(loadf(row + i)));
    for (int64_t i = low; i < span.begin; i++) row[i] = -INFINITY;
    for (int64_t i = span.end; i < high; i++) row[i] = -INFINITY;
    vf best[STEP_VECTORS], sum[STEP_VECTORS] = {{0}};
    EACH(j, STEP_VECTORS) best[j] = splat(NOTHING);
    for (int64_t i = low; i < high; i += KEY_STEP)
        EACH(j, STEP_VECTORS) best[j] = larger(best[j], loadf(row + i + j * VL));
    for (int j = 1; j < STEP_VECTORS; j++) best[0] = larger(best[0], best[j]);
    *max = largest(best[0]);
    vf shift = splat(*max);
    for (; low + 2 * KEY_STEP <= high; low += 2 * KEY_STEP) weigh_scores(2, row + low, shift, sum);
    if (low < high) weigh_scores(1, row + low, shift, sum);
    for (int j = 1; j < STEP_VECTORS; j++) sum[0] += sum[j];
    *total = sum1(sum[0]);
}

/* In float16; a row whose scores need more is scored again in float32. Whether it is depends on what it sees alone. */
static void soften_half_row(const Attention *a, const Plan *p, const Tile *t, Span span, Scratch *s,
                            int64_t m) {
    uint16_t *row = (uint16_t *)(s->scores + m * KEY_TILE);
    if (span.begin < span.end && p->half->soften(row, span, s->part.max + m, s->part.sum + m)) return;
    for (int64_t n = span.low; n < span.high; n += KEY_STEP) score_f16(1, &s->q, m, t, n, s->exact);
    soften_row(a, s->exact, span, s->part.max + m, s->part.sum + m);
    s->part.sum[m] *= WEIGHT_UNIT;
    p->half->narrow(row + span.low, s->exact + span.low, span.high - span.low, WEIGHT_UNIT);
}

static void soften_tile(const Attention *a, const Plan *p, const Item *it, int64_t start, const Tile *t, Scratch *s) {
    for (int64_t m = 0; m < it->num_rows; m++) {
        Span span = find_span(a, p, it, start, s, m);
        float *row = s->scores + m * KEY_TILE;
        if (p->half) {
            soften_half_row(a, p, t, span, s, m);
            continue;
        }
        if (a->bias) add_bias(a, head_of(p, it, m), start - it->first_pos - m / p->group, span.low, span.high, row);
        soften_row(a, row, span, s->part.max + m, s->part.sum + m);
        if (a->cache_dtype == I8)
            for (int64_t i = span.low; i < span.high; i += VL)
                storef(row + i, loadf(row + i) * loadf(t->value_scale + i));
    }
}

static Weighted weighted(const Plan *p, const Tile *t, Scratch *s, int64_t m) {
    return (Weighted){s->scores + m * KEY_TILE, t, s->low[m / ROW_TILE], s->high[m / ROW_TILE], p->padded,
                      s->part.acc + m * p->padded};
}

static void weigh_tile(const Plan *p, const Item *it, const Tile *t, Scratch *s) {
    WeighValues *weigh = weigh_values[t->value_type];
    for (int64_t at = 0; at < p->padded;) {
        int width = strip_width(it->num_rows, (p->padded - at) / VL);
        for (int64_t m = 0; m < it->num_rows; m += ROW_TILE) {
            Weighted w = weighted(p, t, s, m);
            weigh((int)min64(it->num_rows - m, ROW_TILE), &w, width, at);
        }
        at += width * VL;
    }
}

INLINE int all_finite(const float *x, int64_t n) {
    vf zero = splat(0.0f);
    for (int64_t i = 0; i < n; i += VL) zero = madd(zero, loadf(x + i), splat(0.0f));
    return sum1(zero) == 0.0f;
}

/* In float16; a row whose sums leave it is done again in float32. */
static void weigh_half_tile(const Attention *a, const Plan *p, const Item *it, const Tile *t, Scratch *s) {
    for (int64_t m = 0; m < it->num_rows; m += ROW_TILE) {
        Weighted w = weighted(p, t, s, m);
        p->half->weigh((int)min64(it->num_rows - m, ROW_TILE), &w);
    }
    for (int64_t m = 0; m < it->num_rows; m++) {
        Weighted w = weighted(p, t, s, m);
        if (all_finite(w.acc, p->padded)) continue;
        for (int64_t n = w.low; n < w.high; n += VL) storef(s->exact + n, load(w.weight, n, F16));
        w.weight = s->exact;
        for (int64_t at = 0, width; at < p->padded; at += width * VL)
            weigh_f16(1, &w, (int)(width = strip_width(1, (p->padded - at) / VL)), at);
    }
}

void attend_tile(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s) {
    Tile t = {.keys = min64(item_end(a, it) - start, KEY_TILE)};
    find_rows(a, it, start, &t);
    if (p->half)
        make_half_ready(a, p, s, &t);
    else
        make_ready(a, p, it, s, &t);
    repeat_ends(a, it, start, &t);
    find_ranges(a, p, it, start, s);
    if (p->half)
        score_half_tile(a, p, it, &t, s);
    else
        score_tile(a, it, &t, s);
    soften_tile(a, p, it, start, &t, s);
    if (p->half)
        weigh_half_tile(a, p, it, &t, s);
    else
        weigh_tile(p, it, &t, s);
}
