/* Packed products with AVX-512: what its instruction sets share. Functions without "vnni" in their names need no more
 * than F, BW and VL. */
#ifndef CADENCE_PACKED_AVX512_H
#define CADENCE_PACKED_AVX512_H

#include "packed/x86/x86.h"

#define DIRECT_ROWS 8

/* Runs `body` with ROWS the rows that are multiplied together where there are `rows`, up to DIRECT_ROWS, a constant. */
#define WITH_ROWS(rows, body)                                  \
    if ((rows) == 1) { enum { ROWS = 1 }; body; }              \
    else if ((rows) == 2) { enum { ROWS = 2 }; body; }         \
    else if ((rows) <= 4) { enum { ROWS = 4 }; body; }         \
    else { enum { ROWS = DIRECT_ROWS }; body; }

#define BW_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))

void packed_avx512_quantize(const float *x, int64_t k, const Acts *a, int64_t row);
/* Quants of up to 6 bits as unsigned bytes, without their zero subtracted. */
void packed_avx512_unpack(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to);
/* The same of kinds of two planes, and Backend.direct of those. */
void packed_avx512_unpack_plane(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to);
int packed_avx512_direct_planes(int64_t kind, const uint8_t *from, const Acts *a, float *acc);
void packed_avx512_widen(const uint8_t *from, int64_t k, float *to);
void packed_avx512_dot_wide(const float *w, const Stretch *x);
void packed_avx512_dot_wide_two(const float *w, int64_t next, const Stretch *x);
/* Backend.direct of the kinds of floats. */
int packed_avx512_direct_floats(int64_t kind, const uint8_t *from, const Acts *a, float *acc);

/* The instruction multiplies unsigned bytes, the weights without their zero subtracted, by signed ones, x. What that is
 * too much, zero * sum of x, is a number of the row and half of a step: sums of integers begin at its negative. */
void packed_vnni_dot(int64_t kind, const Tile *w, const Stretch *x);
int packed_vnni_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc);

/* Bits of `mask` from a, the others from b. */
BW_TARGET INLINE __m512i merged(const int mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)mask), a, b, 0xca);
}

/* The quants of a part of a step, in their bytes' low bits (and others' bits above): of 5 bits quads 5-7, of 6 bits the
 * fourth of a half. Bytes are shifted in pairs; what comes from a neighbour is dropped. */
BW_TARGET INLINE __m512i fifths(const uint8_t *q, const int g) {
    __m512i upper = _mm512_slli_epi16(_mm512_loadu_si512(q + (g - 5) * 64), 2);
    if (g < 7) return merged(28, upper, _mm512_srli_epi16(_mm512_loadu_si512(q + (g - 2) * 64), 1));
    __m512i middle = _mm512_slli_epi16(_mm512_loadu_si512(q + 192), 1);
    return merged(28, upper, merged(2, middle, _mm512_loadu_si512(q + 256)));
}

BW_TARGET INLINE __m512i fourth(const uint8_t *q) {
    __m512i upper = _mm512_slli_epi16(_mm512_loadu_si512(q), 4), middle = _mm512_slli_epi16(_mm512_loadu_si512(q + 64), 2);
    return merged(48, upper, merged(12, middle, _mm512_loadu_si512(q + 128)));
}

/* Quad g of a step, as unsigned bytes. */
BW_TARGET INLINE __m512i load_quad(const int kind, const uint8_t *q, const int g) {
    const int bits = formats[kind].bits;
    __m512i found;
    if (bits == 8) return _mm512_xor_si512(_mm512_loadu_si512(q + g * 64), _mm512_set1_epi8((char)0x80));
    if (bits == 4)
        found = g < 4 ? _mm512_loadu_si512(q + g * 64) : _mm512_srli_epi16(_mm512_loadu_si512(q + (g - 4) * 64), 4);
    else if (bits == 5)
        found = g < 5 ? _mm512_srli_epi16(_mm512_loadu_si512(q + g * 64), 3) : fifths(q, g);
    else
        found = g % 4 < 3 ? _mm512_srli_epi16(_mm512_loadu_si512(q + (g / 4 * 3 + g % 4) * 64), 2) : fourth(q + g / 4 * 192);
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1)), inverted = _mm512_set1_epi8((char)inverted_bit(kind));
    return _mm512_ternarylogic_epi32(found, mask, inverted, 0x6a); /* found & mask ^ inverted */
}

/* Quad g of a step of codes, looked up in a table, of signed or unsigned bytes as that is. */
BW_TARGET INLINE __m512i load_codes(__m512i table, const uint8_t *q, const int g) {
    __m512i both = _mm512_loadu_si512(q + g % 4 * 64);
    if (g >= 4) both = _mm512_srli_epi16(both, 4);
    return _mm512_shuffle_epi8(table, _mm512_and_si512(both, _mm512_set1_epi8(15)));
}

/* The table of a kind of codes in every quarter. */
BW_TARGET INLINE __m512i load_table(const int kind, const uint8_t *header) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table_of(kind, header)));
}

BW_TARGET INLINE __m512 load_halves(const uint8_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

/* Scales of half h, and shifts, of step s of a block: its own, or small integers times the block's. */
BW_TARGET INLINE __m512 load_scale(const int kind, const uint8_t *header, int64_t s, const int h) {
    const int lifted = has_small_scales(kind), halves = formats[kind].halves;
    if (kind == P_Q8_F || kind == P_T4_F) return _mm512_loadu_ps((const float *)header + h * GROUP);
    if (kind == P_MXFP4) {
        __m512i top = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)header)), 23);
        top = _mm512_max_epu32(top, _mm512_set1_epi32(0x400000));
        return _mm512_mul_ps(_mm512_castsi512_ps(top), _mm512_set1_ps(0.5f));
    }
    if (formats[kind].block == K_STEP) return load_halves(header);
    const __m128i *small = (const __m128i *)(header + (lifted ? 32 + (s * halves + h) * GROUP : 64 + s * GROUP));
    __m512i n = _mm512_cvtepu8_epi32(_mm_loadu_si128(small));
    if (lifted) n = _mm512_sub_epi32(n, _mm512_set1_epi32(128));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(n), load_halves(header));
}

BW_TARGET INLINE __m512 load_shift(const int kind, const uint8_t *header, int64_t s) {
    if (has_zeros(kind)) return _mm512_mul_ps(load_halves(header + 32), load_halves(header));
    if (formats[kind].block == K_STEP) return load_halves(header + 32);
    __m512i n = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(header + 64 + (8 + s) * GROUP)));
    __m512 least = _mm512_mul_ps(_mm512_cvtepi32_ps(n), load_halves(header + 32));
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(least), _mm512_set1_epi32((int)0x80000000)));
}

BW_TARGET INLINE __m512 add_scaled(__m512 sum, __m512i part, float xs, __m512 scale) {
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part), _mm512_set1_ps(xs)), scale, sum);
}

#endif
