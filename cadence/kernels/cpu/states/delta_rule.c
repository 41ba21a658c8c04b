/* Gated delta rule: a head's state maps keys to values. */
#include "states/states.h"

enum { V, K, DECAY, BETA };
#define LENGTH_EPS 1e-6f /* under the root of a query's or key's length */

typedef struct {
    const struct state_delta *w;
    Inputs in;
    int64_t tiles, vectors, wide; /* of a head; of a tile; of a key, in whole vectors */
} Job;

typedef struct {
    const Job *job;
    int64_t head, key_head, first, lanes; /* first entry of the tile in its head's values */
    float *decay, *beta;                  /* [STRIP_LANES] */
    float *v, *y;                         /* [STRIP, lanes in whole tiles] */
    float *k, *q;                         /* [STRIP, wide] */
} Tile;

INLINE int64_t tile_lanes(const Job *job) { return job->vectors * VL; }

/* x [count] over its length, times scale. */
INLINE void take_direction(float *to, const void *x, int64_t count, float scale, const int dtype) {
    vf square = splat(0.0f);
    widen(to, x, count, dtype);
    for (int64_t i = 0; i < count; i += VL) square = madd(square, loadf(to + i), loadf(to + i));
    vf factor = splat(scale / sqrtf(sum1(square) + LENGTH_EPS));
    for (int64_t i = 0; i < count; i += VL) storef(to + i, loadf(to + i) * factor);
}

INLINE void take_tokens(const Tile *t, const Run *run, int64_t at, int64_t count, const int dtype) {
    const Job *job = t->job;
    const struct state_delta *w = job->w;
    const int64_t key = t->key_head * w->key, value = t->head * w->value + t->first;
    const float scale = 1.0f / sqrtf((float)w->key);
    for (int64_t i = 0; i < count; i++) {
        int64_t token = run->begin + at + i - run->replayed;
        take_direction(t->k + i * job->wide, crow_of(input_of(&job->in, run, K, at + i), key, dtype), w->key, 1.0f, dtype);
        if (at + i >= run->replayed)
            take_direction(t->q + i * job->wide, crow_of(w->q, token * w->q_stride + key, dtype), w->key, scale, dtype);
        widen(t->v + i * tile_lanes(job), crow_of(input_of(&job->in, run, V, at + i), value, dtype), t->lanes, dtype);
        t->decay[i] = load_part(input_of(&job->in, run, DECAY, at + i), t->head, dtype, 1)[0];
        t->beta[i] = load_part(input_of(&job->in, run, BETA, at + i), t->head, dtype, 1)[0];
    }
    for (int64_t i = 0; i < count; i += VL) {
        vf decay = softplus(loadf(t->decay + i) + splat(w->dt_bias[t->head]));
        storef(t->decay + i, exp_of_negative(decay * splat(w->a[t->head])));
        storef(t->beta + i, splat(1.0f) / (splat(1.0f) + expv(-loadf(t->beta + i))));
    }
}

/* found[j] = what the state has of the first token's key. */
INLINE void find_first(const int N, const Tile *t, Place from, vf *found) {
    const int64_t keys = t->job->w->key;
    EACH(j, N) found[j] = splat(0.0f);
    for (int64_t i = 0; i < keys; i++) {
        vf key = splat(t->k[i]);
        EACH(j, N) found[j] = madd(found[j], loadf(from.at + i * from.stride + j * VL), key);
    }
}

/* Token `at` of the strip: found is what the state has of its key, and then of the next token's. */
INLINE void take_token(const int N, const Tile *t, int64_t at, int64_t count, vf *found, Place from, Place to) {
    const int64_t wide = t->job->wide, keys = t->job->w->key;
    const float *k = t->k + at * wide, *q = t->q + at * wide, *next = at + 1 < count ? k + wide : k;
    const vf decay = splat(t->decay[at]), beta = splat(t->beta[at]);
    vf change[MOST_VECTORS], y[MOST_VECTORS], sums[MOST_VECTORS];
    EACH(j, N) {
        change[j] = beta * (loadf(t->v + (at * N + j) * VL) - decay * found[j]);
        y[j] = sums[j] = splat(0.0f);
    }
    for (int64_t i = 0; i < keys; i++) {
        vf key = splat(k[i]), query = splat(q[i]), after = splat(next[i]);
        EACH(j, N) {
            vf s = madd(loadf(from.at + i * from.stride + j * VL) * decay, change[j], key);
            storef(to.at + i * to.stride + j * VL, s);
            y[j] = madd(y[j], s, query);
            sums[j] = madd(sums[j], s, after);
        }
    }
    EACH(j, N) found[j] = sums[j];
    EACH(j, N) storef(t->y + (at * N + j) * VL, y[j]);
}

INLINE void take_all(const int N, const Tile *t, int64_t count, Place from, Place to) {
    vf found[MOST_VECTORS];
    find_first(N, t, from, found);
    for (int64_t i = 0; i < count; i++, from = to) take_token(N, t, i, count, found, from, to);
}

static void delta_strip(void *tile, const Run *run, int64_t at, int64_t count, Place from, Place to) {
    const Tile *t = tile;
    const struct state_delta *w = t->job->w;
    WITH_DTYPE(w->dtype, take_tokens(t, run, at, count, DTYPE))
    WITH_VECTORS(t->job->vectors, take_all(VECTORS, t, count, from, to))
    for (int64_t i = max64(0, run->replayed - at); i < count; i++) {
        int64_t out = ((run->begin + at + i - run->replayed) * w->heads + t->head) * w->value + t->first;
        WITH_DTYPE(w->dtype, narrow(w->out, out, t->y + i * tile_lanes(t->job), t->lanes, DTYPE))
    }
}

static void delta_tiles(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Job *job = work;
    const struct state_delta *w = job->w;
    const int64_t of_run = w->heads * job->tiles, most = tile_lanes(job), scalars = STRIP_LANES;
    float *memory = thread_buffer((w->key + 2 * STRIP) * most + 2 * STRIP * job->wide + 2 * scalars);
    for (int64_t item = begin; memory && item < end; item++) {
        Run run = run_of(&w->runs, item / of_run);
        int64_t head = item % of_run / job->tiles, first = item % job->tiles * most, lanes = min64(most, w->value - first);
        float *at = memory, *own = cut(&at, w->key * most);
        Place table = {w->state + run.row * w->state_row + head * w->key * w->value + first, w->value};
        Tile t = {job, head, head * w->key_heads / w->heads, first, lanes};
        t.decay = cut(&at, scalars), t.beta = cut(&at, scalars);
        t.v = cut(&at, STRIP * most), t.y = cut(&at, STRIP * most);
        t.k = cut(&at, STRIP * job->wide), t.q = cut(&at, STRIP * job->wide);
        zero_padding(w->out, w->heads * w->value, head * w->value + first, lanes, &run, (int)w->dtype);
        walk(delta_strip, &t, &run, table, (Place){own, most}, w->key, lanes);
    }
}

EXPORT void call_state_delta(const void *words) {
    const struct state_delta *w = words;
    Job job = {w, {&w->runs, w->kept_inputs, w->kept_row, .num_inputs = 4, .dtype = (int)w->dtype}};
    job.in.inputs[K] = (Input){w->k, w->k_stride, w->key_heads * w->key};
    job.in.inputs[V] = (Input){w->v, w->v_stride, w->heads * w->value};
    job.in.inputs[DECAY] = (Input){w->decay, w->decay_stride, w->heads};
    job.in.inputs[BETA] = (Input){w->beta, w->beta_stride, w->heads};
    job.vectors = vectors_of(w->value), job.wide = round_up(w->key, VL);
    job.tiles = (w->value + tile_lanes(&job) - 1) / tile_lanes(&job);
    int64_t items = w->runs.num_runs * w->heads * job.tiles;
    share_tiles(items, tokens_of(&w->runs) * w->heads * w->key * w->value, delta_tiles, &job);
    keep_inputs(&job.in);
}
