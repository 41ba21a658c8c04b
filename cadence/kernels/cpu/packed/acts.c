/* x in the forms that the weights of a product need. */
#include "packed/run.h"

void packed_find_needs(PackedRun *run) {
    run->few = run->isa->few_narrow && run->job->m <= TILE_ROWS && run->job->x_dtype == BF16;
    for (int64_t i = 0; i < run->job->num_segments; i++) {
        int64_t kind = run->job->segments[i].kind;
        int narrow = kind == P_BF16 && run->job->x_dtype == BF16 && run->isa->dot_narrow && !run->few;
        int half = kind == P_HALF && run->job->x_dtype == BF16 && run->isa->dot_half;
        run->narrow |= narrow;
        run->half |= half;
        run->wide |= is_float_kind(kind) && !narrow && !half;
        run->quantized |= !is_float_kind(kind);
    }
}

/* The next `bytes` of the work memory; with base NULL only counts. */
static void *take(char *base, int64_t *used, int needed, int64_t bytes) {
    if (!needed) return NULL;
    int64_t at = *used;
    *used += round_up(bytes, 64);
    return base ? base + at : NULL;
}

int64_t packed_lay_out(PackedRun *run, char *base) {
    const PackedJob *job = run->job;
    int64_t padded = round_up(job->k, K_STEP), steps = padded / K_STEP, rows = round_up(job->m, PADDED_ROWS), used = 0;
    Acts a = {.rows = job->m, .padded = padded, .steps = steps};
    int tiled = run->quantized && run->isa->tiled, plain = run->quantized && !tiled;
    a.tiles = take(base, &used, tiled, (rows / TILE_ROWS * steps + 1) * (int64_t)sizeof(TileStep));
    a.q = take(base, &used, plain, rows * padded);
    a.scale = take(base, &used, plain, rows * steps * 4);
    a.sum = take(base, &used, plain, rows * steps * 4);
    a.half_sums = take(base, &used, plain, rows * steps * 8);
    a.wide = take(base, &used, run->wide, rows * padded * 4);
    a.narrow = take(base, &used, run->narrow, rows * padded * 2);
    a.half = take(base, &used, run->half, rows * padded * 2);
    a.half_scale = take(base, &used, run->half, rows * 4);
    run->rows = take(base, &used, job->x_dtype != F32, run->threads * padded * 4);
    run->acts = a;
    return used;
}

INLINE void load_row(const PackedJob *job, int64_t row, float *to) {
    int64_t from = row * job->x_stride;
    WITH_DTYPE(job->x_dtype, for (int64_t i = 0; i < job->k; i += VL)
                                store_upto(to, i, F32, job->k - i, load_upto(job->x, from + i, DTYPE, job->k - i));)
}

static void narrow_row(const PackedJob *job, const Acts *a, int64_t row) {
    const uint16_t *from = (const uint16_t *)job->x + row * job->x_stride;
    uint16_t *to = a->narrow + row / NARROW_TILE * NARROW_TILE * a->padded + row % NARROW_TILE * K_STEP;
    int64_t k = 0;
    for (; k + K_STEP <= job->k; k += K_STEP, to += NARROW_TILE * K_STEP) memcpy(to, from + k, K_STEP * 2);
    if (k == job->k) return;
    memset(to, 0, K_STEP * 2);
    memcpy(to, from + k, (size_t)(job->k - k) * 2);
}

/* Whether four rows of floats are laid side by side at once: those of the tile that `row` is in. */
static int is_whole_tile(const PackedJob *job, int64_t row) {
    return job->x_dtype == F32 && row / TILE_ROWS * TILE_ROWS + TILE_ROWS <= job->m;
}

static void widen_tile(const PackedJob *job, const Acts *a, int64_t row) {
    const float *x = (const float *)job->x + row * job->x_stride;
    float *to = a->wide + row * a->padded;
    for (int64_t i = 0; i < job->k; i++)
        for (int m = 0; m < TILE_ROWS; m++) to[i * TILE_ROWS + m] = x[m * job->x_stride + i];
    memset(to + job->k * TILE_ROWS, 0, (size_t)((a->padded - job->k) * TILE_ROWS) * 4);
}

static void prepare_row(const PackedRun *run, int64_t row, int64_t thread) {
    const PackedJob *job = run->job;
    const Acts *a = &run->acts;
    const float *x = (const float *)job->x + row * job->x_stride;
    if (job->x_dtype != F32 && (run->quantized || a->wide)) {
        float *to = run->rows + thread * a->padded;
        load_row(job, row, to);
        x = to;
    }
    if (run->quantized) run->isa->quantize(x, job->k, a, row);
    if (a->wide && is_whole_tile(job, row)) {
        if (row % TILE_ROWS == 0) widen_tile(job, a, row);
    } else if (a->wide) {
        float *to = a->wide + row / TILE_ROWS * a->padded * TILE_ROWS + row % TILE_ROWS;
        for (int64_t i = 0; i < a->padded; i++) to[i * TILE_ROWS] = i < job->k ? x[i] : 0.0f;
    }
    if (a->narrow) narrow_row(job, a, row);
}

/* Rows that only fill up a tile. */
static void clear_padding(const Acts *a) {
    int64_t rows = round_up(a->rows, TILE_ROWS) - a->rows, last = a->rows / TILE_ROWS;
    if (rows == 0) return;
    if (a->q) {
        memset(a->q + a->rows * a->padded, 0, (size_t)(rows * a->padded));
        memset(a->scale + last * a->steps * TILE_ROWS, 0, (size_t)(a->steps * TILE_ROWS) * 4);
        memset(a->sum + last * a->steps * TILE_ROWS, 0, (size_t)(a->steps * TILE_ROWS) * 4);
    }
    if (a->tiles) memset(a->tiles + last * a->steps, 0, (size_t)a->steps * sizeof(TileStep));
    if (a->wide) memset(a->wide + last * a->padded * TILE_ROWS, 0, (size_t)(a->padded * TILE_ROWS) * 4);
}

void packed_prepare_rows(const PackedRun *run, int64_t thread) {
    const PackedJob *job = run->job;
    int64_t unit = run->half ? HALF_ROWS : TILE_ROWS, tiles = (job->m + unit - 1) / unit;
    int64_t begin = tiles * thread / run->threads * unit, end = tiles * (thread + 1) / run->threads * unit;
    if (begin < job->m && end >= job->m) clear_padding(&run->acts);
    for (int64_t r = begin; r < min64(end, job->m); r++) prepare_row(run, r, thread);
    if (!run->half) return;
    for (int64_t r = begin; r < min64(end, job->m); r += HALF_ROWS) {
        const uint16_t *x = (const uint16_t *)job->x + r * job->x_stride;
        run->isa->halve(x, job->x_stride, job->k, &run->acts, r / HALF_ROWS);
    }
}
