/* Packed products with AVX2. */
#if defined(__x86_64__)

#define VECTOR_BYTES 32
#include "packed_generic.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

TARGET static void quantize(const float *x, int64_t k, const Acts *a, int64_t row) { quantize_generic(x, k, a, row); }
TARGET static void unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to) { unpack_generic(kind, from, k, to); }
TARGET static void widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

TARGET INLINE __m256i four(const int8_t *x) {
    int32_t bytes;
    memcpy(&bytes, x, 4);
    return _mm256_set1_epi32(bytes);
}

/* `rows` rows of x against output rows [col, col + 8) of a tile. The instruction multiplies unsigned by signed bytes
 * and adds pairs in 16 bits: |w| times x with the sign of w, at most 2 * 128 * 127, which fits. */
TARGET INLINE void dot_cols(const int rows, const int halves, const int shift, const Tile *w, const Acts *a, int64_t t,
                            int64_t step, int64_t steps, int64_t col, float *acc) {
    const int quads = 8 / halves;
    const __m256i ones = _mm256_set1_epi16(1);
    const float *xs = a->scale + (t * a->steps + step) * TILE_ROWS, *xsum = a->sum + (t * a->steps + step) * TILE_ROWS;
    __m256 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm256_loadu_ps(acc + m * GROUP + col);
    for (int64_t s = 0; s < steps; s++, xs += TILE_ROWS, xsum += TILE_ROWS) {
        for (int h = 0; h < halves; h++) {
            const int8_t *q = w->at + s * w->step_bytes + h * quads * 64 + col * 4;
            const int8_t *x = a->q + t * TILE_ROWS * a->padded + (step + s) * K_STEP + h * quads * 4;
            __m256i part[TILE_ROWS];
            EACH(m, rows) part[m] = _mm256_setzero_si256();
            for (int g = 0; g < quads; g++) {
                __m256i wv = _mm256_loadu_si256((const __m256i *)(q + g * 64)), size = _mm256_abs_epi8(wv);
                EACH(m, rows) {
                    __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four(x + m * a->padded + g * 4), wv));
                    part[m] = _mm256_add_epi32(part[m], _mm256_madd_epi16(pairs, ones));
                }
            }
            __m256 scale = _mm256_loadu_ps(w->scale + (s * halves + h) * GROUP + col);
            EACH(m, rows) {
                __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(part[m]), _mm256_set1_ps(xs[m]));
                sum[m] = _mm256_fmadd_ps(scaled, scale, sum[m]);
            }
        }
        if (shift)
            EACH(m, rows)
                sum[m] = _mm256_fmadd_ps(_mm256_loadu_ps(w->shift + s * GROUP + col), _mm256_set1_ps(xsum[m]), sum[m]);
    }
    EACH(m, rows) _mm256_storeu_ps(acc + m * GROUP + col, sum[m]);
}

#define DOT_COLS(rows)                           \
    for (int64_t col = 0; col < GROUP; col += 8) \
    dot_cols(rows, HALVES, SHIFT, w, a, t, step, steps, col, acc)

TARGET static void dot(int64_t kind, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps, float *acc) {
    switch (tile_rows_of(a, t)) {
        case 1: WITH_SCALES(kind, DOT_COLS(1)) break;
        case 2: WITH_SCALES(kind, DOT_COLS(2)) break;
        default: WITH_SCALES(kind, DOT_COLS(4)) break;
    }
}

TARGET INLINE void dot_wide_rows(const int rows, const float *w, const float *x, int64_t k, float *acc) {
    __m256 sum[TILE_ROWS][2];
    EACH(m, rows) EACH(v, 2) sum[m][v] = _mm256_loadu_ps(acc + m * GROUP + v * 8);
    for (int64_t i = 0; i < k; i++) {
        __m256 w0 = _mm256_loadu_ps(w + i * GROUP), w1 = _mm256_loadu_ps(w + i * GROUP + 8);
        EACH(m, rows) {
            __m256 xv = _mm256_set1_ps(x[i * TILE_ROWS + m]);
            sum[m][0] = _mm256_fmadd_ps(w0, xv, sum[m][0]);
            sum[m][1] = _mm256_fmadd_ps(w1, xv, sum[m][1]);
        }
    }
    EACH(m, rows) EACH(v, 2) _mm256_storeu_ps(acc + m * GROUP + v * 8, sum[m][v]);
}

TARGET static void dot_wide(const float *w, const Acts *a, int64_t t, int64_t at, int64_t k, float *acc) {
    const float *x = a->wide + (t * a->padded + at) * TILE_ROWS;
    switch (tile_rows_of(a, t)) {
        case 1: dot_wide_rows(1, w, x, k, acc); break;
        case 2: dot_wide_rows(2, w, x, k, acc); break;
        default: dot_wide_rows(4, w, x, k, acc); break;
    }
}

const Backend packed_avx2 = {
    .quantize = quantize, .unpack = unpack, .dot = dot, .widen = widen, .dot_wide = dot_wide};

#endif
