/* Low-rank adapters on top of products: lines of one adapter go together, through the rows of its a, then of its b.
 *
 * Lines are taken in chunks of one slot, so that a matrix is read once for several. Each number of a line is the same
 * sequence of operations whatever lines go with it: a sum over lanes and then vectors of x a^T, a sum over the rank. */
#include "maps/row_maps.h"

enum { A, B, RANK, SCALE, FACTOR, OFFSET, TYPE, SAVED, ENTRY_WORDS }; /* of an entry, as interface/lora_ops.py has them */

#define LINES 8        /* of a chunk, at most */
#define TILE_LINES (NR_MAX == 4 ? 4 : 2) /* of a tile: four times as many accumulators fit beside the operands */
#define RANKS 8        /* rows of a that are one item of work: two groups */
#define COLUMNS 256    /* of a part of y that are one item of work: whole panels */
#define LOGITS 64      /* rows of a saved matrix that are one item of work */
#define SMALL 24576    /* products that one thread does sooner than several */

typedef struct {
    const char *a, *b, *saved;
    const float *factor, *offset;
    int64_t rank;
    float scale;
    int type;
} Entry;

/* Lines order[begin] .. order[begin + count - 1] of one slot. */
typedef struct {
    int32_t slot, begin, count;
} Chunk;

typedef struct {
    const int32_t *order;
    const Chunk *chunks;
    int64_t count;
} Chunks;

static Entry entry_at(const int64_t *words) {
    int32_t bits = (int32_t)words[SCALE];
    Entry e = {(const char *)words[A], (const char *)words[B], (const char *)words[SAVED],
               (const float *)words[FACTOR], (const float *)words[OFFSET], words[RANK], 0.0f, (int)words[TYPE]};
    memcpy(&e.scale, &bits, 4);
    return e;
}

/* Lines by slots, in their order; those of no slot are left out. -> no chunks where there is no memory */
static Chunks chunks_of(const int32_t *slots, int64_t lines, int64_t num_slots) {
    int32_t *order = (int32_t *)thread_buffer(4 * lines + num_slots + 1);
    if (!order) return (Chunks){0};
    int32_t *next = order + lines;
    Chunk *chunks = (Chunk *)(next + num_slots + 1);
    Chunks found = {order, chunks, 0};
    memset(next, 0, (size_t)(num_slots + 1) * 4);
    for (int64_t i = 0; i < lines; i++)
        if (slots[i] >= 0 && slots[i] < num_slots) next[slots[i] + 1]++;
    for (int64_t s = 0; s < num_slots; s++) {
        int32_t begin = next[s], count = next[s + 1];
        for (int32_t done = 0; done < count; done += LINES)
            chunks[found.count++] = (Chunk){(int32_t)s, begin + done, (int32_t)min64(LINES, count - done)};
        next[s + 1] += begin;
    }
    for (int64_t i = 0; i < lines; i++)
        if (slots[i] >= 0 && slots[i] < num_slots) order[next[slots[i]]++] = (int32_t)i;
    return found;
}

/* Items of `products` products in all, by one thread where these are few. */
static void share_items(int64_t items, int64_t products, Body *body, void *work) {
    share(items, products < SMALL ? items : items / (8 * threads_count()) + 1, body, work);
}

/* ---- rows of x times rows of a matrix ---- */

/* out[t * out_stride + r] = x[t] . a[r], for nt lines and nr rows. */
INLINE void dot_tile(
    const int nt, const int nr, float *out, int64_t out_stride, const float *const *x, const char *a, int64_t width,
    const int atype
) {
    vf acc[4][4];
    EACH(t, nt) EACH(r, nr) acc[t][r] = splat(0.0f);
    int64_t whole = width / VL * VL, rest = width - whole;
    for (int64_t i = 0; i < whole; i += VL) {
        vf xs[4];
        EACH(t, nt) xs[t] = loadf(x[t] + i);
        EACH(r, nr) {
            vf row = load(a, r * width + i, atype);
            EACH(t, nt) acc[t][r] = madd(acc[t][r], xs[t], row);
        }
    }
    if (rest) {
        EACH(r, nr) {
            vf row = load_part(a, r * width + whole, atype, rest);
            EACH(t, nt) acc[t][r] = madd(acc[t][r], load_part(x[t], whole, F32, rest), row);
        }
    }
    EACH(t, nt) EACH(r, nr) out[t * out_stride + r] = sum1(acc[t][r]);
}

/* The same for any number of rows, in tiles. */
INLINE void dot_lines(
    const int nt, float *out, int64_t out_stride, const float *const *x, const char *a, int64_t rows, int64_t width,
    const int atype
) {
    int64_t r = 0, row_bytes = width * element_size(atype);
    for (; r + 4 <= rows; r += 4) dot_tile(nt, 4, out + r, out_stride, x, a + r * row_bytes, width, atype);
    for (; r < rows; r++) dot_tile(nt, 1, out + r, out_stride, x, a + r * row_bytes, width, atype);
}

/* Of x. */
typedef struct {
    const float *x[LINES];
    int64_t count, width;
} Lines;

/* out [count lines, rows], out_stride apart. */
static void dots(float *out, int64_t out_stride, const Lines *l, const char *a, int64_t rows, int type) {
    int64_t t = 0;
    WITH_DTYPE(type, {
        for (; t + TILE_LINES <= l->count; t += TILE_LINES)
            dot_lines(TILE_LINES, out + t * out_stride, out_stride, l->x + t, a, rows, l->width, DTYPE);
        for (; t < l->count; t++) dot_lines(1, out + t * out_stride, out_stride, l->x + t, a, rows, l->width, DTYPE);
    })
}

static Lines lines_of(const Chunks *chunks, const Chunk *c, const float *x, int64_t x_stride, int64_t width) {
    Lines l = {.count = c->count, .width = width};
    for (int64_t t = 0; t < c->count; t++) l.x[t] = x + chunks->order[c->begin + t] * x_stride;
    return l;
}

/* ---- x a^T ---- */

/* a lies in panels of GROUP rows: [groups][width / SPAN][GROUP][SPAN], zeros after the last row and column, so that a
 * tile reads it in one stream. */
#define GROUP 4
#define SPAN 16

/* out[t * RANKS + r] = x[t] . a[r] for nt lines and all rows of ng groups, `panel` elements apart. */
INLINE void group_tile(
    const int nt, const int ng, float *out, const float *const *x, const char *a, int64_t panel, int64_t width,
    const int atype
) {
    vf acc[4][2 * GROUP];
    EACH(t, nt) EACH(r, ng * GROUP) acc[t][r] = splat(0.0f);
    int64_t whole = width / SPAN * SPAN;
    for (int64_t i = 0; i < whole; i += SPAN) {
        __builtin_prefetch(a + (i * GROUP + 1024) * element_size(atype));
        for (int v = 0; v < SPAN / VL; v++) {
            vf xs[4];
            EACH(t, nt) xs[t] = loadf(x[t] + i + v * VL);
            EACH(r, ng * GROUP) {
                vf row = load(a, r / GROUP * panel + i * GROUP + r % GROUP * SPAN + v * VL, atype);
                EACH(t, nt) acc[t][r] = madd(acc[t][r], xs[t], row);
            }
        }
    }
    for (int64_t i = whole; i < width; i += VL) {
        EACH(r, ng * GROUP) {
            vf row = load(a, r / GROUP * panel + whole * GROUP + r % GROUP * SPAN + i - whole, atype);
            EACH(t, nt) acc[t][r] = madd(acc[t][r], load_upto(x[t], i, F32, width - i), row);
        }
    }
    EACH(t, nt) EACH(g, ng) {
        vf *s = acc[t] + g * GROUP;
        *(v4 *)(out + t * RANKS + g * GROUP) = sum4(s[0], s[1], s[2], s[3]);
    }
}

/* out [count lines, RANKS]: rows of a from a group on, as many groups as hold `rows`. */
static void group_dots(float *out, const Lines *l, const char *a, int64_t rows, int type) {
    int64_t t = 0, w = l->width, groups = (rows + GROUP - 1) / GROUP;
    int64_t panel = round_up(w, SPAN) * GROUP, bytes = panel * element_size(type);
    WITH_DTYPE(type, {
        for (; t + TILE_LINES <= l->count; t += TILE_LINES)
            for (int64_t g = 0; g < groups; g++)
                group_tile(TILE_LINES, 1, out + t * RANKS + g * GROUP, l->x + t, a + g * bytes, panel, w, DTYPE);
        for (; t < l->count; t++)
            if (groups == 2)
                group_tile(1, 2, out + t * RANKS, l->x + t, a, panel, w, DTYPE);
            else
                group_tile(1, 1, out + t * RANKS, l->x + t, a, panel, w, DTYPE);
    })
}

typedef struct {
    const struct lora_add *w;
    Chunks chunks;
    int64_t blocks; /* items of a chunk; in the first phase, of a part */
} Adding;

static Entry entry_of(const struct lora_add *w, int64_t slot, int64_t part) {
    return entry_at(w->entries + slot * w->slot_words + (w->first + part) * ENTRY_WORDS);
}

/* Rows [first, first + rows) of a, looked up for each line. */
static void look_up(float *out, int64_t out_stride, const Adding *j, const Chunk *c, const Entry *e, int64_t first, int64_t rows) {
    for (int64_t t = 0; t < c->count; t++) {
        int64_t at = (int64_t)j->w->ids[j->chunks.order[c->begin + t]] * e->rank + first;
        for (int64_t r = 0; r < rows; r++) out[t * out_stride + r] = load_part(e->a, at + r, e->type, 1)[0];
    }
}

static void shrink_items(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Adding *j = work;
    const struct lora_add *w = j->w;
    _Alignas(16) float found[LINES * RANKS];
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item % j->blocks, part = item / j->blocks % w->parts;
        const Chunk *c = &j->chunks.chunks[item / j->blocks / w->parts];
        Entry e = entry_of(w, c->slot, part);
        int64_t first = block * RANKS, rows = min64(RANKS, e.rank - first);
        if (rows <= 0) continue;
        if (w->x) {
            Lines l = lines_of(&j->chunks, c, w->x, w->x_stride, w->width);
            group_dots(found, &l, e.a + first * round_up(w->width, SPAN) * element_size(e.type), rows, e.type);
        } else {
            look_up(found, RANKS, j, c, &e, first, rows);
        }
        float scale = e.scale * w->scale;
        for (int64_t t = 0; t < c->count; t++) {
            float *inner = w->inner + (j->chunks.order[c->begin + t] * w->parts + part) * w->max_rank + first;
            for (int64_t r = 0; r < rows; r++) inner[r] = found[t * RANKS + r] * scale;
        }
    }
}

/* ---- and b ---- */

/* b lies in panels of PANEL columns: [panels][rank][PANEL], so that a tile reads it in one stream. */
#define PANEL 16
#define VECTORS (PANEL / VL)
#define PANELS (VL == 16 ? 4 : 1) /* of a tile: NEON and AVX2 have it full with one */

#define SUMS (PANELS * PANEL)

/* sums [nt, SUMS] of np panels, from column `at` of the part on. */
INLINE void expand_tile(
    const int nt, const int np, float *sums, const float *const *inner, const Entry *e, int64_t at, const int btype
) {
    vf acc[4][4];
    int64_t panel = e->rank * PANEL;
    EACH(t, nt) EACH(v, np * VECTORS) acc[t][v] = splat(0.0f);
    for (int64_t r = 0; r < e->rank; r++) {
        vf row[4];
        EACH(v, np * VECTORS) {
            int64_t from = at * e->rank + v / VECTORS * panel + r * PANEL + v % VECTORS * VL;
            row[v] = load(e->b, from, btype);
        }
        EACH(t, nt) {
            vf h = splat(inner[t][r]);
            EACH(v, np * VECTORS) acc[t][v] = madd(acc[t][v], h, row[v]);
        }
    }
    EACH(t, nt) EACH(v, np * VECTORS) storef(sums + t * SUMS + v * VL, acc[t][v]);
}

/* y = (y + sums) * factor + offset over n columns from column `at` of the part on. */
INLINE void put_sums(void *y, const float *sums, const Entry *e, int64_t at, int64_t n, int ytype) {
    int64_t i = 0;
    if (ytype == F32 && !e->factor && !e->offset)
        for (float *to = (float *)y + at; i + VL <= n; i += VL) storef(to + i, loadf(to + i) + loadf(sums + i));
    for (; i < n; i += VL) {
        vf factor = e->factor ? load_upto(e->factor, at + i, F32, n - i) : splat(1.0f);
        vf offset = e->offset ? load_upto(e->offset, at + i, F32, n - i) : splat(0.0f);
        vf sum = load_upto(y, at + i, ytype, n - i) + loadf(sums + i);
        store_upto(y, at + i, ytype, n - i, madd(offset, sum, factor));
    }
}

/* Columns [at, end) of a part; at is the beginning of a panel, end that of one or of the part. */
INLINE void expand_lines(
    const int nt, void *const *y, const float *const *inner, const Entry *e, int64_t at, int64_t end, int ytype,
    const int btype
) {
    _Alignas(64) float sums[4 * SUMS];
    while (at < end) {
        int whole = at + SUMS <= end;
        int64_t count = whole ? SUMS : min64(PANEL, end - at);
        if (whole)
            expand_tile(nt, PANELS, sums, inner, e, at, btype);
        else
            expand_tile(nt, 1, sums, inner, e, at, btype);
        for (int t = 0; t < nt; t++) put_sums(y[t], sums + t * SUMS, e, at, count, ytype);
        at += count;
    }
}

static int64_t blocks_of(int64_t width) { return (width + COLUMNS - 1) / COLUMNS; }

static void expand_part(const Adding *j, const Chunk *c, int64_t part, int64_t begin, int64_t end) {
    const struct lora_add *w = j->w;
    Entry e = entry_of(w, c->slot, part);
    if (!e.rank && !e.factor && !e.offset) return;
    int64_t start = w->starts[part], t = 0;
    void *y[LINES];
    const float *inner[LINES];
    for (int64_t i = 0; i < c->count; i++) {
        int64_t line = j->chunks.order[c->begin + i];
        y[i] = row_of(w->y, line * w->y_stride + start, (int)w->y_dtype);
        inner[i] = w->inner + (line * w->parts + part) * w->max_rank;
    }
    int ytype = (int)w->y_dtype;
    WITH_DTYPE(e.type, {
        for (; t + TILE_LINES <= c->count; t += TILE_LINES)
            expand_lines(TILE_LINES, y + t, inner + t, &e, begin, end, ytype, DTYPE);
        for (; t < c->count; t++) expand_lines(1, y + t, inner + t, &e, begin, end, ytype, DTYPE);
    })
}

static void expand_items(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Adding *j = work;
    const int32_t *starts = j->w->starts;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item % j->blocks, part = 0; /* blocks of all parts, one after another */
        for (; block >= blocks_of(starts[part + 1] - starts[part]); part++) block -= blocks_of(starts[part + 1] - starts[part]);
        int64_t width = starts[part + 1] - starts[part], first = block * COLUMNS;
        expand_part(j, &j->chunks.chunks[item / j->blocks], part, first, min64(first + COLUMNS, width));
    }
}

/* Products of all lines: of x with a, of that with b, and the highest rank there is. */
static void count_work(const Adding *j, int64_t *shrinking, int64_t *expanding, int64_t *rank) {
    const struct lora_add *w = j->w;
    *shrinking = *expanding = *rank = 0;
    for (int64_t i = 0; i < j->chunks.count; i++) {
        const Chunk *c = &j->chunks.chunks[i];
        for (int64_t part = 0; part < w->parts; part++) {
            int64_t found = entry_of(w, c->slot, part).rank;
            *rank = max64(*rank, found);
            *shrinking += found * c->count * w->width;
            *expanding += (found + 1) * c->count * (w->starts[part + 1] - w->starts[part]);
        }
    }
}

EXPORT void call_lora_add(const void *words) {
    const struct lora_add *w = words;
    Adding j = {w, chunks_of(w->slots, w->lines, w->num_slots), 0};
    int64_t shrinking, expanding, rank;
    count_work(&j, &shrinking, &expanding, &rank);
    j.blocks = (rank + RANKS - 1) / RANKS;
    share_items(j.chunks.count * w->parts * j.blocks, shrinking, shrink_items, &j);
    j.blocks = 0;
    for (int64_t part = 0; part < w->parts; part++) j.blocks += blocks_of(w->starts[part + 1] - w->starts[part]);
    share_items(j.chunks.count * j.blocks, expanding, expand_items, &j);
}

/* ---- matrices in place of the model's own ---- */

static void saved_row_items(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct lora_saved_rows *w = work;
    for (int64_t line = begin; line < end; line++) {
        int64_t slot = w->slots[line];
        if (slot < 0 || slot >= w->num_slots) continue;
        Entry e = entry_at(w->entries + slot * w->slot_words + w->first * ENTRY_WORDS);
        if (!e.saved) continue;
        const void *row = crow_of(e.saved, w->ids[line] * w->width, e.type);
        void *y = row_of(w->y, line * w->y_stride, (int)w->y_dtype);
        for (int64_t i = 0; i < w->width; i += VL) {
            vf v = load_upto(row, i, e.type, w->width - i) * splat(w->scale);
            store_upto(y, i, (int)w->y_dtype, w->width - i, v);
        }
    }
}

EXPORT void call_lora_saved_rows(const void *words) {
    const struct lora_saved_rows *w = words;
    share_rows(w->lines, w->width, saved_row_items, (void *)w);
}

typedef struct {
    const struct lora_saved_logits *w;
    Chunks chunks;
    int64_t blocks;
} Replacing;

static void saved_logit_items(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Replacing *j = work;
    const struct lora_saved_logits *w = j->w;
    float found[LINES * LOGITS];
    for (int64_t item = begin; item < end; item++) {
        const Chunk *c = &j->chunks.chunks[item / j->blocks];
        Entry e = entry_at(w->entries + c->slot * w->slot_words + w->first * ENTRY_WORDS);
        if (!e.saved) continue;
        int64_t first = item % j->blocks * LOGITS, rows = min64(LOGITS, w->vocabulary - first);
        Lines l = lines_of(&j->chunks, c, w->x, w->x_stride, w->width);
        dots(found, LOGITS, &l, e.saved + first * w->width * element_size(e.type), rows, e.type);
        for (int64_t t = 0; t < c->count; t++) {
            void *y = row_of(w->y, j->chunks.order[c->begin + t] * w->y_stride + first, (int)w->y_dtype);
            for (int64_t i = 0; i < rows; i += VL)
                store_upto(y, i, (int)w->y_dtype, rows - i, load_upto(found + t * LOGITS, i, F32, rows - i));
        }
    }
}

EXPORT void call_lora_saved_logits(const void *words) {
    const struct lora_saved_logits *w = words;
    int64_t blocks = (w->vocabulary + LOGITS - 1) / LOGITS;
    Replacing j = {w, chunks_of(w->slots, w->lines, w->num_slots), blocks};
    share_items(j.chunks.count * blocks, w->lines * w->vocabulary * w->width, saved_logit_items, &j);
}

/* ---- slots ---- */

EXPORT void call_lora_token_slots(const void *words) {
    const struct lora_token_slots *w = words;
    int64_t token = 0;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int32_t slot = w->row_slots[w->rows[r] * w->row_stride];
        for (; token < min64(w->query_start[r + 1], w->num_tokens); token++) w->out[token] = slot;
    }
    for (; token < w->num_tokens; token++) w->out[token] = -1;
}
