/* Low-rank adapters on top of products: lines of one adapter go together, through the rows of its a, then of its b.
 *
 * Lines are taken in chunks of one slot, so that a matrix is read once for several. Each number of a line is the same
 * sequence of operations whatever lines go with it: a sum over lanes and then vectors of x a^T, a sum over the rank. */
#include "maps/row_maps.h"

enum { A, B, RANK, SCALE, FACTOR, OFFSET, TYPE, SAVED, ENTRY_WORDS }; /* of an entry, as interface/lora_ops.py has them */

#define LINES 8        /* of a chunk, at most */
#define RANKS 8        /* rows of a that are one item of work */
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
    const int nt, const int nr, float *out, int64_t out_stride, const void *const *x, const char *a, int64_t width,
    const int xtype, const int atype
) {
    vf acc[4][8];
    EACH(t, nt) EACH(r, nr) acc[t][r] = splat(0.0f);
    int64_t whole = width / VL * VL, rest = width - whole;
    for (int64_t i = 0; i < whole; i += VL) {
        vf xs[4];
        EACH(t, nt) xs[t] = load(x[t], i, xtype);
        EACH(r, nr) {
            vf row = load(a, r * width + i, atype);
            EACH(t, nt) acc[t][r] += xs[t] * row;
        }
    }
    if (rest) {
        EACH(r, nr) {
            vf row = load_part(a, r * width + whole, atype, rest);
            EACH(t, nt) acc[t][r] += load_part(x[t], whole, xtype, rest) * row;
        }
    }
    EACH(t, nt) EACH(r, nr) out[t * out_stride + r] = sum1(acc[t][r]);
}

/* The same for any number of rows, in tiles. */
INLINE void dot_lines(
    const int nt, const int most, float *out, int64_t out_stride, const void *const *x, const char *a, int64_t rows,
    int64_t width, const int xtype, const int atype
) {
    int64_t r = 0, row_bytes = width * element_size(atype);
    for (; r + most <= rows; r += most) dot_tile(nt, most, out + r, out_stride, x, a + r * row_bytes, width, xtype, atype);
    for (; r < rows; r++) dot_tile(nt, 1, out + r, out_stride, x, a + r * row_bytes, width, xtype, atype);
}

typedef struct {
    const void *x[LINES];
    int64_t count, width;
    int xtype, atype;
} Lines;

/* out [count lines, rows], out_stride apart. */
static void dots(float *out, int64_t out_stride, const Lines *l, const char *a, int64_t rows) {
    int64_t t = 0;
    WITH_DTYPE(l->xtype, {
        enum { XTYPE = DTYPE };
        WITH_DTYPE(l->atype, {
            for (; t + 4 <= l->count; t += 4)
                dot_lines(4, NR_MAX, out + t * out_stride, out_stride, l->x + t, a, rows, l->width, XTYPE, DTYPE);
            for (; t < l->count; t++)
                dot_lines(1, 8, out + t * out_stride, out_stride, l->x + t, a, rows, l->width, XTYPE, DTYPE);
        })
    })
}

static void gather_lines(
    Lines *l, const Chunks *chunks, const Chunk *c, const void *x, int64_t x_stride, int xtype, int64_t width
) {
    l->count = c->count, l->width = width, l->xtype = xtype;
    for (int64_t t = 0; t < c->count; t++) l->x[t] = crow_of(x, chunks->order[c->begin + t] * x_stride, xtype);
}

/* ---- x a^T ---- */

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
    float found[LINES * RANKS];
    (void)thread;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item % j->blocks, part = item / j->blocks % w->parts;
        const Chunk *c = &j->chunks.chunks[item / j->blocks / w->parts];
        Entry e = entry_of(w, c->slot, part);
        int64_t first = block * RANKS, rows = min64(RANKS, e.rank - first);
        if (rows <= 0) continue;
        if (w->x) {
            Lines l = {.atype = e.type};
            gather_lines(&l, &j->chunks, c, w->x, w->x_stride, (int)w->x_dtype, w->width);
            dots(found, RANKS, &l, e.a + first * w->width * element_size(e.type), rows);
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

/* np panels of nt lines y, from column `at` of the part on; `left` columns to the end of the part. */
INLINE void expand_tile(
    const int nt, const int np, void *const *y, const float *const *inner, const Entry *e, int64_t at, int64_t left,
    const int ytype, const int btype
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
            EACH(v, np * VECTORS) acc[t][v] += h * row[v];
        }
    }
    EACH(v, np * VECTORS) {
        int64_t i = at + v * VL, n = left - v * VL;
        if (n <= 0) break;
        vf factor = splat(1.0f), offset = splat(0.0f);
        if (e->factor) factor = load_upto(e->factor, i, F32, n);
        if (e->offset) offset = load_upto(e->offset, i, F32, n);
        EACH(t, nt) { /* without a choice in it: the compiler rounds the product of all variants, or of none */
            vf sum = load_upto(y[t], i, ytype, n) + acc[t][v];
            store_upto(y[t], i, ytype, n, sum * factor + offset);
        }
    }
}

/* Columns [at, end) of a part; at is the beginning of a panel, end that of one or of the part. */
INLINE void expand_lines(
    const int nt, void *const *y, const float *const *inner, const Entry *e, int64_t at, int64_t end, const int ytype,
    const int btype
) {
    for (; at + PANELS * PANEL <= end; at += PANELS * PANEL)
        expand_tile(nt, PANELS, y, inner, e, at, end - at, ytype, btype);
    for (; at < end; at += PANEL) expand_tile(nt, 1, y, inner, e, at, end - at, ytype, btype);
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
    WITH_DTYPE(w->y_dtype, {
        enum { YTYPE = DTYPE };
        WITH_DTYPE(e.type, {
            for (; t + 4 <= c->count; t += 4) expand_lines(4, y + t, inner + t, &e, begin, end, YTYPE, DTYPE);
            for (; t < c->count; t++) expand_lines(1, y + t, inner + t, &e, begin, end, YTYPE, DTYPE);
        })
    })
}

static void expand_items(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Adding *j = work;
    const int32_t *starts = j->w->starts;
    (void)thread;
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
    (void)thread;
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
    (void)thread;
    for (int64_t item = begin; item < end; item++) {
        const Chunk *c = &j->chunks.chunks[item / j->blocks];
        Entry e = entry_at(w->entries + c->slot * w->slot_words + w->first * ENTRY_WORDS);
        if (!e.saved) continue;
        int64_t first = item % j->blocks * LOGITS, rows = min64(LOGITS, w->vocabulary - first);
        Lines l = {.atype = e.type};
        gather_lines(&l, &j->chunks, c, w->x, w->x_stride, (int)w->x_dtype, w->width);
        dots(found, LOGITS, &l, e.saved + first * w->width * element_size(e.type), rows);
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
