/* Weights of codes with AVX2: one row of x straight from the packed bytes. */
#if defined(__x86_64__)

#define VECTOR_BYTES 32
#include "packed/codes.h"
#include "packed/x86/x86.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

/* Scales of half h of step s for output rows [col, col + 8). */
TARGET INLINE __m256 scales_at(const int kind, const uint8_t *header, int64_t s, const int h, int64_t col) {
    if (kind == P_T4_F) return _mm256_loadu_ps((const float *)header + h * GROUP + col);
    if (kind == P_MXFP4) {
        __m256i exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(header + col)));
        __m256i bits = _mm256_max_epu32(_mm256_slli_epi32(exponents, 23), _mm256_set1_epi32(0x400000));
        return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
    }
    __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(header + col * 2)));
    if (kind == P_IQ4_NL) return d;
    __m256i n = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(header + 32 + s * GROUP + col)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(n, _mm256_set1_epi32(128))), d);
}

/* Pairs of products of one quad. E2M1: twelve is added to numbers, which makes them unsigned, and so small that pairs of
 * four quads fit 16 bits; all others: their sizes times x with their signs. */
#define FP4_ZERO 12
TARGET INLINE __m256i pairs_of(const int is_fp4, __m256i w, int32_t four) {
    __m256i x = _mm256_set1_epi32(four);
    return is_fp4 ? _mm256_maddubs_epi16(w, x) : _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

/* The integer sums of half h of a step, or of all of it, for output rows from the one whose quants q begins with. */
TARGET INLINE __m256i sums_of(const int kind, const int h, __m256i table, const uint8_t *q, const int8_t *x) {
    const int is_fp4 = kind == P_MXFP4;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256(), pairs = sum;
    EACH(i, 8 / formats[kind].halves) {
        const int quad = h * 4 + i;
        __m256i both = _mm256_loadu_si256((const __m256i *)(q + quad % 4 * 64));
        if (quad >= 4) both = _mm256_srli_epi16(both, 4);
        __m256i w = _mm256_shuffle_epi8(table, _mm256_and_si256(both, low));
        __m256i some = pairs_of(is_fp4, w, four_bytes(x + quad * 4));
        pairs = is_fp4 && i % 4 ? _mm256_add_epi16(pairs, some) : some;
        if (!is_fp4 || i % 4 == 3) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}

/* Adds output rows [col, col + 8) of half h of step s of a block, q: of that step. */
TARGET INLINE __m256 add_half(const int kind, const uint8_t *header, int64_t s, const int h, const uint8_t *q,
                              __m256i table, const Acts *a, int64_t step, int64_t col, __m256 sum) {
    const int64_t at = step * TILE_ROWS;
    const int32_t *x_sums = a->half_sums + at * 2;
    __m256i part = sums_of(kind, h, table, q + col * 4, a->q + step * K_STEP);
    if (kind == P_MXFP4) part = _mm256_sub_epi32(part, _mm256_set1_epi32(FP4_ZERO * (x_sums[0] + x_sums[1])));
    __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(part), _mm256_set1_ps(a->scale[at]));
    return _mm256_fmadd_ps(scaled, scales_at(kind, header, s, h, col), sum);
}

TARGET INLINE void direct_row(const int kind, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table_of(kind, from)));
    if (kind == P_MXFP4) table = _mm256_add_epi8(table, _mm256_set1_epi8(FP4_ZERO));
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            EACH(line, (f.step_bytes + f.header * K_STEP / f.block + 63) / 64)
                _mm_prefetch((const char *)q + AHEAD + line * 64, _MM_HINT_T0);
            EACH(h, f.halves) EACH(v, 2)
                sum[v] = add_half(kind, from, s, h, q, table, a, block + s, v * 8, sum[v]);
        }
    EACH(v, 2) _mm256_storeu_ps(acc + v * 8, sum[v]);
}

#define DIRECT(kind)                    \
    case kind:                          \
        direct_row(kind, from, a, acc); \
        return 1;

TARGET int packed_avx2_direct_codes(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows != 1) return 0;
    switch (kind) {
        DIRECT(P_IQ4_NL)
        DIRECT(P_IQ4_XS)
        DIRECT(P_MXFP4)
        DIRECT(P_T4_F)
        default: return 0;
    }
}

#endif
