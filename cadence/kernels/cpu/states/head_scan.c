/* Mamba-2: heads of some channels with one decay each. */
#include "states/states.h"

enum { X, DT, B };

typedef struct {
    const struct state_head_scan *w;
    Inputs in;
    int64_t tiles, vectors, wide; /* of a head; of a tile; width, in whole vectors */
} Job;

typedef struct {
    const Job *job;
    int64_t head, group, first, lanes; /* first channel of the tile in its head */
    float *decay;                      /* [STRIP_LANES] */
    float *added, *y;                  /* [STRIP, lanes in whole tiles]: dt * x; what is read, which begins with d * x */
    float *b, *c;                      /* [STRIP, wide] */
} Tile;

INLINE int64_t tile_lanes(const Job *job) { return job->vectors * VL; }

/* step[i] = dt of token i, decay[i] = e^(a * dt). step [STRIP_LANES] */
INLINE void take_steps(const Tile *t, const Run *run, int64_t at, int64_t count, float *step, const int dtype) {
    const struct state_head_scan *w = t->job->w;
    for (int64_t i = 0; i < STRIP_LANES; i++)
        step[i] = i < count ? load_part(input_of(&t->job->in, run, DT, at + i), t->head, dtype, 1)[0] : 0.0f;
    for (int64_t i = 0; i < count; i += VL) {
        vf dt = softplus(loadf(step + i) + splat(w->dt_bias[t->head]));
        dt = larger(splat(w->limit_low), smaller(splat(w->limit_high), dt));
        storef(step + i, dt);
        storef(t->decay + i, exp_of_negative(dt * splat(w->a[t->head])));
    }
}

INLINE void take_tokens(const Tile *t, const Run *run, int64_t at, int64_t count, const int dtype) {
    const Job *job = t->job;
    const struct state_head_scan *w = job->w;
    const int64_t channel = t->head * w->size + t->first, group = t->group * w->width;
    float step[STRIP_LANES];
    take_steps(t, run, at, count, step, dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t token = run->begin + at + i - run->replayed;
        const char *x = input_of(&job->in, run, X, at + i), *b = input_of(&job->in, run, B, at + i);
        widen(t->b + i * job->wide, crow_of(b, group, dtype), w->width, dtype);
        if (at + i >= run->replayed)
            widen(t->c + i * job->wide, crow_of(w->c, token * w->c_stride + group, dtype), w->width, dtype);
        for (int64_t j = 0; j < t->lanes; j += VL) {
            vf value = load_upto(x, channel + j, dtype, t->lanes - j);
            storef(t->added + i * tile_lanes(job) + j, splat(step[i]) * value);
            storef(t->y + i * tile_lanes(job) + j, splat(w->d[t->head]) * value);
        }
    }
}

/* n tokens from `at` of the strip on, V vectors of channels. */
INLINE void scan_tokens(const int n, const int V, const Tile *t, int64_t at, Place from, Place to) {
    const int64_t wide = t->job->wide, width = t->job->w->width;
    const float *b = t->b + at * wide, *c = t->c + at * wide, *added = t->added + at * V * VL;
    float *read = t->y + at * V * VL;
    vf y[SWEPT][MOST_VECTORS], s[MOST_VECTORS], decay[SWEPT];
    EACH(i, n) EACH(j, V) y[i][j] = loadf(read + (i * V + j) * VL);
    EACH(i, n) decay[i] = splat(t->decay[at + i]);
    for (int64_t k = 0; k < width; k++, b++, c++) {
        __asm__ volatile("" : "+r"(added)); /* else every vector of it takes a register for its address */
        EACH(j, V) s[j] = loadf(from.at + k * from.stride + j * VL);
        EACH(i, n) {
            vf written = splat(b[i * wide]), reads = splat(c[i * wide]);
            EACH(j, V) s[j] = madd(s[j] * decay[i], loadf(added + (i * V + j) * VL), written);
            EACH(j, V) y[i][j] = madd(y[i][j], s[j], reads);
        }
        EACH(j, V) storef(to.at + k * to.stride + j * VL, s[j]);
    }
    EACH(i, n) EACH(j, V) storef(read + (i * V + j) * VL, y[i][j]);
}

INLINE void scan_all(const int V, const Tile *t, int64_t count, Place from, Place to) {
    int64_t i = 0;
    for (; i + SWEPT <= count; i += SWEPT, from = to) scan_tokens(SWEPT, V, t, i, from, to);
    for (; i < count; i++, from = to) scan_tokens(1, V, t, i, from, to);
}

static void scan_strip(void *tile, const Run *run, int64_t at, int64_t count, Place from, Place to) {
    const Tile *t = tile;
    const struct state_head_scan *w = t->job->w;
    WITH_DTYPE(w->dtype, take_tokens(t, run, at, count, DTYPE))
    WITH_VECTORS(t->job->vectors, scan_all(VECTORS, t, count, from, to))
    for (int64_t i = max64(0, run->replayed - at); i < count; i++) {
        int64_t out = ((run->begin + at + i - run->replayed) * w->heads + t->head) * w->size + t->first;
        WITH_DTYPE(w->dtype, narrow(w->out, out, t->y + i * tile_lanes(t->job), t->lanes, DTYPE))
    }
}

static void scan_tiles(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Job *job = work;
    const struct state_head_scan *w = job->w;
    const int64_t of_run = w->heads * job->tiles, most = tile_lanes(job);
    float *memory = thread_buffer((w->width + 2 * STRIP) * most + 2 * STRIP * job->wide + STRIP_LANES);
    for (int64_t item = begin; memory && item < end; item++) {
        Run run = run_of(&w->runs, item / of_run);
        int64_t head = item % of_run / job->tiles, first = item % job->tiles * most, lanes = min64(most, w->size - first);
        float *at = memory, *own = cut(&at, w->width * most);
        Place table = {w->state + run.row * w->state_row + head * w->width * w->size + first, w->size};
        Tile t = {job, head, head * w->groups / w->heads, first, lanes};
        t.decay = cut(&at, STRIP_LANES);
        t.added = cut(&at, STRIP * most), t.y = cut(&at, STRIP * most);
        t.b = cut(&at, STRIP * job->wide), t.c = cut(&at, STRIP * job->wide);
        zero_padding(w->out, w->heads * w->size, head * w->size + first, lanes, &run, (int)w->dtype);
        walk(scan_strip, &t, &run, table, (Place){own, most}, w->width, lanes);
    }
}

EXPORT void call_state_head_scan(const void *words) {
    const struct state_head_scan *w = words;
    Job job = {w, {&w->runs, w->kept_inputs, w->kept_row, .num_inputs = 3, .dtype = (int)w->dtype}};
    job.in.inputs[X] = (Input){w->x, w->x_stride, w->heads * w->size};
    job.in.inputs[DT] = (Input){w->dt, w->dt_stride, w->heads};
    job.in.inputs[B] = (Input){w->b, w->b_stride, w->groups * w->width};
    job.vectors = vectors_of(w->size), job.wide = round_up(w->width, VL);
    job.tiles = (w->size + tile_lanes(&job) - 1) / tile_lanes(&job);
    int64_t items = w->runs.num_runs * w->heads * job.tiles;
    share_tiles(items, tokens_of(&w->runs) * w->heads * w->width * w->size, scan_tiles, &job);
    keep_inputs(&job.in);
}
