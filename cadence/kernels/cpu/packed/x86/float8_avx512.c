/* Float8 with AVX-512 (F and BW): one row of x straight from the packed bytes. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed/codes.h"
#include "packed/x86/x86.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))

/* Sums of `runs` runs of K_STEP elements, each a chain of its own, for 16 output rows. x [k][TILE_ROWS]. */
TARGET INLINE void sum_runs(const int runs, const uint8_t *from, const float *x, __m512 *sum) {
    const __m512i mask = _mm512_set1_epi16((short)0xbf80); /* the sign came once more */
    EACH(r, runs) sum[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < K_STEP; i += 2)
        EACH(r, runs) {
            const int64_t k = r * K_STEP + i;
            if (i % 4 == 0) _mm_prefetch((const char *)from + AHEAD + k * GROUP, _MM_HINT_T0);
            __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(from + k * GROUP)));
            wide = _mm512_and_si512(_mm512_slli_epi16(wide, 7), mask);
            __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(wide));
            __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(wide, 1));
            sum[r] = _mm512_fmadd_ps(first, _mm512_set1_ps(x[k * TILE_ROWS]), sum[r]);
            sum[r] = _mm512_fmadd_ps(second, _mm512_set1_ps(x[(k + 1) * TILE_ROWS]), sum[r]);
        }
}

TARGET INLINE __m512 add_runs(const int runs, const uint8_t *from, const float *x, const uint8_t *scales, __m512 sum) {
    const __m512 scale = _mm512_loadu_ps(scales);
    __m512 parts[F8_RUN / K_STEP];
    sum_runs(runs, from, x, parts);
    EACH(r, runs) sum = _mm512_fmadd_ps(parts[r], scale, sum);
    return sum;
}

TARGET int packed_avx512_direct_float8(const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows != 1) return 0;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < a->padded; k += F8_RUN, from += GROUP * 4 + F8_RUN * GROUP) {
        const uint8_t *bytes = from + GROUP * 4;
        const float *x = a->wide + k * TILE_ROWS;
        if (a->padded - k >= F8_RUN)
            sum = add_runs(F8_RUN / K_STEP, bytes, x, from, sum);
        else
            for (int64_t i = 0; i < a->padded - k; i += K_STEP)
                sum = add_runs(1, bytes + i * GROUP, x + i * TILE_ROWS, from, sum);
    }
    _mm512_storeu_ps(acc, sum);
    return 1;
}

#endif
