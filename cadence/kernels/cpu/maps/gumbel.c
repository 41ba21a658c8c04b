/* Gumbel noise from Philox4x32-10, word for word what the reference describes. */
#include "runtime/common.h"
#include "runtime/threads.h"

#define QUADS 64 /* Philox blocks computed together, four words each */
#define PARALLEL_COST 100 /* pieces without noise below which one thread is faster */
#define DL (VL / 2)

typedef double vd __attribute__((vector_size(DL * 8), aligned(8), may_alias));
typedef int64_t vl __attribute__((vector_size(DL * 8)));

typedef struct {
    uint32_t word[4][QUADS];
} Words;

/* Of the blocks whose numbers are in word[0]. */
INLINE void philox_of(Words *w, int64_t position, uint64_t seed) {
    for (int i = 0; i < QUADS; i++) {
        w->word[1][i] = (uint32_t)position;
        w->word[2][i] = (uint32_t)((uint64_t)position >> 32);
        w->word[3][i] = 0;
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < QUADS; i++) {
            uint64_t a = (uint64_t)w->word[0][i] * 0xD2511F53u, b = (uint64_t)w->word[2][i] * 0xCD9E8D57u;
            w->word[0][i] = (uint32_t)(b >> 32) ^ w->word[1][i] ^ k0;
            w->word[1][i] = (uint32_t)b;
            w->word[2][i] = (uint32_t)(a >> 32) ^ w->word[3][i] ^ k1;
            w->word[3][i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static void philox(Words *w, uint32_t first, int64_t position, uint64_t seed) {
    for (int i = 0; i < QUADS; i++) w->word[0][i] = first + (uint32_t)i;
    philox_of(w, position, seed);
}

/* The words of `count` ids, where those of ids 0, 1, 2, ... would stand; after them the last one again. */
static void philox_ids(Words *w, const int32_t *ids, int64_t count, int64_t position, uint64_t seed) {
    for (int64_t begin = 0; begin < 4 * QUADS; begin += QUADS) {
        Words of;
        for (int64_t i = 0; i < QUADS; i++) of.word[0][i] = (uint32_t)ids[min64(begin + i, count - 1)] / 4;
        philox_of(&of, position, seed);
        for (int64_t i = 0; i < QUADS; i++)
            w->word[i % 4][(begin + i) / 4] = of.word[ids[min64(begin + i, count - 1)] % 4][i];
    }
}

INLINE vd splatd(double x) { return x - (vd){0}; }

/* As madd. */
INLINE vd maddd(vd sum, vd a, vd b) {
#if defined(__AVX512F__) && VL == 16
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(__FMA__) && VL == 8
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#elif defined(__aarch64__) && VL == 4
    return (vd)vfmaq_f64((float64x2_t)sum, (float64x2_t)a, (float64x2_t)b);
#else
    return sum + a * b;
#endif
}

/* Natural logarithm of positive normal doubles, within 2 ulp: x = 2^e * m, m in [1/sqrt 2, sqrt 2),
 * log m = 2 atanh((m - 1) / (m + 1)) by its odd series. */
INLINE vd logd(vd x) {
    vl bits = (vl)x;
    vl e = ((bits - 0x3fe6a09e667f3bcd) >> 52);
    vd m = (vd)(bits - (e << 52));
    vd n = __builtin_convertvector(e, vd);
    vd f = m - 1.0, s = f / (m + 1.0), z = s * s;
    vd poly = maddd(splatd(1.0 / 21), z, splatd(1.0 / 23));
    poly = maddd(splatd(1.0 / 19), poly, z);
    poly = maddd(splatd(1.0 / 17), poly, z);
    poly = maddd(splatd(1.0 / 15), poly, z);
    poly = maddd(splatd(1.0 / 13), poly, z);
    poly = maddd(splatd(1.0 / 11), poly, z);
    poly = maddd(splatd(1.0 / 9), poly, z);
    poly = maddd(splatd(1.0 / 7), poly, z);
    poly = maddd(splatd(1.0 / 5), poly, z);
    poly = maddd(splatd(1.0 / 3), poly, z);
    vd tail = maddd(n * 1.90821492927058770002e-10, s * z * poly, splatd(2.0));
    return maddd(maddd(tail, s, splatd(2.0)), n, splatd(6.93147180369123816490e-01));
}

/* Noise of the words of one piece, in the order of the token ids. */
static void noise_of(const Words *w, float *noise) {
    double u[4 * QUADS];
    for (int i = 0; i < QUADS; i++)
        for (int j = 0; j < 4; j++) u[4 * i + j] = ((double)w->word[j][i] + 0.5) * 0x1p-32;
    for (int i = 0; i < 4 * QUADS; i += DL) {
        vd *at = (vd *)(u + i);
        *at = -logd(-logd(*at));
    }
    for (int i = 0; i < 4 * QUADS; i++) noise[i] = (float)u[i];
}

INLINE int64_t pieces_of(int64_t vocab) { return (vocab + 4 * QUADS - 1) / (4 * QUADS); }

static void noise_pieces(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct gumbel *n = work;
    const int64_t pieces = pieces_of(n->vocab);
    for (int64_t job = begin; job < end; job++) {
        int64_t r = job / pieces, piece = job % pieces, first = piece * 4 * QUADS;
        Words w;
        float noise[4 * QUADS];
        philox(&w, (uint32_t)(piece * QUADS), n->positions[r * n->position_stride],
               (uint64_t)n->seeds[r * n->seed_stride]);
        noise_of(&w, noise);
        memcpy(n->out + r * n->vocab + first, noise, (size_t)min64(n->vocab - first, 4 * QUADS) * 4);
    }
}

EXPORT void call_gumbel(const void *words) {
    const struct gumbel *n = words;
    share_evenly(n->rows * pieces_of(n->vocab), 8, noise_pieces, (void *)n);
}

typedef struct {
    float value; /* the highest so far, or NaN once one was met */
    int64_t id;  /* the lowest that has it */
} Best;

/* NaN above all; the lower id among equals. */
INLINE int beats(Best a, Best b) {
    if (a.value != a.value && b.value == b.value) return 1;
    return a.value > b.value || ((a.value == b.value || a.value != a.value) && a.id < b.id);
}

/* The values of up to 4 * QUADS ids, -inf beyond the end; their highest, NaN if there is one. */
INLINE float values_of(float *value, const void *logits, int64_t first, int64_t count, float temperature, int dtype) {
    vf top = splat(-INFINITY), t = splat(temperature);
    vi lost = {0};
    for (int64_t i = 0; i < 4 * QUADS; i += VL) {
        vf v = splat(-INFINITY);
        if (i + VL <= count) {
            v = load(logits, first + i, dtype);
            if (temperature != 1.0f) v /= t;
        } else if (i < count) {
            float part[VL];
            storef(part, load_part(logits, first + i, dtype, count - i) / t);
            for (int64_t j = count - i; j < VL; j++) part[j] = -INFINITY;
            v = loadf(part);
        }
        storef(value + i, v);
        lost |= (vi)(v != v);
        top = maxv(v, top);
    }
    float highest = -INFINITY;
    int any = 0;
    for (int i = 0; i < VL; i++) {
        highest = top[i] > highest ? top[i] : highest;
        any |= lost[i];
    }
    return any ? NAN : highest;
}

/* Words below this cannot lift `top` above `best`: noise = -log(-log(u)) must reach best - top, but for rounding. */
static double least_word(float best, float top) {
    double needed = (double)best - (double)top - 1e-5 * (1.0 + fabs((double)best) + fabs((double)top));
    return exp(-exp(-needed)) * 0x1p32 - 2.0;
}

/* Adds the noise of these words wherever it can make a new highest value, or as high a one, and -inf elsewhere. */
static void add_noise(float *value, float best, float top, const Words *w) {
    double least = isinf(best) || isinf(top) ? 0.0 : least_word(best, top);
    uint32_t floor32 = least >= 0x1p32 ? UINT32_MAX : least > 0.0 ? (uint32_t)least : 0;
    int count = 0;
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < QUADS; i++) count += w->word[j][i] >= floor32;
    if (count > 4) {
        float noise[4 * QUADS];
        noise_of(w, noise);
        for (int i = 0; i < 4 * QUADS; i++) value[i] += noise[i];
        return;
    }
    for (int i = 0; i < 4 * QUADS; i++) {
        uint32_t word = w->word[i % 4][i / 4];
        if (word < floor32) {
            value[i] = -INFINITY;
            continue;
        }
        vd u = (vd){0} + ((double)word + 0.5) * 0x1p-32;
        value[i] += (float)(-logd(-logd(u)))[0];
    }
}

/* How a line is drawn. */
typedef struct {
    const void *logits;
    const int32_t *ids; /* or NULL */
    int64_t vocab, random, position;
    uint64_t seed;
    float temperature;
} Line;

INLINE void take_piece(Best *best, const Line *l, int64_t piece, int dtype) {
    float value[4 * QUADS];
    int64_t first = piece * 4 * QUADS, count = min64(l->vocab - first, 4 * QUADS);
    float top = values_of(value, l->logits, first, count, l->temperature, dtype);
    if (best->value != best->value) return;
    if (top != top) {
        int i = 0;
        while (value[i] == value[i]) i++;
        *best = (Best){NAN, first + i};
        return;
    }
    if (top == -INFINITY || best->value == INFINITY || (!l->random && top <= best->value)) return;
    if (l->random) {
        Words w;
        philox(&w, (uint32_t)(piece * QUADS), l->position, l->seed);
        add_noise(value, best->value, top, &w);
    }
    for (int64_t i = 0; i < count; i++)
        if (value[i] > best->value) *best = (Best){value[i], first + i};
}

/* The same where columns have ids, in any order: a later column may win among equals. */
INLINE void take_mapped(Best *best, const Line *l, int64_t piece, int dtype) {
    float value[4 * QUADS];
    int64_t first = piece * 4 * QUADS, count = min64(l->vocab - first, 4 * QUADS);
    float top = values_of(value, l->logits, first, count, l->temperature, dtype);
    if (top == -INFINITY || (!l->random && top < best->value)) return;
    if (l->random) {
        Words w;
        philox_ids(&w, l->ids + first, count, l->position, l->seed);
        add_noise(value, best->value, top, &w);
    }
    for (int64_t i = 0; i < count; i++) {
        Best one = {value[i], l->ids[first + i]};
        if (beats(one, *best)) *best = one;
    }
}

/* Element i of integers of 8 or 4 bytes. */
INLINE int64_t integer_at(const void *p, int64_t i, int64_t bytes) {
    return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

typedef struct {
    const struct draw *w;
    int64_t pieces;
    int64_t parts; /* of a line */
    Best *found;   /* [lines, parts] */
} Draw;

INLINE int64_t drawn_row(const struct draw *w, int64_t line) { return integer_at(w->rows, line, w->row_bytes); }

static void draw_parts(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Draw *d = work;
    const struct draw *w = d->w;
    for (int64_t job = begin; job < end; job++) {
        int64_t line = job / d->parts, part = job % d->parts, row = drawn_row(w, line);
        Line l = {
            .ids = w->ids,
            .vocab = w->vocab,
            .random = w->random[row * w->random_stride],
            .position = integer_at(w->positions, line, w->position_bytes),
            .seed = (uint64_t)w->seeds[row * w->seed_stride],
            .temperature = w->temperatures[row * w->temperature_stride],
        };
        int64_t first = part * d->pieces / d->parts, last = (part + 1) * d->pieces / d->parts;
        Best best = {-INFINITY, 0};
        WITH_DTYPE(w->dtype, {
            l.logits = (const char *)w->logits + line * w->logits_stride * element_size(DTYPE);
            if (l.ids)
                for (int64_t piece = first; piece < last; piece++) take_mapped(&best, &l, piece, DTYPE);
            else
                for (int64_t piece = first; piece < last; piece++) take_piece(&best, &l, piece, DTYPE);
        })
        d->found[job] = best;
    }
}

static void finish_line(const Draw *d, int64_t line) {
    Best best = d->found[line * d->parts];
    for (int64_t part = 1; part < d->parts; part++) {
        Best other = d->found[line * d->parts + part];
        if (beats(other, best)) best = other;
    }
    d->w->tokens[line] = (int32_t)best.id;
    d->w->peaks[line] = best.value;
}

EXPORT void call_draw(const void *words) {
    const struct draw *w = words;
    Draw d = {w, pieces_of(w->vocab)};
    d.parts = w->lines >= 8 ? 1 : min64(8, (d.pieces + 15) / 16);
    d.found = (Best *)thread_buffer(w->lines * d.parts * (int64_t)(sizeof(Best) / 4));
    int64_t cost = 0; /* a piece with noise costs about eight without */
    for (int64_t line = 0; line < w->lines; line++)
        cost += d.pieces * (w->random[drawn_row(w, line) * w->random_stride] ? 8 : 1);
    share(w->lines * d.parts, cost > PARALLEL_COST ? 1 : w->lines * d.parts, draw_parts, &d);
    for (int64_t line = 0; line < w->lines; line++) finish_line(&d, line);
}
