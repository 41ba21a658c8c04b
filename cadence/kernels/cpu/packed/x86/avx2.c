/* Packed products with AVX2. */
#if defined(__x86_64__)

#define VECTOR_BYTES 32
#include "packed/codes.h"
#include "packed/x86/x86.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

TARGET static void quantize(const float *x, int64_t k, const Acts *a, int64_t row) { quantize_generic(x, k, a, row); }
TARGET static void unpack(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to) {
    unpack_generic(kind, plane, 0, from, k, to);
}
TARGET static void widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

/* ---- integers ----
 *
 * In vectors of 8 output rows, from `col` on: half of a group. */

TARGET INLINE __m256i load_bytes(const uint8_t *q) { return _mm256_loadu_si256((const __m256i *)q); }

/* Bytes of q to the right (or, n < 0, to the left) by n bits, without those that `mask` leaves out: some come from a
 * neighbour. */
TARGET INLINE __m256i shifted(const uint8_t *q, const int n, const int mask) {
    __m256i both = load_bytes(q), moved = n < 0 ? _mm256_slli_epi16(both, -n) : _mm256_srli_epi16(both, n);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* Quad g of a step, as unsigned bytes: quad_of for these vectors. */
TARGET INLINE __m256i packed_quad(const int kind, const uint8_t *q, const int g) {
    const int bits = formats[kind].bits;
    __m256i found;
    if (bits == 4) {
        found = shifted(q + g % 4 * 64, g / 4 * 4, 15);
    } else if (bits == 6) {
        q += g / 4 * 192;
        found = g % 4 < 3 ? shifted(q + g % 4 * 64, 2, 63) : shifted(q, -4, 48);
        __m256i rest = _mm256_or_si256(shifted(q + 64, -2, 12), shifted(q + 128, 0, 3));
        if (g % 4 == 3) found = _mm256_or_si256(found, rest);
    } else {
        found = g < 5 ? shifted(q + g * 64, 3, 31) : shifted(q + (g - 5) * 64, -2, 28);
        if (g == 5 || g == 6) found = _mm256_or_si256(found, shifted(q + (g - 2) * 64, 1, 3));
        if (g == 7) found = _mm256_or_si256(found, _mm256_or_si256(shifted(q + 192, -1, 2), shifted(q + 256, 0, 1)));
    }
    return _mm256_xor_si256(found, _mm256_set1_epi8((char)inverted_bit(kind)));
}

/* Sums over half h of a step (or all of it): part[m] for row m of x, `stride` bytes from row to row. */
TARGET INLINE void sum_quads(const int kind, const int rows, const Quads from, const int h, const int8_t *x,
                             int64_t stride, __m256i *part) {
    const int bits = formats[kind].bits, quads = 8 / formats[kind].halves, run = quads_in_16_bits(kind);
    EACH(first, quads / run) {
        __m256i pairs[TILE_ROWS];
        EACH(i, run) {
            const int g = h * quads + first * run + i;
            __m256i w = from.packed && bits < 8 ? packed_quad(kind, from.q, g) : load_bytes(from.q + g * 64);
            const __m256i size = bits == 8 ? _mm256_abs_epi8(w) : w;
            EACH(m, rows) {
                __m256i four = _mm256_set1_epi32(four_bytes(x + m * stride + g * 4));
                __m256i some = _mm256_maddubs_epi16(size, bits == 8 ? _mm256_sign_epi8(four, w) : four);
                pairs[m] = i == 0 ? some : _mm256_add_epi16(pairs[m], some);
            }
        }
        EACH(m, rows) {
            __m256i whole = _mm256_madd_epi16(pairs[m], _mm256_set1_epi16(1));
            part[m] = first == 0 ? whole : _mm256_add_epi32(part[m], whole);
        }
    }
}

/* sum + part, less what it is too large by, scaled. half_sums, xs: of the row of x. */
TARGET INLINE __m256 add_part(const int kind, __m256 sum, __m256i part, const int h, const int32_t *half_sums, float xs,
                              __m256 scale) {
    if (formats[kind].bits < 8 && zero_of(kind))
        part = _mm256_sub_epi32(part, _mm256_set1_epi32(excess_of(kind, half_sums, h)));
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(part), _mm256_set1_ps(xs)), scale, sum);
}

/* `rows` rows of tile t of x. */
TARGET INLINE void dot_cols(const int kind, const int rows, const Tile *w, const Stretch *x, int64_t t, int64_t col,
                            float *acc) {
    const Format f = formats[kind];
    const Acts *a = x->acts;
    __m256 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm256_loadu_ps(acc + m * GROUP + col);
    for (int64_t s = 0; s < x->count; s++) {
        const int64_t at = (t * a->steps + x->at + s) * TILE_ROWS;
        const int8_t *row = a->q + t * TILE_ROWS * a->padded + (x->at + s) * K_STEP;
        const Quads from = {(const uint8_t *)w->at + s * w->step_bytes + col * 4, 0};
        EACH(h, f.halves) {
            __m256i part[TILE_ROWS];
            sum_quads(kind, rows, from, h, row, a->padded, part);
            __m256 scale = _mm256_loadu_ps(w->scale + (s * f.halves + h) * GROUP + col);
            EACH(m, rows)
                sum[m] = add_part(kind, sum[m], part[m], h, a->half_sums + (at + m) * 2, a->scale[at + m], scale);
        }
        if (!f.shift) continue;
        __m256 shift = _mm256_loadu_ps(w->shift + s * GROUP + col);
        EACH(m, rows) sum[m] = _mm256_fmadd_ps(shift, _mm256_set1_ps(a->sum[at + m]), sum[m]);
    }
    EACH(m, rows) _mm256_storeu_ps(acc + m * GROUP + col, sum[m]);
}

TARGET static void dot(int64_t kind, const Tile *w, const Stretch *x) {
    WITH_UNPACKED(kind, FOR_TILES(x, dot_cols(KIND, ROWS, w, x, T, 0, ACC); dot_cols(KIND, ROWS, w, x, T, 8, ACC)))
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

/* ---- few rows, straight from the packed bytes ---- */

TARGET INLINE __m256 halves_at(const uint8_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

TARGET INLINE __m256i small_at(const uint8_t *from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
}

/* Scales of half h, and shifts, of step s of a block: its own, or small integers times the block's. */
TARGET INLINE __m256 scale_at(const int kind, const uint8_t *header, int64_t s, const int h, int64_t col) {
    if (kind == P_Q8_F) return _mm256_loadu_ps((const float *)header + col);
    __m256 scale = halves_at(header + col * 2);
    if (formats[kind].block == K_STEP) return scale;
    if (kind != P_Q6_K) return _mm256_mul_ps(_mm256_cvtepi32_ps(small_at(header + 64 + s * GROUP + col)), scale);
    __m256i n = _mm256_sub_epi32(small_at(header + 32 + (s * 2 + h) * GROUP + col), _mm256_set1_epi32(128));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(n), scale);
}

TARGET INLINE __m256 shift_at(const int kind, const uint8_t *header, int64_t s, int64_t col) {
    __m256 shift = halves_at(header + 32 + col * 2);
    if (has_zeros(kind)) return _mm256_mul_ps(shift, halves_at(header + col * 2));
    if (formats[kind].block == K_STEP) return shift;
    __m256 least = _mm256_mul_ps(_mm256_cvtepi32_ps(small_at(header + 64 + (8 + s) * GROUP + col)), shift);
    return _mm256_xor_ps(least, _mm256_set1_ps(-0.0f));
}

/* Step s of a block, step `at` of x, for output rows [col, col + 8). */
TARGET INLINE void direct_step(const int kind, const int rows, const uint8_t *from, int64_t s, int64_t col,
                               const Acts *a, int64_t at, __m256 *sum) {
    const Format f = formats[kind];
    const Quads quads = {from + f.header + s * f.step_bytes + col * 4, 1};
    EACH(h, f.halves) {
        __m256i part[TILE_ROWS];
        sum_quads(kind, rows, quads, h, a->q + at * K_STEP, a->padded, part);
        __m256 scale = scale_at(kind, from, s, h, col);
        EACH(m, rows) {
            const int64_t of = at * TILE_ROWS + m;
            sum[m] = add_part(kind, sum[m], part[m], h, a->half_sums + of * 2, a->scale[of], scale);
        }
    }
    if (!f.shift) return;
    __m256 shift = shift_at(kind, from, s, col);
    EACH(m, rows) sum[m] = _mm256_fmadd_ps(shift, _mm256_set1_ps(a->sum[at * TILE_ROWS + m]), sum[m]);
}

TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    __m256 sum[2][TILE_ROWS];
    EACH(v, 2) EACH(m, rows) sum[v][m] = _mm256_setzero_ps();
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            ask_for_step(kind, from + f.header + s * f.step_bytes);
            EACH(v, 2) direct_step(kind, rows, from, s, v * 8, a, block + s, sum[v]);
        }
    EACH(v, 2) EACH(m, rows) _mm256_storeu_ps(acc + m * GROUP + v * 8, sum[v][m]);
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
    if (!is_float_kind(kind) && has_planes(kind)) return packed_avx2_direct_planes(kind, from, a, acc);
    if (!is_float_kind(kind) && formats[kind].table) return packed_avx2_direct_codes(kind, from, a, acc);
    if (is_float_kind(kind) && (a->rows != 1 || (kind != P_BF16 && kind != P_F16))) return 0;
    if (kind == P_BF16) {
        direct_bf16(from, a, acc);
    } else if (kind == P_F16) {
        direct_f16(from, a, acc);
    } else if (a->rows == 1) {
        WITH_KIND(kind, direct_rows(KIND, 1, from, a, acc))
    } else if (a->rows == 2) {
        WITH_KIND(kind, direct_rows(KIND, 2, from, a, acc))
    } else {
        WITH_KIND(kind, direct_rows(KIND, 4, from, a, acc))
    }
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
