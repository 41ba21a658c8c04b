/* Layers that keep a state: how their kernels walk through runs of tokens.
 *
 * A state [width, lanes] is cut into tiles of some lanes, which share nothing: a tile of a run is an item of work. A
 * token is one sequence of operations on a tile, whatever is computed before, after and beside it. */
#ifndef CADENCE_STATES_H
#define CADENCE_STATES_H

#include "maps/row_maps.h"
#include "runtime/powers.h"

#define STRIP 8 /* tokens whose inputs are prepared at once */
#define STRIP_LANES (STRIP > VL ? STRIP : VL) /* a number of each of these, in whole vectors */
#define SHARED_WORK (1 << 15) /* entries of a state, times tokens, that are worth a thread */
#define EXP_WORK 4            /* the same of an entry with an exponential of its own */
#define MOST_VECTORS 4        /* of a tile that goes through SWEPT tokens in registers */

#if defined(NEON_LANES) || (defined(__AVX512F__) && VL == 16)
#define SWEPT 4 /* tokens that a vector of the state meets while it is in a register */
#else
#define SWEPT 2
#endif

typedef struct {
    int64_t row, begin, length, replayed, certain, kept;
} Run;

INLINE Run run_of(const Runs *runs, int64_t r) {
    int64_t begin = runs->query_start[r];
    return (Run){runs->rows[r], begin, runs->query_start[r + 1] - begin, runs->replayed[r], runs->certain[r], runs->kept[r]};
}

/* Of each token so many elements, `stride` from token to token. */
typedef struct {
    const char *x;
    int64_t stride, width;
} Input;

/* The inputs of the tokens of runs: those of a token lie one after another in a line of `kept` that it has. */
typedef struct {
    const Runs *runs;
    char *kept;       /* [rows, most drafts, sum of widths] */
    int64_t kept_row; /* elements of a row */
    Input inputs[4];
    int num_inputs, dtype;
} Inputs;

/* Tokens of all runs, those that are replayed too. */
int64_t tokens_of(const Runs *runs);

/* Keeps the inputs of tokens that may yet be dropped; after everything that reads those that were kept before. */
void keep_inputs(const Inputs *inputs);

INLINE int64_t line_width(const Inputs *in) {
    int64_t width = 0;
    for (int i = 0; i < in->num_inputs; i++) width += in->inputs[i].width;
    return width;
}

/* Where input `which` of token `at` lies: of those that are replayed, then of the run's. */
INLINE const char *input_of(const Inputs *in, const Run *run, int which, int64_t at) {
    const Input *input = &in->inputs[which];
    if (at >= run->replayed) return crow_of(input->x, (run->begin + at - run->replayed) * input->stride, in->dtype);
    int64_t before = 0;
    for (int i = 0; i < which; i++) before += in->inputs[i].width;
    return crow_of(in->kept, run->row * in->kept_row + at * line_width(in) + before, in->dtype);
}

/* Zeros elements [first, first + count) of what comes out of tokens of a run that are padding. out [tokens, width] */
INLINE void zero_padding(void *out, int64_t width, int64_t first, int64_t count, const Run *run, int dtype) {
    for (int64_t at = run->certain + run->kept; at < run->length; at++)
        memset(row_of(out, (run->begin + at) * width + first, dtype), 0, (size_t)(count * element_size(dtype)));
}

/* ---- the walk ---- */

/* Lanes of a state, VL * vectors or the last ones. */
typedef struct {
    float *at;
    int64_t stride; /* from line to line */
} Place;

/* Tokens [at, at + count) of a run, at most STRIP, take a tile from one place to another, which may be the same. */
typedef void Walker(void *tile, const Run *run, int64_t at, int64_t count, Place from, Place to);

/* Walks through a run with a tile of `lines`. A tile that has as many lanes as `own` is read where it lies by the first
 * tokens and written there by the last that are certain; what lies between them, and drafts, are in `own`. */
void walk(Walker *walker, void *tile, const Run *run, Place table, Place own, int64_t lines, int64_t lanes);

/* Vectors of a tile, where the whole has so many lanes: 1, 2 or 4. */
INLINE int64_t vectors_of(int64_t lanes) { return lanes > 2 * VL ? MOST_VECTORS : lanes > VL ? 2 : 1; }

/* Runs `body` with VECTORS a compile-time constant. */
#define WITH_VECTORS(vectors, body) \
    if ((vectors) == MOST_VECTORS) { \
        enum { VECTORS = MOST_VECTORS }; \
        body; \
    } else if ((vectors) == 2) { \
        enum { VECTORS = 2 }; \
        body; \
    } else { \
        enum { VECTORS = 1 }; \
        body; \
    }

/* `work`: entries of the state times tokens, of all tiles. */
INLINE void share_tiles(int64_t tiles, int64_t work, Body *body, void *job) {
    share(tiles, work < 2 * SHARED_WORK ? tiles : 1, body, job);
}

/* The next `floats` of a thread's memory. */
INLINE float *cut(float **memory, int64_t floats) {
    float *at = *memory;
    *memory += floats;
    return at;
}

/* ---- functions ---- */

/* y[j] = 2^y[j] as exp2_each has it, for y <= 0. */
INLINE void exp2_of_negative(const int n, vf *y) {
#if defined(__AVX512DQ__) && VL == 16
    vf rest[8], p[8];
    EACH(j, n) rest[j] = (vf)_mm512_reduce_ps((__m512)y[j], _MM_FROUND_TO_NEAREST_INT);
    EACH(j, n) y[j] -= rest[j];
    EACH(j, n) p[j] = madd(coefficient(1), coefficient(0), rest[j]);
    EACH(i, 4) EACH(j, n) p[j] = madd(coefficient(i + 2), p[j], rest[j]);
    EACH(j, n) y[j] = (vf)_mm512_scalef_ps((__m512)p[j], (__m512)y[j]);
#else
    exp2_each(n, y);
#endif
}

INLINE vf exp_of_negative(vf x) {
    vf y = x * splat(LOG2_E);
    exp2_of_negative(1, &y);
    return y;
}

/* log(1 + e^x): with e = e^-|x|, log(1 + e) = 2 atanh(e / (2 + e)) by its odd series, fitted to 1e-8. */
INLINE vf softplus(vf x) {
    vf e = exp_of_negative((vf)((vi)x | (vi)splat(-0.0f))), z = e / (e + splat(2.0f)), s = z * z;
    vf p = madd(splat(0.2796141883f), splat(0.2817465727f), s);
    p = madd(splat(0.4002485372f), p, s);
    p = madd(splat(0.6666631594f), p, s);
    p = madd(splat(2.0f), p, s);
    return madd(larger(x, splat(0.0f)), z, p);
}

/* Mode of the calling thread in which numbers too small to be normal are zeros: states fade towards these, and a
 * processor takes a hundred times as long for them. -> the mode before, for set_float_mode */
INLINE uint64_t flush_small_numbers(void) {
#if defined(__x86_64__)
    uint32_t before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1 << 24));
    return before;
#else
    return 0;
#endif
}

INLINE void set_float_mode(uint64_t mode) {
#if defined(__x86_64__)
    _mm_setcsr((uint32_t)mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

/* count elements as floats, and zeros up to a whole vector. */
INLINE void widen(float *to, const void *from, int64_t count, int dtype) {
    for (int64_t i = 0; i < count; i += VL) storef(to + i, load_upto(from, i, dtype, count - i));
}

/* The other way, of `count` floats, to element `at` on. */
INLINE void narrow(void *to, int64_t at, const float *from, int64_t count, int dtype) {
    for (int64_t i = 0; i < count; i += VL) store_upto(to, at + i, dtype, count - i, loadf(from + i));
}

#endif
