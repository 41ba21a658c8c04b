/* Mamba: every channel has a state of some numbers, each with a decay of its own. */
#include "states/states.h"

#define LANES (4 * VL) /* of a tile */

enum { X, DT, B };

typedef struct {
    const struct state_scan *w;
    Inputs in;
    int64_t tiles, wide; /* of a run; width, in whole vectors */
} Job;

typedef struct {
    const Job *job;
    int64_t first, lanes; /* channels */
    const float *a;       /* [width, a_stride] */
    int64_t a_stride;
    float *d, *dt_bias;      /* [LANES] */
    float *step, *added, *y; /* [STRIP, LANES]: dt * log2 e; dt * x; what is read, which begins with d * x */
    float *b, *c;            /* [STRIP, wide] */
} Tile;

INLINE void take_tokens(Tile *t, const Run *run, int64_t at, int64_t count, const int dtype) {
    const Job *job = t->job;
    const struct state_scan *w = job->w;
    for (int64_t i = 0; i < count; i++) {
        int64_t token = run->begin + at + i - run->replayed;
        const char *x = input_of(&job->in, run, X, at + i), *dt = input_of(&job->in, run, DT, at + i);
        widen(t->b + i * job->wide, input_of(&job->in, run, B, at + i), w->width, dtype);
        if (at + i >= run->replayed) widen(t->c + i * job->wide, crow_of(w->c, token * w->c_stride, dtype), w->width, dtype);
        for (int64_t j = 0; j < t->lanes; j += VL) {
            int64_t left = t->lanes - j, to = i * LANES + j;
            vf value = load_upto(x, t->first + j, dtype, left);
            vf step = softplus(load_upto(dt, t->first + j, dtype, left) + loadf(t->dt_bias + j));
            storef(t->step + to, step * splat(LOG2_E));
            storef(t->added + to, step * value);
            storef(t->y + to, loadf(t->d + j) * value);
        }
    }
}

/* n tokens from `at` of the strip on, VL channels. */
INLINE void scan_tokens(const int n, const Tile *t, int64_t at, int64_t j, Place from, Place to) {
    const int64_t wide = t->job->wide, width = t->job->w->width, a_stride = t->a_stride;
    const float *a = t->a + j, *b = t->b + at * wide, *c = t->c + at * wide;
    vf step[SWEPT], added[SWEPT], y[SWEPT], decay[8];
    EACH(i, n) step[i] = loadf(t->step + (at + i) * LANES + j);
    EACH(i, n) added[i] = loadf(t->added + (at + i) * LANES + j);
    EACH(i, n) y[i] = loadf(t->y + (at + i) * LANES + j);
    from.at += j, to.at += j;
    for (int64_t k = 0; k < width; k++, a += a_stride, b++, c++) {
        vf s = loadf(from.at + k * from.stride);
        EACH(i, n) decay[i] = step[i] * loadf(a);
        exp2_of_negative(n, decay);
        EACH(i, n) {
            s = madd(s * decay[i], added[i], splat(b[i * wide]));
            y[i] = madd(y[i], s, splat(c[i * wide]));
        }
        storef(to.at + k * to.stride, s);
    }
    EACH(i, n) storef(t->y + (at + i) * LANES + j, y[i]);
}

static void scan_strip(void *tile, const Run *run, int64_t at, int64_t count, Place from, Place to) {
    Tile *t = tile;
    const struct state_scan *w = t->job->w;
    WITH_DTYPE(w->dtype, take_tokens(t, run, at, count, DTYPE))
    for (int64_t j = 0; j < t->lanes; j += VL) {
        Place source = from;
        int64_t i = 0;
        for (; i + SWEPT <= count; i += SWEPT, source = to) scan_tokens(SWEPT, t, i, j, source, to);
        for (; i < count; i++, source = to) scan_tokens(1, t, i, j, source, to);
    }
    for (int64_t i = max64(0, run->replayed - at); i < count; i++) {
        int64_t out = (run->begin + at + i - run->replayed) * w->channels + t->first;
        WITH_DTYPE(w->dtype, narrow(w->out, out, t->y + i * LANES, t->lanes, DTYPE))
    }
}

static void scan_tiles(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Job *job = work;
    const struct state_scan *w = job->w;
    float *memory = thread_buffer((2 * w->width + 3 * STRIP + 2) * LANES + 2 * STRIP * job->wide);
    for (int64_t item = begin; memory && item < end; item++) {
        Run run = run_of(&w->runs, item / job->tiles);
        int64_t first = item % job->tiles * LANES, lanes = min64(LANES, w->channels - first);
        float *at = memory, *own = cut(&at, w->width * LANES), *a = cut(&at, w->width * LANES);
        Place table = {w->state + run.row * w->state_row + first, w->channels};
        Tile t = {job, first, lanes, w->a + first, w->channels};
        t.d = cut(&at, LANES), t.dt_bias = cut(&at, LANES);
        t.step = cut(&at, STRIP * LANES), t.added = cut(&at, STRIP * LANES), t.y = cut(&at, STRIP * LANES);
        t.b = cut(&at, STRIP * job->wide), t.c = cut(&at, STRIP * job->wide);
        zero_padding(w->out, w->channels, first, lanes, &run, (int)w->dtype);
        widen(t.d, w->d + first, lanes, F32);
        widen(t.dt_bias, w->dt_bias + first, lanes, F32);
        if (lanes < LANES) { /* a vector would reach beyond the last */
            for (int64_t k = 0; k < w->width; k++) widen(a + k * LANES, w->a + k * w->channels + first, lanes, F32);
            t.a = a, t.a_stride = LANES;
        }
        walk(scan_strip, &t, &run, table, (Place){own, LANES}, w->width, lanes);
    }
}

EXPORT void call_state_scan(const void *words) {
    const struct state_scan *w = words;
    Job job = {w, {&w->runs, w->kept_inputs, w->kept_row, .num_inputs = 3, .dtype = (int)w->dtype}};
    job.in.inputs[X] = (Input){w->x, w->x_stride, w->channels};
    job.in.inputs[DT] = (Input){w->dt, w->dt_stride, w->channels};
    job.in.inputs[B] = (Input){w->b, w->b_stride, w->width};
    job.tiles = (w->channels + LANES - 1) / LANES, job.wide = round_up(w->width, VL);
    share_tiles(w->runs.num_runs * job.tiles, tokens_of(&w->runs) * w->width * w->channels * EXP_WORK, scan_tiles, &job);
    keep_inputs(&job.in);
}
