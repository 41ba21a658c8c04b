/* Kinds of two planes with AVX-512 (F, BW, VL): few rows of x straight from the packed bytes, and tiles of a plane.
 *
 * Sizes of numbers are multiplied as unsigned bytes, by x with their sign, which both planes of a code have: pairs of
 * products stay within 2 * 127 * 127. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed/x86/avx512.h"

#define TARGET BW_TARGET

/* The codes of quad g of a step. */
TARGET INLINE __m512i codes_of(const uint8_t *q, const int g) {
    __m512i both = _mm512_loadu_si512(q + g % 4 * 64);
    return _mm512_and_si512(g < 4 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
}

/* Which of them stand for numbers below zero (or for zero). */
TARGET INLINE __mmask64 negative_of(const int kind, const uint8_t *q, const int g) {
    const __m512i both = _mm512_loadu_si512(q + g % 4 * 64), top = _mm512_set1_epi8((char)(g < 4 ? 0x08 : 0x80));
    return kind == P_NF4 ? _mm512_testn_epi8_mask(both, top) : _mm512_test_epi8_mask(both, top);
}

TARGET INLINE __m512i sizes_of(const int table) {
    return _mm512_abs_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)code_tables[table])));
}

/* part + the sums of fours of products. */
TARGET INLINE __m512i add_products(__m512i part, __m512i sizes, __m512i x) {
    return _mm512_add_epi32(part, _mm512_madd_epi16(_mm512_maddubs_epi16(sizes, x), _mm512_set1_epi16(1)));
}

/* Where row m has its scale of a step. */
INLINE int64_t scale_place(const Acts *a, const int m, int64_t step) {
    return (m / TILE_ROWS * a->steps + step) * TILE_ROWS + m % TILE_ROWS;
}

/* Adds a step of codes to the sums of both planes. */
TARGET INLINE void add_codes(const int kind, const int rows, const uint8_t *q, __m512 scale, const Acts *a,
                             int64_t step, __m512 sum[][DIRECT_ROWS]) {
    const __m512i first = sizes_of(formats[kind].table), second = sizes_of(formats[kind].table + 1);
    __m512i part[2][DIRECT_ROWS];
    EACH(m, rows) part[0][m] = part[1][m] = _mm512_setzero_si512();
    EACH(g, 8) {
        const __m512i codes = codes_of(q, g);
        const __m512i high = _mm512_shuffle_epi8(first, codes), low = _mm512_shuffle_epi8(second, codes);
        const __mmask64 negative = negative_of(kind, q, g);
        EACH(m, rows) {
            __m512i four = _mm512_set1_epi32(four_bytes(a->q + m * a->padded + step * K_STEP + g * 4));
            four = _mm512_mask_sub_epi8(four, negative, _mm512_setzero_si512(), four);
            part[0][m] = add_products(part[0][m], high, four);
            part[1][m] = add_products(part[1][m], low, four);
        }
    }
    EACH(p, 2) EACH(m, rows) sum[p][m] = add_scaled(sum[p][m], part[p][m], a->scale[scale_place(a, m, step)], scale);
}

/* Numbers of 16 bits, low and high, side by side. */
TARGET INLINE __m512i paired(__m512i low, __m512i high) { return _mm512_or_si512(low, _mm512_slli_epi32(high, 16)); }

/* The same of Q2_K. small: [2 halves][16 rows], scale, least: of the block. */
TARGET INLINE void add_two_bits(const int rows, const uint8_t *q, const uint8_t *small, __m512 scale, __m512 least,
                                const Acts *a, int64_t step, __m512 sum[][DIRECT_ROWS]) {
    const __m512i low = _mm512_set1_epi32(15), three = _mm512_set1_epi8(3);
    __m512i both[2], part[DIRECT_ROWS];
    EACH(h, 2) both[h] = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(small + h * GROUP)));
    const __m512i minimums = paired(_mm512_srli_epi32(both[0], 4), _mm512_srli_epi32(both[1], 4));
    EACH(h, 2) {
        const __m512i four_quads = _mm512_loadu_si512(q + h * 64), n = _mm512_and_si512(both[h], low);
        const __m512i scales = paired(n, n);
        __m512i pairs[DIRECT_ROWS];
        EACH(g, 4) {
            const __m512i quad = _mm512_and_si512(_mm512_srli_epi16(four_quads, 2 * g), three);
            EACH(m, rows) {
                const int8_t *x = a->q + m * a->padded + step * K_STEP + h * 16 + g * 4;
                __m512i some = _mm512_maddubs_epi16(quad, _mm512_set1_epi32(four_bytes(x)));
                pairs[m] = g == 0 ? some : _mm512_add_epi16(pairs[m], some);
            }
        }
        EACH(m, rows) {
            __m512i whole = _mm512_madd_epi16(pairs[m], scales);
            part[m] = h == 0 ? whole : _mm512_add_epi32(part[m], whole);
        }
    }
    EACH(m, rows) {
        const int64_t at = scale_place(a, m, step);
        const int32_t *sums = a->half_sums + at * 2;
        const uint32_t of_x = ((uint32_t)sums[0] & 0xffff) | (uint32_t)sums[1] << 16;
        sum[0][m] = add_scaled(sum[0][m], part[m], a->scale[at], scale);
        sum[1][m] = add_scaled(sum[1][m], _mm512_madd_epi16(minimums, _mm512_set1_epi32((int)of_x)), a->scale[at], least);
    }
}

TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    __m512 sum[2][DIRECT_ROWS];
    EACH(m, rows) sum[0][m] = sum[1][m] = _mm512_setzero_ps();
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes) {
        const __m512 scale = kind == P_Q2_K ? load_halves(from) : _mm512_loadu_ps((const float *)from);
        const __m512 least = kind == P_Q2_K ? _mm512_sub_ps(_mm512_set1_ps(-0.0f), load_halves(from + 32)) : scale;
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            ask_for_step(kind, q);
            if (kind == P_Q2_K)
                add_two_bits(rows, q, from + 64 + s * 2 * GROUP, scale, least, a, block + s, sum);
            else
                add_codes(kind, rows, q, scale, a, block + s, sum);
        }
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, _mm512_fmadd_ps(sum[0][m], _mm512_set1_ps((float)f.unit), sum[1][m]));
}

TARGET int packed_avx512_direct_planes(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (kind == P_NF4) {
        WITH_ROWS(a->rows, direct_rows(P_NF4, ROWS, from, a, acc))
    } else if (kind == P_FP4) {
        WITH_ROWS(a->rows, direct_rows(P_FP4, ROWS, from, a, acc))
    } else {
        WITH_ROWS(a->rows, direct_rows(P_Q2_K, ROWS, from, a, acc))
    }
    return 1;
}

TARGET void packed_avx512_unpack_plane(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to) {
    unpack_generic(kind, plane, 0, from, k, to);
}

#endif
