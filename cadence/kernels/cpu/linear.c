/* out = x * weight^T + bias in float32. Each output is one dot product summed lane by lane in the order of its
 * elements, whatever else is computed beside it: a row gives the same bits alone and among others.
 *
 * Rows of x are taken in tiles of four, rows of the weight in strips. Both are packed so that what one step of the inner
 * loop reads lies side by side (rows a power of two apart would fall on the same cache lines): x once per call, a strip
 * when more than one tile uses it. */
#include "common.h"
#include "threads.h"

#define MR 4
#define K_BLOCK 1024     /* elements handled before moving on, a multiple of VL: a packed strip stays in the L1 cache */
#define TILES_BLOCK 32   /* tiles of x handled before moving on: they stay in the L2 cache */
#define N_CHUNK 32       /* outputs a thread takes at once */
#define ROWS_BLOCK 256   /* rows of x packed at once; bounds the buffer */
#define PARALLEL_FROM 65536    /* multiplications below which one thread is faster */
#define PACK_LEAST 65536       /* elements worth a thread's packing */
#define DIRECT_TILES 4   /* a strip is packed when more tiles than these use it */

/* How a matrix is walked: element (row, step, lane) lies at row * row_stride + step * step_stride + lane. */
typedef struct {
    const float *at;
    int64_t row_stride, step_stride;
} Walk;

/* What a weight read as it lies will need soon: the next strip, or a little further down a single row. */
INLINE void prefetch_ahead(const float *at, int64_t strip, const int is_strip) {
    if (is_strip)
        __builtin_prefetch(at + strip, 0, 2);
    else
        __builtin_prefetch(at + 256, 0, 3);
}

/* Adds the products of `rows` rows of x and `cols` rows of w over `steps` vectors, and `tail` elements past them, to
 * the lane sums acc[row * cols + col]. */
INLINE void tile(const int rows, const int cols, Walk x, Walk w, int64_t steps, int64_t tail, vf *acc) {
    vf sum[MR * NR_MAX]; /* registers: all indices below are constants */
#pragma GCC unroll 32
    for (int i = 0; i < rows * cols; i++) sum[i] = acc[i];
#pragma GCC unroll 4
    for (int64_t s = 0; s < steps; s++) {
        vf wv[NR_MAX];
#pragma GCC unroll 8
        for (int n = 0; n < cols; n++) {
            const float *at = w.at + n * w.row_stride + s * w.step_stride;
            if (w.step_stride == VL && s % (16 / VL) == 0) prefetch_ahead(at, cols * w.row_stride, rows * cols > 1);
            wv[n] = loadf(at);
        }
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vf xv = loadf(x.at + m * x.row_stride + s * x.step_stride);
#pragma GCC unroll 8
            for (int n = 0; n < cols; n++) sum[m * cols + n] += xv * wv[n];
        }
    }
    if (tail) {
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vf xv = load_part(x.at + m * x.row_stride + steps * x.step_stride, 0, F32, tail);
#pragma GCC unroll 8
            for (int n = 0; n < cols; n++)
                sum[m * cols + n] +=
                    xv * load_part(w.at + n * w.row_stride + steps * w.step_stride, 0, F32, tail);
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < rows * cols; i++) acc[i] = sum[i];
}

INLINE void tile_rows(const int cols, int64_t rows, Walk x, Walk w, int64_t steps, int64_t tail, vf *acc) {
    switch (rows) {
        case 1: tile(1, cols, x, w, steps, tail, acc); break;
        case 2: tile(2, cols, x, w, steps, tail, acc); break;
        case 3: tile(3, cols, x, w, steps, tail, acc); break;
        default: tile(4, cols, x, w, steps, tail, acc); break;
    }
}

/* rows <= count rows of k elements -> [ceil(k / VL)][count][VL], the rest zero. */
INLINE void pack(float *to, const float *from, int64_t stride, int64_t rows, const int count, int64_t k) {
    for (int64_t i = 0; i < k; i += VL, to += count * VL)
#pragma GCC unroll 4
        for (int r = 0; r < count; r++)
            storef(to + r * VL, r < rows ? load_upto(from + r * stride, i, F32, k - i) : splat(0.0f));
}

typedef struct {
    const float *x, *w, *bias; /* x: packed tiles, or the rows themselves when there is only one */
    float *out;
    int64_t m, n, k, padded; /* padded: k rounded up to VL */
} Linear;

INLINE void finish(const Linear *a, int64_t row, int64_t col, const int cols, const vf *acc) {
    float sums[4];
    if (cols == 4) { /* adds the lanes of each in the same order as sum1 */
        v4 all = sum4(acc[0], acc[1], acc[2], acc[3]);
        memcpy(sums, &all, 16);
    } else {
        for (int c = 0; c < cols; c++) sums[c] = sum1(acc[c]);
    }
    for (int c = 0; c < cols; c++) a->out[row * a->n + col + c] = a->bias ? sums[c] + a->bias[col + c] : sums[c];
}

/* One row of x: the weight is read as it lies, in a single stream, which memory serves fastest. */
static void single_row(const Linear *a, int64_t n0, int64_t n1) {
    int64_t steps = a->k / VL, tail = a->k % VL;
    Walk x = {a->x, 0, VL};
    for (int64_t n = n0; n < n1; n++) {
        vf acc = {0};
        tile(1, 1, x, (Walk){a->w + n * a->k, a->k, VL}, steps, tail, &acc);
        finish(a, 0, n, 1, &acc);
    }
}

/* Asks for part `share` of `shares` of the strip that comes next, so that packing it will not wait for memory. */
INLINE void prefetch_share(const float *w, int64_t stride, const int cols, int64_t k, int64_t share, int64_t shares) {
    for (int64_t i = k * share / shares; i < k * (share + 1) / shares; i += 16)
        for (int n = 0; n < cols; n++) __builtin_prefetch(w + n * stride + i, 0, 2);
}

/* Tiles [t0, t1) of x against `cols` rows of the weight from n on. */
INLINE void strip(const Linear *a, int64_t t0, int64_t t1, int64_t n, const int cols) {
    vf acc[TILES_BLOCK * MR * NR_MAX];
    float packed[K_BLOCK * NR_MAX];
    memset(acc, 0, sizeof(vf) * (size_t)((t1 - t0) * MR * cols));
    for (int64_t k0 = 0; k0 < a->k; k0 += K_BLOCK) {
        int64_t k = min64(K_BLOCK, a->k - k0), steps = k / VL, tail = k % VL;
        Walk direct = {a->w + n * a->k + k0, a->k, VL}, side_by_side = {packed, VL, cols * VL};
        int few = t1 - t0 <= DIRECT_TILES;
        if (!few) pack(packed, direct.at, a->k, cols, cols, k);
        for (int64_t t = t0; t < t1; t++) {
            Walk x = {a->x + (t * a->padded + k0) * MR, VL, MR * VL};
            vf *sums = acc + (t - t0) * MR * cols;
            if (few) {
                tile_rows(cols, a->m - t * MR, x, direct, steps, tail, sums);
            } else {
                prefetch_share(direct.at + cols * a->k, a->k, cols, k, t - t0, t1 - t0);
                tile_rows(cols, a->m - t * MR, x, side_by_side, steps, tail, sums);
            }
        }
    }
    for (int64_t m = t0 * MR; m < min64(t1 * MR, a->m); m++) finish(a, m, n, cols, acc + (m - t0 * MR) * cols);
}

static void rows_of_chunk(const Linear *a, int64_t n0, int64_t n1) {
    int64_t tiles = (a->m + MR - 1) / MR;
    for (int64_t t = 0; t < tiles; t += TILES_BLOCK) {
        int64_t end = min64(t + TILES_BLOCK, tiles), n = n0;
        for (; n + NR_MAX <= n1; n += NR_MAX) strip(a, t, end, n, NR_MAX);
        for (; n < n1; n++) strip(a, t, end, n, 1);
    }
}

typedef struct {
    const Linear *a;
    const float *x;
    int64_t ldx;
    float *to;
} Packing;

static void pack_tiles(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Packing *p = work;
    const Linear *a = p->a;
    for (int64_t t = begin; t < end; t++)
        pack(p->to + t * a->padded * MR, p->x + t * MR * p->ldx, p->ldx, a->m - t * MR, MR, a->k);
}

static void rows_outputs(void *work, int64_t begin, int64_t end, int64_t thread) { rows_of_chunk(work, begin, end); }

static void single_outputs(void *work, int64_t begin, int64_t end, int64_t thread) { single_row(work, begin, end); }

/* Up to ROWS_BLOCK rows of x, packed into `work` first. */
static void rows_block(Linear a, const float *x, int64_t ldx, float *work) {
    Packing packing = {&a, x, ldx, work};
    a.x = work;
    share_evenly((a.m + MR - 1) / MR, PACK_LEAST / (a.padded * MR) + 1, pack_tiles, &packing);
    share(a.n, a.m * a.n * a.k < PARALLEL_FROM ? a.n : N_CHUNK, rows_outputs, &a);
}

/* x [m, k] with ldx elements between rows, w [n, k] contiguous, bias [n] or NULL -> out [m, n] contiguous. */
void cadence_linear(float *out, const float *x, const float *w, const float *bias, int64_t m, int64_t n,
                           int64_t k, int64_t ldx) {
    Linear a = {x, w, bias, out, m, n, k, round_up(k, VL)};
    if (m == 1) {
        int64_t chunk = max64(min64(n / 8, 512), 16); /* long runs: every start of a stream costs */
        share(n, n * k < PARALLEL_FROM ? n : chunk, single_outputs, &a);
        return;
    }
    float *work = thread_buffer(min64(round_up(m, MR), ROWS_BLOCK) * a.padded);
    for (int64_t row = 0; row < m; row += ROWS_BLOCK) {
        a.m = min64(ROWS_BLOCK, m - row);
        a.out = out + row * n;
        rows_block(a, x + row * ldx, ldx, work);
    }
}
