/* Float8 with AVX2: one row of x straight from the packed bytes. */
#if defined(__x86_64__)

#define VECTOR_BYTES 32
#include "packed/codes.h"
#include "packed/x86/x86.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

/* Sums of `runs` runs of K_STEP elements, each a chain of its own, for 16 output rows: [runs][2]. x [k][TILE_ROWS]. */
TARGET INLINE void sum_runs(const int runs, const uint8_t *from, const float *x, __m256 sum[][2]) {
    const __m256i mask = _mm256_set1_epi16((short)0xbf80); /* the sign came once more */
    EACH(r, runs) EACH(v, 2) sum[r][v] = _mm256_setzero_ps();
    for (int64_t i = 0; i < K_STEP; i++)
        EACH(r, runs) {
            const int64_t k = r * K_STEP + i;
            if (i % 4 == 0) _mm_prefetch((const char *)from + AHEAD + k * GROUP, _MM_HINT_T0);
            __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(from + k * GROUP)));
            wide = _mm256_and_si256(_mm256_slli_epi16(wide, 7), mask);
            __m256 xv = _mm256_set1_ps(x[k * TILE_ROWS]);
            sum[r][0] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(wide)), xv, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(wide, 1)), xv, sum[r][1]);
        }
}

TARGET INLINE void add_runs(const int runs, const uint8_t *from, const float *x, const float *scale, __m256 *sum) {
    __m256 parts[F8_RUN / K_STEP][2];
    sum_runs(runs, from, x, parts);
    EACH(r, runs) EACH(v, 2) sum[v] = _mm256_fmadd_ps(parts[r][v], _mm256_loadu_ps(scale + v * 8), sum[v]);
}

TARGET int packed_avx2_direct_float8(const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows != 1) return 0;
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t k = 0; k < a->padded; k += F8_RUN, from += GROUP * 4 + F8_RUN * GROUP) {
        const float *scale = (const float *)from, *x = a->wide + k * TILE_ROWS;
        const uint8_t *bytes = from + GROUP * 4;
        if (a->padded - k >= F8_RUN)
            add_runs(F8_RUN / K_STEP, bytes, x, scale, sum);
        else
            for (int64_t i = 0; i < a->padded - k; i += K_STEP)
                add_runs(1, bytes + i * GROUP, x + i * TILE_ROWS, scale, sum);
    }
    EACH(v, 2) _mm256_storeu_ps(acc + v * 8, sum[v]);
    return 1;
}

#endif
