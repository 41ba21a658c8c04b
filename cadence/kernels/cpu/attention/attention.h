/* What the parts of attention share: a call, its items of work, the keys of a tile, the state of a softmax, and the ways
 * to attend to a tile. attention.c calls those (rows.c, half.c, amx.c); none of them calls back. */
#ifndef CADENCE_ATTENTION_H
#define CADENCE_ATTENTION_H

#include "attention/kv.h"

#define KEY_TILE 128
#define KEY_STEP (VL > 8 ? VL : 8) /* ranges of keys begin and end at multiples of this */
#define ROW_TILE 4
#define NOTHING -1e30f /* maximum of no key; finite, so that differences are never NaN */

typedef struct HalfArithmetic HalfArithmetic; /* both below */
typedef struct AmxArithmetic AmxArithmetic;

typedef struct attention Attention;

/* Geometry and arithmetic shared by all items of a call. */
typedef struct {
    const HalfArithmetic *half; /* NULL, and amx, too: products are made in float32, or of int8 */
    const AmxArithmetic *amx;
    int64_t group;        /* query heads per kv head */
    int64_t run;          /* queries per item */
    int64_t max_rows;     /* rows per item, a multiple of ROW_TILE, or of AMX_ROWS */
    int64_t padded;       /* dim rounded up to whole vectors */
    int64_t num_runs;     /* of all sequences */
    int64_t max_tiles;    /* of keys, of any sequence */
    int64_t *first_run;   /* [num_seqs + 1] */
} Plan;

typedef struct {
    int64_t kv_head, table_row, first_token, num_rows, first_pos, num_queries;
    int64_t num_keys; /* of the sequence */
} Item;

/* The tile of keys that a thread will probably attend to next. */
typedef struct {
    Item it; /* no rows: none is known */
    int64_t start;
} Ahead;

/* The queries of an item: floats; beside them int8 with a scale each where keys are int8, float16 where those are
 * multiplied as such; or bf16 in tiles alone. */
typedef struct {
    float *wide;                   /* [max_rows, padded] */
    uint16_t *half;                /* [max_rows, padded] */
    int8_t *bytes;                 /* [max_rows, padded_bytes] */
    float *scale;                  /* [max_rows] */
    int64_t padded, padded_bytes;  /* dim rounded up to whole vectors, to I8_STEP */
} Queries;

/* The keys and values of one tile. Entries from `keys` up to the next KEY_STEP repeat the last. */
typedef struct {
    int64_t keys;
    const char *key[KEY_TILE], *value[KEY_TILE];         /* rows of key_type and value_type */
    float key_scale[KEY_TILE], value_scale[KEY_TILE];    /* of int8 rows */
    int key_type, value_type;
} Tile;

/* Scores of rows [m, m + rows), rows <= ROW_TILE, with the keys [n, n + KEY_STEP) of a tile, into row after row of
 * KEY_TILE floats. */
typedef void ScoreKeys(int rows, const Queries *q, int64_t m, const Tile *t, int64_t n, float *scores);

/* Weights [rows, KEY_TILE] of the keys [low, high) times their values -> acc [rows, padded]. */
typedef struct {
    const float *weight;
    const Tile *tile;
    int64_t low, high, padded;
    float *acc;
} Weighted;

/* Softmax of an item's rows over some keys. */
typedef struct {
    float *max, *sum; /* [max_rows] */
    float *acc;       /* [max_rows, padded], not yet divided by sum */
} State;

/* A thread's. */
typedef struct {
    Queries q;
    float *scores;       /* [max_rows, KEY_TILE] */
    float *exact;        /* [KEY_TILE]: a row of scores or weights beyond float16 */
    char *k, *v;         /* [KEY_TILE] rows, widened or padded */
    int32_t *low, *high; /* [max_rows / ROW_TILE]: keys of the tile that some row of the four sees */
    State part, total;
    Ahead ahead;
} Scratch;

/* A query at position pos sees the keys [first_key_of, end_of_keys); neither decreases with pos. */
INLINE int64_t first_key_of(const Attention *a, int64_t pos) {
    return a->chunk ? pos - pos % a->chunk : max64(pos - a->before, 0);
}
INLINE int64_t end_of_keys(const Attention *a, const Item *it, int64_t pos) {
    return min64(pos + 1 + a->after, it->num_keys);
}

/* One past the last key that some query of the item sees. */
INLINE int64_t item_end(const Attention *a, const Item *it) {
    return end_of_keys(a, it, it->first_pos + it->num_queries - 1);
}

/* Where row m's query or result lies: its token and its head. */
INLINE int64_t token_of(const Plan *p, const Item *it, int64_t m) { return it->first_token + m / p->group; }
INLINE int64_t head_of(const Plan *p, const Item *it, int64_t m) { return it->kv_head * p->group + m % p->group; }

/* Points key and value at the rows of positions [start, start + t->keys) as they lie in the cache. */
static inline void find_rows(const Attention *a, const Item *it, int64_t start, Tile *t) {
    int64_t bytes = cache_row_bytes(a->dim, a->cache_dtype);
    int64_t unit = cache_unit(a->cache_dtype);
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

/* ---- ways to attend to a tile ---- */

/* The keys [start, start + KEY_TILE) -> s->part, in float32, or of int8, or in p->half's float16: rows.c. */
void attend_tile(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s);

/* Float16, over caches of float16: half.c. */
#define HALF_LANES 8
#define HALF_RUN 32
#define WEIGHT_UNIT 4.0f /* the largest weight: 2^-16 of it still counts, and values under 127 never overflow */
#define HALF_TOP 32.0f   /* a larger maximum has too few digits after the point */

/* Of a row's scores in a tile the keys [begin, end) are seen, out of those that were computed. */
typedef struct {
    int64_t low, high, begin, end;
} Span;

struct HalfArithmetic {
    void (*narrow)(uint16_t *to, const float *from, int64_t n, float factor); /* n: a multiple of HALF_LANES */
    /* As ScoreKeys, with the keys [low, high), multiples of KEY_STEP. */
    void (*score)(int rows, const Queries *q, int64_t m, const Tile *t, int64_t low, int64_t high, float *scores);
    /* Scores -> weights, their maximum, the weights' sum; 0: they need float32, and are spoilt. Something is seen. */
    int (*soften)(uint16_t *row, Span span, float *max, float *sum);
    void (*weigh)(int rows, const Weighted *w);
};

/* NULL where the compiler knows of none. For processors that have it: see isas. */
const HalfArithmetic *half_arithmetic(void);

/* Tiles of bf16, over caches of bf16, for AMX_DIM_STEP to AMX_MOST_DIM entries: amx.c. */
#define AMX_ROWS 16 /* rows of an item that share tiles */
#define AMX_DIM_STEP 32
#define AMX_MOST_DIM 256

struct AmxArithmetic {
    void (*begin)(void); /* on every thread before and after its work */
    void (*end)(void);
    void (*load)(const Attention *a, const Plan *p, const Item *it, Scratch *s); /* queries -> s->q.half */
    void (*attend)(const Attention *a, const Plan *p, const Item *it, int64_t start, Scratch *s); /* as attend_tile */
    void (*straighten)(float *row, int64_t dim); /* a row of State.acc, into the order of entries */
};

/* NULL where the compiler was not told of it. For processors that have it, and threads that may use it: see isas. */
const AmxArithmetic *amx_arithmetic(void);

#endif
