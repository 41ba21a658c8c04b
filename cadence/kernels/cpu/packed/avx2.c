/* Packed products with AVX2. */
#if defined(__x86_64__)

#define VECTOR_BYTES 32
#include "packed/codes.h"
#include "packed/x86.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

TARGET static void quantize(const float *x, int64_t k, const Acts *a, int64_t row) { quantize_generic(x, k, a, row); }
TARGET static void unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to) {
    unpack_generic(kind, 0, from, k, to);
}
TARGET static void widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

/* ---- integers ----
 *
 * The instruction multiplies unsigned by signed bytes and adds pairs in 16 bits. Quants of up to 6 bits are unsigned, and
 * the pairs of as many quads as cannot overflow are added in 16 bits too. Bytes are signed: |w| times x with the sign of
 * w, at most 2 * 128 * 127. */
INLINE int quads_in_16_bits(const int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }

/* The pairs of one quad of 8 output rows. */
TARGET INLINE __m256i pairs_of(const int bits, __m256i w, int32_t four) {
    __m256i x = _mm256_set1_epi32(four);
    if (bits == 8) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* `rows` rows of tile t of x against output rows [col, col + 8) of a group. */
TARGET INLINE void dot_cols(const int kind, const int rows, const Tile *w, const Stretch *x, int64_t t, int64_t col,
                            float *acc) {
    const Format f = formats[kind];
    const Acts *a = x->acts;
    const int quads = 8 / f.halves, run = quads_in_16_bits(f.bits) < quads ? quads_in_16_bits(f.bits) : quads;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm256_loadu_ps(acc + m * GROUP + col);
    for (int64_t s = 0; s < x->count; s++) {
        int64_t at = (t * a->steps + x->at + s) * TILE_ROWS;
        EACH(h, f.halves) {
            const int8_t *q = w->at + s * w->step_bytes + h * quads * 64 + col * 4;
            const int8_t *from = a->q + t * TILE_ROWS * a->padded + (x->at + s) * K_STEP + h * quads * 4;
            __m256i part[TILE_ROWS];
            EACH(m, rows) part[m] = _mm256_setzero_si256();
            EACH(first, quads / run) {
                __m256i pairs[TILE_ROWS];
                EACH(g, run) {
                    const int quad = first * run + g;
                    __m256i wv = _mm256_loadu_si256((const __m256i *)(q + quad * 64));
                    EACH(m, rows) {
                        __m256i some = pairs_of(f.bits, wv, four_bytes(from + m * a->padded + quad * 4));
                        pairs[m] = g == 0 ? some : _mm256_add_epi16(pairs[m], some);
                    }
                }
                EACH(m, rows) part[m] = _mm256_add_epi32(part[m], _mm256_madd_epi16(pairs[m], ones));
            }
            __m256 scale = _mm256_loadu_ps(w->scale + (s * f.halves + h) * GROUP + col);
            EACH(m, rows) {
                if (f.bits < 8 && zero_of(kind))
                    part[m] = _mm256_sub_epi32(part[m], _mm256_set1_epi32(excess_of(kind, a->half_sums + (at + m) * 2, h)));
                __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(part[m]), _mm256_set1_ps(a->scale[at + m]));
                sum[m] = _mm256_fmadd_ps(scaled, scale, sum[m]);
            }
        }
        if (f.shift) {
            __m256 shift = _mm256_loadu_ps(w->shift + s * GROUP + col);
            EACH(m, rows) sum[m] = _mm256_fmadd_ps(shift, _mm256_set1_ps(a->sum[at + m]), sum[m]);
        }
    }
    EACH(m, rows) _mm256_storeu_ps(acc + m * GROUP + col, sum[m]);
}

TARGET static void dot(int64_t kind, const Tile *w, const Stretch *x) {
    FOR_TILES(x, WITH_KIND(kind, dot_cols(KIND, ROWS, w, x, T, 0, ACC); dot_cols(KIND, ROWS, w, x, T, 8, ACC)))
}

/* ---- floats ---- */

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

TARGET static void dot_wide(const float *w, const Stretch *x) {
    const Acts *a = x->acts;
    FOR_TILES(x, dot_wide_rows(ROWS, w, a->wide + (T * a->padded + x->at) * TILE_ROWS, x->count, ACC))
}

/* ---- one row, straight from the packed bytes ---- */

TARGET INLINE __m256 halves_at(const uint8_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

/* 4-bit quants of short blocks: output rows [col, col + 8). */
TARGET INLINE void direct_cols(const int kind, const uint8_t *from, const Acts *a, int64_t col, float *acc) {
    const Format f = formats[kind];
    const __m256i half = _mm256_set1_epi8(15), signs = _mm256_set1_epi8((char)0x88), ones = _mm256_set1_epi16(1);
    __m256 sum = _mm256_setzero_ps();
    for (int64_t s = 0; s < a->steps; s++, from += f.header + f.step_bytes) {
        const int8_t *x = a->q + s * K_STEP;
        __m256i pairs = _mm256_setzero_si256();
        EACH(c, 4) {
            __m256i both = _mm256_loadu_si256((const __m256i *)(from + f.header + c * 64 + col * 4));
            if (kind == P_Q4_0) both = _mm256_xor_si256(both, signs);
            __m256i low = _mm256_and_si256(both, half), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), half);
            pairs = _mm256_add_epi16(pairs, pairs_of(4, low, four_bytes(x + c * 4)));
            pairs = _mm256_add_epi16(pairs, pairs_of(4, high, four_bytes(x + c * 4 + 16)));
        }
        __m256i part = _mm256_madd_epi16(pairs, ones);
        if (zero_of(kind)) part = _mm256_sub_epi32(part, _mm256_set1_epi32(excess_of(kind, a->half_sums + s * TILE_ROWS * 2, 0)));
        __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(part), _mm256_set1_ps(a->scale[s * TILE_ROWS]));
        __m256 scale = halves_at(from + col * 2);
        sum = _mm256_fmadd_ps(scaled, scale, sum);
        if (!f.shift) continue;
        __m256 shift = halves_at(from + 32 + col * 2);
        if (kind == P_Q4_Z) shift = _mm256_mul_ps(shift, scale);
        sum = _mm256_fmadd_ps(shift, _mm256_set1_ps(a->sum[s * TILE_ROWS]), sum);
    }
    _mm256_storeu_ps(acc + col, sum);
}

TARGET INLINE void direct_bf16(const uint8_t *from, const Acts *a, float *acc) {
    const __m256i top = _mm256_set1_epi32((int)0xffff0000);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const float *x = a->wide;
    for (int64_t i = 0; i < a->padded; i += 2, from += 64, x += 2 * TILE_ROWS)
        EACH(v, 2) {
            __m256i both = _mm256_loadu_si256((const __m256i *)(from + v * 32));
            __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(both, top));
            sum[v] = _mm256_fmadd_ps(even, _mm256_set1_ps(x[0]), sum[v]);
            sum[v] = _mm256_fmadd_ps(odd, _mm256_set1_ps(x[TILE_ROWS]), sum[v]);
        }
    EACH(v, 2) _mm256_storeu_ps(acc + v * 8, sum[v]);
}

TARGET INLINE void direct_f16(const uint8_t *from, const Acts *a, float *acc) {
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t i = 0; i < a->padded; i++, from += 32)
        EACH(v, 2) sum[v] = _mm256_fmadd_ps(halves_at(from + v * 16), _mm256_set1_ps(a->wide[i * TILE_ROWS]), sum[v]);
    EACH(v, 2) _mm256_storeu_ps(acc + v * 8, sum[v]);
}

TARGET static int direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (kind == P_F8) return packed_avx2_direct_float8(from, a, acc);
    if (!is_float_kind(kind) && formats[kind].table) return packed_avx2_direct_codes(kind, from, a, acc);
    const int is_short = kind == P_Q4_0 || kind == P_Q4_1 || kind == P_Q4_Z;
    if (a->rows != 1 || (!is_short && kind != P_BF16 && kind != P_F16)) return 0;
    if (kind == P_BF16)
        direct_bf16(from, a, acc);
    else if (kind == P_F16)
        direct_f16(from, a, acc);
    else if (kind == P_Q4_0)
        for (int64_t col = 0; col < GROUP; col += 8) direct_cols(P_Q4_0, from, a, col, acc);
    else if (kind == P_Q4_Z)
        for (int64_t col = 0; col < GROUP; col += 8) direct_cols(P_Q4_Z, from, a, col, acc);
    else
        for (int64_t col = 0; col < GROUP; col += 8) direct_cols(P_Q4_1, from, a, col, acc);
    return 1;
}

const Backend packed_avx2 = {.quantize = quantize,
                             .unpack = unpack,
                             .dot = dot,
                             .direct = direct,
                             .direct_rows = TILE_ROWS,
                             .widen = widen,
                             .dot_wide = dot_wide};

#endif
