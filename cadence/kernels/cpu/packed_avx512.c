/* Packed products with AVX-512: VNNI for integers, and its bf16 products where there are any. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed_avx512.h"
#include "packed_generic.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))
#define BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

TARGET void packed_vnni_quantize(const float *x, int64_t k, const Acts *a, int64_t row) {
    quantize_generic(x, k, a, row);
    int8_t *q = a->q + row * a->padded;
    for (int64_t i = 0; i < a->padded; i++) q[i] ^= (int8_t)-128;
}

TARGET void packed_vnni_unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to) {
    unpack_generic(kind, from, k, to);
    const int halves = formats[kind].halves, quads = 8 / halves;
    const __m512i all = _mm512_set1_epi8((char)128);
    for (int64_t s = 0; s < k / K_STEP; s++)
        for (int h = 0; h < halves; h++) {
            const int8_t *q = to->at + s * to->step_bytes + h * quads * 64;
            __m512i sum = _mm512_setzero_si512();
            for (int g = 0; g < quads; g++) sum = _mm512_dpbusd_epi32(sum, all, _mm512_loadu_si512(q + g * 64));
            _mm512_storeu_si512(to->fix + (s * halves + h) * GROUP, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
}

TARGET void packed_vnni_widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

TARGET INLINE __m512i four(const int8_t *x) {
    int32_t bytes;
    memcpy(&bytes, x, 4);
    return _mm512_set1_epi32(bytes);
}

TARGET INLINE void dot_rows(const int rows, const int halves, const int shift, const Tile *w, const Acts *a, int64_t t,
                            int64_t step, int64_t steps, float *acc) {
    const int quads = 8 / halves;
    const float *xs = a->scale + (t * a->steps + step) * TILE_ROWS, *xsum = a->sum + (t * a->steps + step) * TILE_ROWS;
    __m512 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t s = 0; s < steps; s++, xs += TILE_ROWS, xsum += TILE_ROWS) {
        EACH(h, halves) {
            const int8_t *q = w->at + s * w->step_bytes + h * quads * 64;
            const int8_t *x = a->q + t * TILE_ROWS * a->padded + (step + s) * K_STEP + h * quads * 4;
            __m512i part[TILE_ROWS];
            EACH(m, rows) part[m] = _mm512_loadu_si512(w->fix + (s * halves + h) * GROUP);
            EACH(g, quads) {
                __m512i wv = _mm512_loadu_si512(q + g * 64);
                EACH(m, rows) part[m] = _mm512_dpbusd_epi32(part[m], four(x + m * a->padded + g * 4), wv);
            }
            __m512 scale = _mm512_loadu_ps(w->scale + (s * halves + h) * GROUP);
            EACH(m, rows) {
                __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(part[m]), _mm512_set1_ps(xs[m]));
                sum[m] = _mm512_fmadd_ps(scaled, scale, sum[m]);
            }
        }
        if (shift)
            EACH(m, rows)
                sum[m] = _mm512_fmadd_ps(_mm512_loadu_ps(w->shift + s * GROUP), _mm512_set1_ps(xsum[m]), sum[m]);
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET void packed_vnni_dot(int64_t kind, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps,
                            float *acc) {
    switch (tile_rows_of(a, t)) {
        case 1: WITH_SCALES(kind, dot_rows(1, HALVES, SHIFT, w, a, t, step, steps, acc)) break;
        case 2: WITH_SCALES(kind, dot_rows(2, HALVES, SHIFT, w, a, t, step, steps, acc)) break;
        default: WITH_SCALES(kind, dot_rows(4, HALVES, SHIFT, w, a, t, step, steps, acc)) break;
    }
}

TARGET INLINE void dot_wide_rows(const int rows, const float *w, const float *x, int64_t k, float *acc) {
    __m512 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t i = 0; i < k; i++) {
        __m512 wv = _mm512_loadu_ps(w + i * GROUP);
        EACH(m, rows) sum[m] = _mm512_fmadd_ps(wv, _mm512_set1_ps(x[i * TILE_ROWS + m]), sum[m]);
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET void packed_vnni_dot_wide(const float *w, const Acts *a, int64_t t, int64_t at, int64_t k, float *acc) {
    const float *x = a->wide + (t * a->padded + at) * TILE_ROWS;
    switch (tile_rows_of(a, t)) {
        case 1: dot_wide_rows(1, w, x, k, acc); break;
        case 2: dot_wide_rows(2, w, x, k, acc); break;
        default: dot_wide_rows(4, w, x, k, acc); break;
    }
}

const Backend packed_vnni = {.quantize = packed_vnni_quantize,
                             .unpack = packed_vnni_unpack,
                             .dot = packed_vnni_dot,
                             .widen = packed_vnni_widen,
                             .dot_wide = packed_vnni_dot_wide};

/* ---- bf16 times bf16 ---- */

/* Packed pairs along K as they lie, one chain of pairs per output. */
BF16_TARGET INLINE void narrow_rows(const int rows, const uint8_t *from, const uint16_t *x, int64_t padded,
                                    float *acc) {
    __m512 sum[4];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t i = 0; i < padded / 2; i++) {
        __m512i w = _mm512_loadu_si512(from + i * 64);
        EACH(m, rows) {
            __m512i pair = four((const int8_t *)(x + m * padded + i * 2));
            sum[m] = _mm512_dpbf16_ps(sum[m], (__m512bh)w, (__m512bh)pair);
        }
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

BF16_TARGET static void dot_narrow(const uint8_t *from, const Acts *a, int64_t row, int64_t count, float *acc) {
    const uint16_t *x = a->narrow + row * a->padded;
    int64_t m = 0;
    for (; m + 4 <= count; m += 4) narrow_rows(4, from, x + m * a->padded, a->padded, acc + m * GROUP);
    for (; m + 2 <= count; m += 2) narrow_rows(2, from, x + m * a->padded, a->padded, acc + m * GROUP);
    if (m < count) narrow_rows(1, from, x + m * a->padded, a->padded, acc + m * GROUP);
}

const Backend packed_avx512_bf16 = {.quantize = packed_vnni_quantize,
                                    .unpack = packed_vnni_unpack,
                                    .dot = packed_vnni_dot,
                                    .widen = packed_vnni_widen,
                                    .dot_wide = packed_vnni_dot_wide,
                                    .dot_narrow = dot_narrow};

#endif
