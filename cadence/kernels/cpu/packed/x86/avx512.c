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

TARGET INLINE void dot_rows(const int kind, const int rows, const Tile *w, const Stretch *x, int64_t t, float *acc) {
    const Format f = formats[kind];
    const Acts *a = x->acts;
    const int quads = 8 / f.halves;
    const __m512i top = _mm512_set1_epi8((char)0x80);
    __m512 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t s = 0; s < x->count; s++) {
        int64_t at = (t * a->steps + x->at + s) * TILE_ROWS;
        const int8_t *row = a->q + t * TILE_ROWS * a->padded + (x->at + s) * K_STEP;
        EACH(h, f.halves) {
            __m512i part[TILE_ROWS];
            EACH(m, rows) part[m] = begin_sum(kind, a->half_sums + (at + m) * 2, h);
            EACH(g, quads) {
                __m512i wv = _mm512_loadu_si512(w->at + s * w->step_bytes + (h * quads + g) * 64);
                if (f.bits == 8) wv = _mm512_xor_si512(wv, top);
                EACH(m, rows) {
                    int32_t four = four_bytes(row + m * a->padded + (h * quads + g) * 4);
                    part[m] = _mm512_dpbusd_epi32(part[m], wv, _mm512_set1_epi32(four));
                }
            }
            __m512 scale = _mm512_load_ps(w->scale + (s * f.halves + h) * GROUP);
            EACH(m, rows) sum[m] = add_scaled(sum[m], part[m], a->scale[at + m], scale);
        }
        if (f.shift) {
            __m512 shift = _mm512_load_ps(w->shift + s * GROUP);
            EACH(m, rows) sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[at + m]), sum[m]);
        }
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET void packed_vnni_dot(int64_t kind, const Tile *w, const Stretch *x) {
    FOR_TILES(x, WITH_KIND(kind, dot_rows(KIND, ROWS, w, x, T, ACC)))
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
                             .dot_wide = packed_avx512_dot_wide};

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
                                    .dot_narrow = dot_narrow};

#endif
