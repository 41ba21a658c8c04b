/* Products with packed weights: shares the groups of rows among threads, stores what the kernels sum up. */
#include "packed/run.h"
#include "runtime/threads.h"

#define ROWS_BLOCK 256        /* rows of x against one unpacking of a group: their sums stay in the L1 cache */
#define WIDE_TILES 16         /* tiles of float rows against one stretch of a group */
#define PARALLEL_FROM 131072  /* multiplications below which one thread is faster */
#define PARALLEL_ACTS 16384   /* elements of x below which one thread prepares them */
#define CHUNKS_PER_THREAD 8
#define MOST_GROUPS 32        /* groups a thread takes at once */

/* ---- a group of rows ---- */

/* Sums that are yet to be stored: of `rows` rows from m on and one or two groups, outputs [col, col + cols). */
typedef struct {
    int64_t m, rows, col, cols;
    float acc[2 * NARROW_ROWS * GROUP] __attribute__((aligned(64)));
} Sums;

/* Sums are stored when the next have been made: what was just made takes a while to leave its tiles. */
typedef struct {
    Sums two[2];
    int64_t made;
} Pending;

typedef struct {
    union {
        Tile tile;
        float wide[K_CHUNK_WIDE * GROUP] __attribute__((aligned(64)));
    };
    float acc[ROWS_BLOCK * GROUP] __attribute__((aligned(64)));
    float second[ROWS_BLOCK * GROUP] __attribute__((aligned(64))); /* sums of the second plane */
    Pending pending;
} Scratch;

/* K is taken in stretches, so that what they need of a group (and of floats of x) stays in the L1 cache. */
static void quantized_plane(const PackedRun *run, int64_t kind, int plane, const uint8_t *from, Stretch x, Tile *tile) {
    int64_t padded = x.acts->padded, chunks = (padded + K_CHUNK - 1) / K_CHUNK;
    int64_t chunk = round_up(padded / chunks, K_BLOCK);
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

static void quantized_group(const PackedRun *run, int64_t kind, const uint8_t *from, Stretch x, Scratch *s) {
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

static void wide_tiles(const PackedRun *run, int64_t kind, const uint8_t *from, Stretch x, float *wide) {
    const float *scale = (const float *)(from + group_bytes(kind, x.acts->padded)); /* of P_HALF */
    for (x.at = 0; x.at < x.acts->padded; x.at += K_CHUNK_WIDE) {
        const uint8_t *at = from + group_bytes(kind, x.at);
        x.count = min64(K_CHUNK_WIDE, x.acts->padded - x.at);
        if (kind == P_BF16) run->isa->widen(at, x.count, wide);
        if (kind == P_HALF) widen_half(at, scale, x.count, wide);
        if (kind == P_F16) widen_float16(at, x.count, wide);
        run->isa->dot_wide(kind == P_F32 ? (const float *)at : wide, &x);
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

/* Sums of rows [m, m + count) of x with one group of a segment, into s->acc. */
static void sum_group(const PackedRun *run, int64_t kind, const uint8_t *from, int64_t m, int64_t count, Scratch *s) {
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

/* acc [cols] + bias, into row `row` of y from column `col` on. */
INLINE void store_outputs(const PackedJob *job, int64_t row, int64_t col, int64_t cols, const float *acc,
                          const float *bias) {
    int64_t to = row * job->y_stride + col;
    if (job->y_dtype != F32 && cols == GROUP)
        for (int r = 0; r < GROUP; r += VL) store(job->y, to + r, BF16, loadf(acc + r) + loadf(bias + r));
    else if (job->y_dtype != F32)
        for (int64_t r = 0; r < cols; r++) ((uint16_t *)job->y)[to + r] = float_to_bfloat(acc[r] + bias[r]);
    else if (cols == GROUP)
        for (int r = 0; r < GROUP; r += VL) storef((float *)job->y + to + r, loadf(acc + r) + loadf(bias + r));
    else
        for (int64_t r = 0; r < cols; r++) ((float *)job->y)[to + r] = acc[r] + bias[r];
}

/* Also asks for the memory that the next group will be stored to. */
static void store_group(const PackedJob *job, int64_t m, int64_t count, int64_t col, int64_t cols, const float *acc) {
    float bias[GROUP] = {0};
    if (job->bias) memcpy(bias, job->bias + col, (size_t)cols * 4);
    for (int64_t i = 0; i < count; i++, acc += GROUP) {
        int64_t next = (m + i) * job->y_stride + col + GROUP;
        __builtin_prefetch((char *)job->y + next * element_size(job->y_dtype), 1);
        store_outputs(job, m + i, col, cols, acc, bias);
    }
}

/* Whether whole groups can be summed up where they are stored: for whole tiles of rows. */
static int sums_in_place(const PackedRun *run, int64_t kind, int64_t count) {
    const PackedJob *job = run->job;
    int fits = count % TILE_ROWS == 0 && job->m > TILE_ROWS && job->y_dtype == F32 && !job->bias;
    return fits && run->isa->in_place && !is_float_kind(kind);
}

static int has_tiles(const PackedRun *run) { return run->isa->begin && run->job->m > TILE_ROWS; }

/* ---- bf16 times bf16, in pairs of groups ---- */

/* Also asks for the memory that the next pair will be stored to. */
static void store_sums(const PackedJob *job, const Sums *s) {
    float bias[2 * GROUP] = {0};
    int64_t first = min64(s->cols, GROUP), second = s->cols - first;
    if (job->bias) memcpy(bias, job->bias + s->col, (size_t)s->cols * 4);
    const float *acc = s->acc, *next = acc + round_up(s->rows, NARROW_TILE) * GROUP;
    for (int64_t i = 0; i < s->rows; i++, acc += GROUP, next += GROUP) {
        int64_t after = (s->m + i) * job->y_stride + s->col + 2 * GROUP;
        __builtin_prefetch((char *)job->y + after * element_size(job->y_dtype), 1);
        if (VL == GROUP && second == GROUP && job->y_dtype == BF16) {
            uint16_t *to = (uint16_t *)job->y + (s->m + i) * job->y_stride + s->col;
            store_two(to, loadf(acc) + loadf(bias), loadf(next) + loadf(bias + GROUP));
            continue;
        }
        store_outputs(job, s->m + i, s->col, first, acc, bias);
        if (second) store_outputs(job, s->m + i, s->col + GROUP, second, next, bias + GROUP);
    }
}

static void store_pending(const PackedJob *job, Pending *p) {
    if (p->made) store_sums(job, &p->two[(p->made - 1) % 2]);
    p->made = 0;
}

/* The group at `from` and, where there are more than GROUP cols, the next one, for rows [m, m + count) of x. The pair
 * after them is asked for on the way, a part with every NARROW_ROWS. */
static void narrow_groups(const PackedRun *run, const uint8_t *from, int64_t size, int64_t m, int64_t count,
                          int64_t col, int64_t cols, Pending *p) {
    Ask soon = {(const char *)from + 2 * size, 2 * size / ((count + NARROW_ROWS - 1) / NARROW_ROWS)};
    for (int64_t i = 0; i < count; i += NARROW_ROWS, soon.at += soon.bytes) {
        Sums *s = &p->two[p->made % 2];
        s->m = m + i, s->rows = min64(count - i, NARROW_ROWS), s->col = col, s->cols = cols;
        run->isa->dot_narrow(from, cols > GROUP ? size : 0, &run->acts, s->m, s->rows, soon, s->acc);
        if (p->made++) store_sums(run->job, &p->two[p->made % 2]);
    }
}

/* Groups [begin, end), counted through all segments, for rows [m, m + count) of x. */
static void run_groups(const PackedRun *run, int64_t m, int64_t count, int64_t begin, int64_t end) {
    Scratch scratch;
    scratch.pending.made = 0;
    int64_t first = 0, col = 0;
    for (int64_t i = 0; i < run->job->num_segments; i++) {
        const Segment *s = &run->job->segments[i];
        int64_t groups = (s->rows + GROUP - 1) / GROUP, size = group_size(s->kind, run->job->k);
        int in_place = sums_in_place(run, s->kind, count), narrow = s->kind == P_BF16 && run->acts.narrow;
        int64_t last = min64(end - first, groups) - 1;
        int direct = !is_float_kind(s->kind) && run->job->m <= run->isa->direct_rows;
        if (has_tiles(run) && !direct && max64(begin - first, 0) <= last) run->isa->begin(s->kind);
        for (int64_t g = max64(begin - first, 0); g <= last; g++) {
            const uint8_t *from = s->data + g * size;
            int64_t at = col + g * GROUP, cols = min64(GROUP, s->rows - g * GROUP);
            if (narrow) {
                cols = min64(g < last ? 2 * GROUP : GROUP, s->rows - g * GROUP);
                narrow_groups(run, from, size, m, count, at, cols, &scratch.pending);
                g += g < last;
            } else if (in_place && cols == GROUP) {
                float *y = (float *)run->job->y + m * run->job->y_stride + at;
                quantized_group(run, s->kind, from, rows_of(run, m, count, y, run->job->y_stride), &scratch);
            } else {
                sum_group(run, s->kind, from, m, count, &scratch);
                store_group(run->job, m, count, at, cols, scratch.acc);
            }
        }
        first += groups;
        col += s->rows;
        if (narrow) store_pending(run->job, &scratch.pending);
    }
}

/* ---- checks ---- */

/* Groups of rows in all segments; -1 where a size does not fit. */
static int64_t checked_groups(const PackedJob *job) {
    int64_t groups = 0;
    if (job->m < 0 || job->isa < 0 || job->isa >= count_isas()) return -1;
    if ((job->x_dtype != F32 && job->x_dtype != BF16) || (job->y_dtype != F32 && job->y_dtype != BF16)) return -1;
    for (int64_t i = 0; i < job->num_segments; i++) {
        const Segment *s = &job->segments[i];
        if (!packed_sizes_fit(s->data, s->kind, s->rows, job->k, s->bytes)) return -1;
        groups += (s->rows + GROUP - 1) / GROUP;
    }
    return groups;
}

/* ---- the threads ---- */

static void prepare_shares(void *work, int64_t begin, int64_t end, int64_t thread) {
    for (int64_t t = begin; t < end; t++) packed_prepare_rows(work, t);
}

typedef struct {
    const PackedRun *run;
    int64_t chunk, chunks; /* groups taken at once, and how often for all of them */
} Multiplying;

static void multiply_shares(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Multiplying *w = work;
    const PackedRun *run = w->run;
    for (int64_t i = begin; i < end; i++) {
        int64_t m = i / w->chunks * ROWS_BLOCK, group = i % w->chunks * w->chunk;
        run_groups(run, m, min64(ROWS_BLOCK, run->job->m - m), group, min64(group + w->chunk, run->groups));
    }
    if (has_tiles(run)) run->isa->end();
}

/* Chunks of groups, taken as threads come free. */
static void multiply_chunks(const PackedRun *run) {
    int64_t blocks = (run->job->m + ROWS_BLOCK - 1) / ROWS_BLOCK;
    Multiplying work = {run, max64(min64(run->groups / (run->threads * CHUNKS_PER_THREAD), MOST_GROUPS), 1)};
    if (run->narrow) work.chunk = round_up(work.chunk, 2); /* groups are multiplied in pairs */
    work.chunks = (run->groups + work.chunk - 1) / work.chunk;
    share(blocks * work.chunks, run->threads > 1 ? 1 : blocks * work.chunks, multiply_shares, &work);
}

/* Nothing is read before every size has been found to fit. */
EXPORT int64_t cadence_packed_linear(const PackedJob *job) {
    int64_t groups = checked_groups(job);
    if (groups < 0) return PACKED_BAD_SIZE;
    if (groups == 0 || job->m == 0) return PACKED_OK;
    int small = job->m * groups * GROUP * job->k < PARALLEL_FROM;
    PackedRun run = {.job = job, .isa = isas[job->isa].backend, .groups = groups};
    run.threads = small ? 1 : threads_count();
    packed_find_needs(&run);
    char *work = (char *)thread_buffer(packed_lay_out(&run, NULL) / 4);
    if (!work) return PACKED_NO_MEMORY;
    packed_lay_out(&run, work);
    share(run.threads, job->m * job->k < PARALLEL_ACTS ? run.threads : 1, prepare_shares, &run);
    multiply_chunks(&run);
    return PACKED_OK;
}

EXPORT void call_packed_linear(const void *words) {
    if (cadence_packed_linear(words)) abort(); /* no memory: better no answer than a wrong one */
}

/* Bytes a weight takes when packed; 0 where no such weight can be. */
EXPORT int64_t cadence_packed_bytes(int64_t kind, int64_t rows, int64_t k) {
    return packed_shape_fits(kind, rows, k) ? packed_bytes(kind, rows, k) : 0;
}
