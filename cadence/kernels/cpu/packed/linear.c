/* Products with packed weights: shares the groups of rows among threads, stores what the kernels sum up. */
#include "packed/groups.h"
#include "runtime/threads.h"

#define WIDE_BLOCK 131072     /* floats of x multiplied by one pair of groups after another: the L2 cache holds them */
#define WIDE_UNIT 12          /* rows that a product of floats and two groups takes together on AVX-512 */
#define PARALLEL_FROM 131072  /* multiplications below which one thread is faster */
#define PARALLEL_ACTS 16384   /* elements of x below which one thread prepares them */
#define CHUNKS_PER_THREAD 8
#define MOST_GROUPS 32        /* groups a thread takes at once */

/* ---- outputs ---- */

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
    GroupScratch sums;
    Pending pending;
} Scratch;

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

/* The same of two groups, row by row. */
static void store_pair(const PackedJob *job, int64_t m, int64_t count, int64_t col, int64_t cols,
                       const GroupScratch *s) {
    float bias[2 * GROUP] = {0};
    if (job->bias) memcpy(bias, job->bias + col, (size_t)cols * 4);
    const int64_t bytes = element_size(job->y_dtype);
    for (int64_t i = 0; i < count; i++) {
        const char *next = (const char *)job->y + ((m + i) * job->y_stride + col + 2 * GROUP) * bytes;
        __builtin_prefetch(next, 1);
        __builtin_prefetch(next + GROUP * bytes, 1);
        store_outputs(job, m + i, col, GROUP, s->acc + i * GROUP, bias);
        store_outputs(job, m + i, col + GROUP, cols - GROUP, s->second + i * GROUP, bias + GROUP);
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
        int pairs = !narrow && packed_in_pairs(run, s->kind);
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
            } else if (pairs && g < last) {
                cols = min64(2 * GROUP, s->rows - g * GROUP);
                packed_sum_pair(run, s->kind, from, size, m, count, &scratch.sums);
                store_pair(run->job, m, count, at, cols, &scratch.sums);
                g++;
            } else if (in_place && cols == GROUP) {
                float *y = (float *)run->job->y + m * run->job->y_stride + at;
                packed_sum_in_place(run, s->kind, from, m, count, y, &scratch.sums);
            } else {
                packed_sum_group(run, s->kind, from, m, count, &scratch.sums);
                store_group(run->job, m, count, at, cols, scratch.sums.acc);
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
        int64_t m = i / w->chunks * run->block, group = i % w->chunks * w->chunk;
        run_groups(run, m, min64(run->block, run->job->m - m), group, min64(group + w->chunk, run->groups));
    }
    if (has_tiles(run)) run->isa->end();
}

/* Chunks of groups, taken as threads come free. */
static void multiply_chunks(const PackedRun *run) {
    int64_t blocks = (run->job->m + run->block - 1) / run->block;
    Multiplying work = {run, max64(min64(run->groups / (run->threads * CHUNKS_PER_THREAD), MOST_GROUPS), 1)};
    if (run->narrow || run->isa->dot_two || run->isa->dot_wide_two) work.chunk = round_up(work.chunk, 2); /* pairs */
    work.chunks = (run->groups + work.chunk - 1) / work.chunk;
    share(blocks * work.chunks, run->threads > 1 ? 1 : blocks * work.chunks, multiply_shares, &work);
}

/* Rows of x that stay in the caches while groups are multiplied by them. */
static int64_t rows_block(const PackedRun *run) {
    if (!run->wide || run->narrow || run->half || !run->isa->dot_wide_two) return ROWS_BLOCK;
    int64_t rows = min64(WIDE_BLOCK / round_up(run->job->k, K_STEP), ROWS_BLOCK);
    return max64(rows / WIDE_UNIT, 4) * WIDE_UNIT;
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
    run.block = rows_block(&run);
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
