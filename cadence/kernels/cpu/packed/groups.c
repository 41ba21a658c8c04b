/* Sums of rows of x with one group of packed weights, or with two at once. */
#include "packed/groups.h"

#define WIDE_TILES 16 /* tiles of float rows against one stretch of a group */

/* K is taken in stretches, so that what they need of a group (and of floats of x) stays in the L1 cache. */
INLINE int64_t quantized_chunk(int64_t padded) {
    return round_up(padded / ((padded + K_CHUNK - 1) / K_CHUNK), K_BLOCK);
}

static void quantized_plane(const PackedRun *run, int64_t kind, int plane, const uint8_t *from, Stretch x, Tile *tile) {
    int64_t padded = x.acts->padded, chunk = quantized_chunk(padded);
    for (int64_t k = 0; k < padded; k += chunk) {
        int64_t part = min64(chunk, padded - k);
        x.at = k / K_STEP, x.count = part / K_STEP;
        const uint8_t *own = from + group_bytes(kind, k);
        x.soon.bytes = group_bytes(kind, part), x.soon.at = (const char *)own + x.soon.bytes;
        run->isa->unpack(kind, plane, own, part, tile);
        run->isa->dot(tile_kind(kind), tile, &x);
    }
}

/* Rows of x from a tile on, up to `count` of them. */
INLINE Acts acts_from(const Acts *a, int64_t tile, int64_t count) {
    Acts some = *a;
    const int64_t row = tile * TILE_ROWS;
    some.q += row * a->padded, some.scale += row * a->steps, some.sum += row * a->steps;
    some.half_sums += row * a->steps * 2;
    some.rows = min64(a->rows - row, count);
    return some;
}

/* Both planes at once, straight from the packed bytes: a group stays in the caches. */
static void direct_planes(const PackedRun *run, int64_t kind, const uint8_t *from, Stretch x) {
    const int64_t tiles = run->isa->direct_rows / TILE_ROWS;
    for (int64_t t = 0; t < x.tiles; t += tiles) {
        const Acts some = acts_from(x.acts, x.tile + t, min64(tiles, x.tiles - t) * TILE_ROWS);
        run->isa->direct(kind, from, &some, x.acc + t * TILE_ROWS * GROUP);
    }
}

static void quantized_group(const PackedRun *run, int64_t kind, const uint8_t *from, Stretch x, GroupScratch *s) {
    if (has_planes(kind) && run->isa->direct_planes) {
        direct_planes(run, kind, from, x);
        return;
    }
    quantized_plane(run, kind, 0, from, x, &s->tile);
    if (!has_planes(kind)) return;
    const int64_t rows = x.tiles * TILE_ROWS;
    const float unit = (float)formats[kind].unit;
    Stretch second = x;
    second.acc = s->second, second.stride = GROUP;
    memset(s->second, 0, (size_t)(rows * GROUP) * 4);
    quantized_plane(run, kind, 1, from, second, &s->tile);
    for (int64_t m = 0; m < rows; m++)
        for (int r = 0; r < GROUP; r++) {
            float *sum = x.acc + m * x.stride + r;
            *sum = __builtin_fmaf(*sum, unit, s->second[m * GROUP + r]);
        }
}

/* P_HALF [k][16 rows] -> [k][16], exactly. */
static void widen_half(const uint8_t *from, const float *scale, int64_t k, float *to) {
    for (int64_t i = 0; i < k; i++, from += GROUP * 2, to += GROUP) {
        uint16_t half[GROUP];
        memcpy(half, from, sizeof half);
        for (int r = 0; r < GROUP; r++) to[r] = half_to_float(half[r]) * scale[r];
    }
}

/* P_F16, the same. */
static void widen_float16(const uint8_t *from, int64_t k, float *to) {
    for (int64_t i = 0; i < k * GROUP; i += VL) storef(to + i, load(from, i, F16));
}

/* P_F8: bytes [k][16 rows] -> [k][16], of 2^-8 of the numbers. */
static void widen_float8(const uint8_t *from, int64_t k, float *to) {
    uint16_t bits[GROUP];
    for (int64_t i = 0; i < k; i++, from += GROUP, to += GROUP) {
        for (int r = 0; r < GROUP; r++) bits[r] = float8_to_half(from[r]);
        for (int r = 0; r < GROUP; r += VL) storef(to + r, load(bits, r, F16));
    }
}

/* P_F8: the sums of a K_STEP are made apart, then scaled and added. */
static void scaled_tiles(const PackedRun *run, const uint8_t *from, Stretch x, float *wide) {
    float part[WIDE_TILES * TILE_ROWS * GROUP] __attribute__((aligned(64))), scale[GROUP];
    const int64_t rows = x.tiles * TILE_ROWS;
    Stretch some = x;
    some.acc = part, some.count = K_STEP;
    for (some.at = 0; some.at < x.acts->padded; some.at += K_STEP) {
        const uint8_t *own = from + group_bytes(P_F8, some.at / F8_RUN * F8_RUN);
        memcpy(scale, own, sizeof scale);
        widen_float8(own + sizeof scale + some.at % F8_RUN * GROUP, K_STEP, wide);
        memset(part, 0, (size_t)(rows * GROUP) * 4);
        run->isa->dot_wide(wide, &some);
        for (int64_t m = 0; m < rows; m++)
            for (int r = 0; r < GROUP; r++)
                x.acc[m * GROUP + r] = __builtin_fmaf(part[m * GROUP + r], scale[r], x.acc[m * GROUP + r]);
    }
}

/* A stretch of the group at `from` as floats: where they lie, or in `wide`. */
static const float *widened_group(const PackedRun *run, int64_t kind, const uint8_t *from, const Stretch *x,
                                  float *wide) {
    const float *scale = (const float *)(from + group_bytes(kind, x->acts->padded)); /* of P_HALF */
    const uint8_t *at = from + group_bytes(kind, x->at);
    if (kind == P_BF16) run->isa->widen(at, x->count, wide);
    if (kind == P_HALF) widen_half(at, scale, x->count, wide);
    if (kind == P_F16) widen_float16(at, x->count, wide);
    return kind == P_F32 ? (const float *)at : wide;
}

static void wide_tiles(const PackedRun *run, int64_t kind, const uint8_t *from, Stretch x, float *wide) {
    for (x.at = 0; x.at < x.acts->padded; x.at += K_CHUNK_WIDE) {
        x.count = min64(K_CHUNK_WIDE, x.acts->padded - x.at);
        run->isa->dot_wide(widened_group(run, kind, from, &x, wide), &x);
    }
}

static void wide_group(const PackedRun *run, int64_t kind, const uint8_t *from, Stretch x, float *wide) {
    for (int64_t t = 0; t < x.tiles; t += WIDE_TILES) {
        Stretch some = x;
        some.tile += t, some.tiles = min64(WIDE_TILES, x.tiles - t), some.acc += t * TILE_ROWS * GROUP;
        if (kind == P_F8)
            scaled_tiles(run, from, some, wide);
        else
            wide_tiles(run, kind, from, some, wide);
    }
}

/* Rows [m, m + count) of x and where their sums go. */
INLINE Stretch rows_of(const PackedRun *run, int64_t m, int64_t count, float *acc, int64_t stride) {
    int64_t tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    return (Stretch){.acts = &run->acts, .tile = m / TILE_ROWS, .tiles = tiles, .acc = acc, .stride = stride};
}

void packed_sum_group(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t m, int64_t count,
                      GroupScratch *s) {
    const Backend *isa = run->isa;
    if (kind == P_BF16 && run->few) {
        isa->few_narrow(from, &run->acts, s->acc);
        return;
    }
    if (kind == P_HALF && run->acts.half) {
        isa->dot_half(from, &run->acts, m, count, s->acc);
        return;
    }
    if (run->acts.rows <= isa->direct_rows && isa->direct(kind, from, &run->acts, s->acc)) return;
    Stretch x = rows_of(run, m, count, s->acc, GROUP);
    if (is_float_kind(kind) || !isa->in_place) memset(s->acc, 0, (size_t)x.tiles * TILE_ROWS * GROUP * 4);
    if (is_float_kind(kind))
        wide_group(run, kind, from, x, s->wide);
    else
        quantized_group(run, kind, from, x, s);
}

void packed_sum_in_place(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t m, int64_t count, float *y,
                         GroupScratch *s) {
    quantized_group(run, kind, from, rows_of(run, m, count, y, run->job->y_stride), s);
}

/* ---- two groups at once ---- */

int packed_in_pairs(const PackedRun *run, int64_t kind) {
    if (run->job->m <= max64(run->isa->direct_rows, TILE_ROWS)) return 0;
    if (!is_float_kind(kind)) return run->isa->dot_two && !has_planes(kind);
    return run->isa->dot_wide_two && kind != P_F8 && !(kind == P_HALF && run->acts.half);
}

static void wide_pair(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t size, Stretch x, float *wide) {
    for (x.at = 0; x.at < x.acts->padded; x.at += K_CHUNK_PAIR) {
        x.count = min64(K_CHUNK_PAIR, x.acts->padded - x.at);
        const float *first = widened_group(run, kind, from, &x, wide);
        const float *second = widened_group(run, kind, from + size, &x, wide + K_CHUNK_PAIR * GROUP);
        run->isa->dot_wide_two(first, second - first, &x);
    }
}

static void quantized_pair(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t size, Stretch x,
                           GroupScratch *s) {
    int64_t padded = x.acts->padded, chunk = quantized_chunk(padded);
    for (int64_t k = 0; k < padded; k += chunk) {
        int64_t part = min64(chunk, padded - k);
        x.at = k / K_STEP, x.count = part / K_STEP;
        run->isa->unpack(kind, 0, from + group_bytes(kind, k), part, &s->tile);
        run->isa->unpack(kind, 0, from + size + group_bytes(kind, k), part, &s->second_tile);
        run->isa->dot_two(tile_kind(kind), &s->tile, &s->second_tile, &x);
    }
}

void packed_sum_pair(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t size, int64_t m, int64_t count,
                     GroupScratch *s) {
    Stretch x = rows_of(run, m, count, s->acc, GROUP);
    x.second = s->second;
    memset(s->acc, 0, (size_t)x.tiles * TILE_ROWS * GROUP * 4);
    memset(s->second, 0, (size_t)x.tiles * TILE_ROWS * GROUP * 4);
    if (is_float_kind(kind))
        wide_pair(run, kind, from, size, x, s->wide);
    else
        quantized_pair(run, kind, from, size, x, s);
}
