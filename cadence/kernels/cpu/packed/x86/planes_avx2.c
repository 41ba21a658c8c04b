/* Kinds of two planes with AVX2: one row of x straight from the packed bytes.
 *
 * Sizes of numbers are multiplied as unsigned bytes, by x with their sign, which both planes of a code have: pairs of
 * products stay within 2 * 127 * 127. */
#if defined(__x86_64__)

#define VECTOR_BYTES 32
#include "packed/codes.h"
#include "packed/x86/x86.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

/* The tables of a kind: sizes in both planes, and signs. */
typedef struct {
    __m256i sizes[2], signs;
} Tables;

TARGET INLINE Tables tables_of(const int kind) {
    const __m128i first = _mm_loadu_si128((const __m128i *)code_tables[formats[kind].table]);
    const __m128i second = _mm_loadu_si128((const __m128i *)code_tables[formats[kind].table + 1]);
    const __m128i signs = _mm_or_si128(_mm_or_si128(first, second), _mm_set1_epi8(1)); /* of the top bits */
    return (Tables){{_mm256_broadcastsi128_si256(_mm_abs_epi8(first)), _mm256_broadcastsi128_si256(_mm_abs_epi8(second))},
                    _mm256_broadcastsi128_si256(signs)};
}

TARGET INLINE __m256i add_products(__m256i part, __m256i sizes, __m256i x) {
    return _mm256_add_epi32(part, _mm256_madd_epi16(_mm256_maddubs_epi16(sizes, x), _mm256_set1_epi16(1)));
}

TARGET INLINE __m256 add_scaled(__m256 sum, __m256i part, float xs, __m256 scale) {
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(part), _mm256_set1_ps(xs)), scale, sum);
}

/* Adds a step of codes to the sums of both planes, of the 8 output rows whose codes q begins with. */
TARGET INLINE void add_codes(const Tables *t, const uint8_t *q, __m256 scale, const Acts *a, int64_t step,
                             __m256 *sum) {
    __m256i part[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    EACH(g, 8) {
        __m256i both = _mm256_loadu_si256((const __m256i *)(q + g % 4 * 64));
        __m256i codes = _mm256_and_si256(g < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
        __m256i four = _mm256_set1_epi32(four_bytes(a->q + step * K_STEP + g * 4));
        four = _mm256_sign_epi8(four, _mm256_shuffle_epi8(t->signs, codes));
        EACH(p, 2) part[p] = add_products(part[p], _mm256_shuffle_epi8(t->sizes[p], codes), four);
    }
    EACH(p, 2) sum[p] = add_scaled(sum[p], part[p], a->scale[step * TILE_ROWS], scale);
}

/* Numbers of 16 bits, low and high, side by side. */
TARGET INLINE __m256i paired(__m256i low, __m256i high) { return _mm256_or_si256(low, _mm256_slli_epi32(high, 16)); }

/* The same of Q2_K. small: [2 halves][16 rows], from the first of these rows on. */
TARGET INLINE void add_two_bits(const uint8_t *q, const uint8_t *small, __m256 scale, __m256 least, const Acts *a,
                                int64_t step, __m256 *sum) {
    const __m256i low = _mm256_set1_epi32(15), three = _mm256_set1_epi8(3);
    const int64_t at = step * TILE_ROWS;
    const uint32_t of_x = ((uint32_t)a->half_sums[at * 2] & 0xffff) | (uint32_t)a->half_sums[at * 2 + 1] << 16;
    __m256i both[2], part = _mm256_setzero_si256();
    EACH(h, 2) {
        both[h] = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(small + h * GROUP)));
        __m256i quads = _mm256_loadu_si256((const __m256i *)(q + h * 64)), pairs = _mm256_setzero_si256();
        EACH(g, 4) {
            __m256i x = _mm256_set1_epi32(four_bytes(a->q + step * K_STEP + h * 16 + g * 4));
            __m256i quad = _mm256_and_si256(_mm256_srli_epi16(quads, 2 * g), three);
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(quad, x));
        }
        const __m256i n = _mm256_and_si256(both[h], low);
        part = _mm256_add_epi32(part, _mm256_madd_epi16(pairs, paired(n, n)));
    }
    const __m256i minimums = paired(_mm256_srli_epi32(both[0], 4), _mm256_srli_epi32(both[1], 4));
    sum[0] = add_scaled(sum[0], part, a->scale[at], scale);
    sum[1] = add_scaled(sum[1], _mm256_madd_epi16(minimums, _mm256_set1_epi32((int)of_x)), a->scale[at], least);
}

TARGET INLINE __m256 halves_at(const uint8_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

TARGET INLINE void direct_row(const int kind, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    const Tables tables = tables_of(kind == P_Q2_K ? P_NF4 : kind);
    __m256 sum[2][2];
    EACH(v, 2) sum[v][0] = sum[v][1] = _mm256_setzero_ps();
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            ask_for_step(kind, q);
            EACH(v, 2) {
                if (kind != P_Q2_K) {
                    add_codes(&tables, q + v * 32, _mm256_loadu_ps((const float *)from + v * 8), a, block + s, sum[v]);
                    continue;
                }
                const __m256 least = _mm256_xor_ps(halves_at(from + 32 + v * 16), _mm256_set1_ps(-0.0f));
                add_two_bits(q + v * 32, from + 64 + s * 2 * GROUP + v * 8, halves_at(from + v * 16), least, a,
                             block + s, sum[v]);
            }
        }
    EACH(v, 2) _mm256_storeu_ps(acc + v * 8, _mm256_fmadd_ps(sum[v][0], _mm256_set1_ps((float)f.unit), sum[v][1]));
}

#define DIRECT(kind)                    \
    case kind:                          \
        direct_row(kind, from, a, acc); \
        return 1;

TARGET int packed_avx2_direct_planes(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows != 1) return 0;
    switch (kind) {
        DIRECT(P_NF4)
        DIRECT(P_FP4)
        DIRECT(P_Q2_K)
        default: return 0;
    }
}

#endif
