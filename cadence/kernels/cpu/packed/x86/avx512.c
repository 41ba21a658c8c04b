/* Packed products with AVX-512: VNNI for integers, and its bf16 products where there are any. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed/x86/avx512.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))
#define BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))

/* ---- integers ---- */

/* What a sum of half h of a step (or of all of it) begins at. */
TARGET INLINE __m512i begin_sum(const int kind, const int32_t *half_sums, const int h) {
    if (zero_of(kind) == 0) return _mm512_setzero_si512();
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(excess_of(kind, half_sums, h)));
}

/* A tile with its quants as unsigned bytes, [steps][8 quads][16 rows][4]. */
typedef struct {
    const int8_t *at;
    int64_t step_bytes;
    const float *scale, *shift;
} Unsigned;

/* `rows` rows of x from tile t of the stretch on, up to TILE_ROWS or two tiles; w: [groups]. */
TARGET INLINE void dot_rows(const int kind, const int rows, const int groups, const Unsigned *w, const Stretch *x,
                            int64_t t) {
    const Format f = formats[kind];
    const Acts *a = x->acts;
    const int quads = 8 / f.halves;
    const int64_t next = (a->steps - 1) * TILE_ROWS;
    float *acc[2] = {x->acc + t * TILE_ROWS * GROUP, x->second + t * TILE_ROWS * GROUP};
    __m512 sum[2][DIRECT_ROWS];
    EACH(n, groups) EACH(m, rows) sum[n][m] = _mm512_loadu_ps(acc[n] + m * GROUP);
    for (int64_t s = 0; s < x->count; s++) {
        const int64_t first = ((x->tile + t) * a->steps + x->at + s) * TILE_ROWS;
        const int8_t *row = a->q + (x->tile + t) * TILE_ROWS * a->padded + (x->at + s) * K_STEP;
        EACH(h, f.halves) {
            __m512i part[2][DIRECT_ROWS];
            EACH(m, rows) {
                part[0][m] = begin_sum(kind, a->half_sums + (first + m / TILE_ROWS * next + m) * 2, h);
                part[1][m] = part[0][m];
            }
            EACH(g, quads) {
                __m512i wv[2];
                EACH(n, groups) wv[n] = _mm512_loadu_si512(w[n].at + s * w[n].step_bytes + (h * quads + g) * 64);
                EACH(m, rows) {
                    const __m512i four = _mm512_set1_epi32(four_bytes(row + m * a->padded + (h * quads + g) * 4));
                    EACH(n, groups) part[n][m] = _mm512_dpbusd_epi32(part[n][m], wv[n], four);
                }
            }
            EACH(n, groups) {
                const __m512 scale = _mm512_load_ps(w[n].scale + (s * f.halves + h) * GROUP);
                EACH(m, rows)
                    sum[n][m] = add_scaled(sum[n][m], part[n][m], a->scale[first + m / TILE_ROWS * next + m], scale);
            }
        }
        if (!f.shift) continue;
        EACH(n, groups) {
            const __m512 shift = _mm512_load_ps(w[n].shift + s * GROUP);
            EACH(m, rows)
                sum[n][m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[first + m / TILE_ROWS * next + m]), sum[n][m]);
        }
    }
    EACH(n, groups) EACH(m, rows) _mm512_storeu_ps(acc[n] + m * GROUP, sum[n][m]);
}

TARGET INLINE void dot_kind(const int kind, const Unsigned *w, const Stretch *x) {
    int64_t t = 0;
    for (; t + 2 <= x->tiles; t += 2) dot_rows(kind, 2 * TILE_ROWS, 1, w, x, t);
    for (; t < x->tiles; t++)
        switch (tile_rows_of(x->acts, x->tile + t)) {
            case 1: dot_rows(kind, 1, 1, w, x, t); break;
            case 2: dot_rows(kind, 2, 1, w, x, t); break;
            default: dot_rows(kind, TILE_ROWS, 1, w, x, t); break;
        }
}

/* Signed bytes become unsigned ones, in `to`, once for all rows. */
TARGET static Unsigned turned(int64_t kind, const Tile *w, int64_t steps, int8_t *to) {
    if (formats[kind].bits != 8) return (Unsigned){w->at, w->step_bytes, w->scale, w->shift};
    const __m512i top = _mm512_set1_epi8((char)0x80);
    for (int64_t s = 0; s < steps; s++)
        EACH(g, 8) {
            const __m512i bytes = _mm512_loadu_si512(w->at + s * w->step_bytes + g * 64);
            _mm512_store_si512(to + (s * 8 + g) * 64, _mm512_xor_si512(bytes, top));
        }
    return (Unsigned){to, K_STEP * GROUP, w->scale, w->shift};
}

TARGET void packed_vnni_dot(int64_t kind, const Tile *w, const Stretch *x) {
    int8_t bytes[K_CHUNK * GROUP] __attribute__((aligned(64)));
    const Unsigned own = turned(kind, w, x->count, bytes);
    WITH_UNPACKED(kind, dot_kind(KIND, &own, x))
}

/* Rows that fill up a tile are computed on zeros. */
TARGET INLINE void dot_pair(const int kind, const Unsigned *w, const Stretch *x) {
    int64_t t = 0;
    for (; t + 2 <= x->tiles; t += 2) dot_rows(kind, 2 * TILE_ROWS, 2, w, x, t);
    if (t < x->tiles) dot_rows(kind, TILE_ROWS, 2, w, x, t);
}

TARGET static void dot_two(int64_t kind, const Tile *first, const Tile *second, const Stretch *x) {
    int8_t bytes[2][K_CHUNK * GROUP] __attribute__((aligned(64)));
    const Unsigned w[2] = {turned(kind, first, x->count, bytes[0]), turned(kind, second, x->count, bytes[1])};
    WITH_UNPACKED(kind, dot_pair(KIND, w, x))
}

/* All rows there are, straight from the packed bytes. */
TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    const __m512i top = _mm512_set1_epi8((char)0x80);
    const __m512i table = f.table ? _mm512_xor_si512(load_table(kind, from), top) : top;
    __m512 sum[DIRECT_ROWS];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            const int8_t *x = a->q + (block + s) * K_STEP;
            int64_t at[DIRECT_ROWS]; /* where a row has its scale */
            EACH(m, rows) at[m] = (m / TILE_ROWS * a->steps + block + s) * TILE_ROWS + m % TILE_ROWS;
            ask_for_step(kind, q);
            __m512i part[2][DIRECT_ROWS];
            EACH(h, f.halves) EACH(m, rows) part[h][m] = begin_sum(kind, a->half_sums + at[m] * 2, h);
            EACH(g, 8) {
                __m512i w = f.table ? load_codes(table, q, g) : load_quad(kind, q, g);
                const int h = f.halves == 2 && g >= 4;
                EACH(m, rows) {
                    __m512i four = _mm512_set1_epi32(four_bytes(x + m * a->padded + g * 4));
                    part[h][m] = _mm512_dpbusd_epi32(part[h][m], w, four);
                }
            }
            EACH(h, f.halves) {
                __m512 scale = load_scale(kind, from, s, h);
                EACH(m, rows) sum[m] = add_scaled(sum[m], part[h][m], a->scale[at[m]], scale);
            }
            if (!f.shift) continue;
            __m512 shift = load_shift(kind, from, s);
            EACH(m, rows) sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[at[m]]), sum[m]);
        }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET int packed_vnni_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (is_float_kind(kind)) return packed_avx512_direct_floats(kind, from, a, acc);
    if (has_planes(kind)) return packed_avx512_direct_planes(kind, from, a, acc);
    WITH_ROWS(a->rows, WITH_KIND(kind, direct_rows(KIND, ROWS, from, a, acc)))
    return 1;
}

const Backend packed_vnni = {.quantize = packed_avx512_quantize,
                             .unpack = packed_avx512_unpack,
                             .dot = packed_vnni_dot,
                             .direct = packed_vnni_direct,
                             .direct_rows = DIRECT_ROWS,
                             .widen = packed_avx512_widen,
                             .dot_wide = packed_avx512_dot_wide,
                             .dot_two = dot_two,
                             .dot_wide_two = packed_avx512_dot_wide_two};

/* ---- bf16 times bf16 ---- */

/* Packed pairs along K as they lie, one chain of pairs per output; x: rows of a tile. */
BF16_TARGET INLINE void narrow_rows(const int rows, const uint8_t *from, const uint16_t *x, int64_t steps, float *acc) {
    __m512 sum[8];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; s++, x += NARROW_TILE * K_STEP)
        for (int i = 0; i < K_STEP; i += 2, from += 64) {
            __m512i w = _mm512_loadu_si512(from);
            EACH(m, rows) {
                __m512i pair = _mm512_set1_epi32(four_bytes((const int8_t *)(x + m * K_STEP + i)));
                sum[m] = _mm512_dpbf16_ps(sum[m], (__m512bh)w, (__m512bh)pair);
            }
        }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

/* Up to a tile of rows. */
BF16_TARGET static void narrow_tile(const uint8_t *from, const uint16_t *x, int64_t steps, int64_t count, float *acc) {
    int64_t m = 0;
    for (; m + 8 <= count; m += 8) narrow_rows(8, from, x + m * K_STEP, steps, acc + m * GROUP);
    for (; m + 2 <= count; m += 2) narrow_rows(2, from, x + m * K_STEP, steps, acc + m * GROUP);
    if (m < count) narrow_rows(1, from, x + m * K_STEP, steps, acc + m * GROUP);
}

BF16_TARGET static void dot_narrow(const uint8_t *from, int64_t next, const Acts *a, int64_t row, int64_t count,
                                   Ask soon, float *acc) {
    for (int group = 0; group < (next ? 2 : 1); group++, from += next)
        for (int64_t m = 0; m < count; m += NARROW_TILE, acc += NARROW_TILE * GROUP)
            narrow_tile(from, a->narrow + (row + m) * a->padded, a->steps, min64(count - m, NARROW_TILE), acc);
}

const Backend packed_avx512_bf16 = {.quantize = packed_avx512_quantize,
                                    .unpack = packed_avx512_unpack,
                                    .dot = packed_vnni_dot,
                                    .direct = packed_vnni_direct,
                                    .direct_rows = DIRECT_ROWS,
                                    .widen = packed_avx512_widen,
                                    .dot_wide = packed_avx512_dot_wide,
                                    .dot_two = dot_two,
                                    .dot_wide_two = packed_avx512_dot_wide_two,
                                    .dot_narrow = dot_narrow};

#endif
