/* Packed products with AVX-512 of its first generation (F, BW, VL): integers without an instruction of their own. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed/x86/avx512.h"
#include "packed/codes.h"

#define TARGET BW_TARGET

/* ---- x ---- */

/* Sums of sixteen bytes each, the first in the low half. */
TARGET INLINE uint64_t half_sums(__m128i first, __m128i second) {
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m128i eights = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_hadd_epi32(eights, eights));
}

TARGET void packed_avx512_quantize(const float *x, int64_t k, const Acts *a, int64_t row) {
    for (int64_t step = 0; step < a->steps; step++) {
        int64_t left = k - step * K_STEP;
        __mmask16 first = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        __mmask16 second = left >= 32 ? 0xffff : left <= 16 ? 0 : (__mmask16)((1u << (left - 16)) - 1);
        __m512 v[2] = {_mm512_maskz_loadu_ps(first, x + step * K_STEP),
                       _mm512_maskz_loadu_ps(second, x + step * K_STEP + 16)};
        const __m512i size = _mm512_set1_epi32(0x7fffffff), begin = _mm512_castps_si512(_mm512_set1_ps(LIFT));
        __m512i top = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[0]), size),
                                       _mm512_and_si512(_mm512_castps_si512(v[1]), size));
        float inverse, scale = step_scale((uint32_t)_mm512_reduce_max_epi32(top), &inverse);
        __m128i half[2];
        EACH(i, 2) {
            __m512 lifted = _mm512_fmadd_ps(v[i], _mm512_set1_ps(inverse), _mm512_set1_ps(LIFT));
            half[i] = _mm512_cvtepi32_epi8(_mm512_sub_epi32(_mm512_castps_si512(lifted), begin));
            _mm_storeu_si128((__m128i *)(a->q + row * a->padded + step * K_STEP + i * 16), half[i]);
        }
        const uint64_t sums = half_sums(half[0], half[1]);
        store_step(a, row, step, scale, (int32_t)sums, (int32_t)(sums >> 32));
    }
}

/* ---- weights ---- */

TARGET INLINE void unpack_kind(const int kind, const uint8_t *from, int64_t k, Tile *to) {
    const Format f = formats[kind];
    const __m512i table = f.table ? load_table(kind, from) : _mm512_setzero_si512();
    int64_t steps = f.block / K_STEP;
    to->at = lies_in_bytes(kind) ? (const int8_t *)from + f.header : to->q; /* bytes are used where they lie */
    to->step_bytes = lies_in_bytes(kind) ? f.header + f.step_bytes : K_STEP * GROUP;
    for (int64_t at = 0; at < k / K_STEP; at += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            int8_t *out = to->q + (at + s) * K_STEP * GROUP;
            EACH(h, f.halves) _mm512_store_ps(to->scale + ((at + s) * f.halves + h) * GROUP, load_scale(kind, from, s, h));
            if (f.shift) _mm512_store_ps(to->shift + (at + s) * GROUP, load_shift(kind, from, s));
            if (lies_in_bytes(kind)) continue;
            EACH(g, 8) _mm512_store_si512(out + g * 64, f.table ? load_codes(table, q, g) : load_quad(kind, q, g));
        }
}

TARGET void packed_avx512_unpack(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to) {
    if (has_planes(kind)) {
        packed_avx512_unpack_plane(kind, plane, from, k, to);
        return;
    }
    WITH_KIND(kind, unpack_kind(KIND, from, k, to))
}

TARGET void packed_avx512_widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

/* ---- integers ----
 *
 * A quad of all rows of a group is one vector. */

/* A sum of integers that is made here: gcc would first make all products that are added, and keep them in memory. */
#define IN_ORDER(sum) __asm__("" : "+v"(sum))

/* Sums over half h of a step (or all of it): part[m] for row m of x, `stride` bytes from row to row. */
TARGET INLINE void sum_quads(const int kind, const int rows, const Quads from, const int h, const int8_t *x,
                             int64_t stride, __m512i *part) {
    const int bits = formats[kind].bits, quads = 8 / formats[kind].halves, run = quads_in_16_bits(kind);
    const __m512i ones = _mm512_set1_epi16(1);
    EACH(first, quads / run) {
        __m512i pairs[DIRECT_ROWS];
        EACH(i, run) {
            const int g = h * quads + first * run + i;
            __m512i w = from.packed && bits < 8 ? load_quad(kind, from.q, g) : _mm512_loadu_si512(from.q + g * 64);
            if (from.packed && formats[kind].table) w = load_codes(load_table(kind, from.header), from.q, g);
            const __mmask64 negative = bits == 8 ? _mm512_movepi8_mask(w) : 0;
            if (bits == 8) w = _mm512_abs_epi8(w);
            EACH(m, rows) {
                __m512i four = _mm512_set1_epi32(four_bytes(x + m * stride + g * 4));
                if (bits == 8) four = _mm512_mask_sub_epi8(four, negative, _mm512_setzero_si512(), four);
                __m512i some = _mm512_maddubs_epi16(w, four);
                pairs[m] = i == 0 ? some : _mm512_add_epi16(pairs[m], some);
                IN_ORDER(pairs[m]);
            }
        }
        EACH(m, rows) {
            __m512i whole = _mm512_madd_epi16(pairs[m], ones);
            part[m] = first == 0 ? whole : _mm512_add_epi32(part[m], whole);
            IN_ORDER(part[m]);
        }
    }
}

/* sum + part, less what it is too large by, scaled. half_sums, xs: of the row of x. */
TARGET INLINE __m512 add_part(const int kind, __m512 sum, __m512i part, const int h, const int32_t *half_sums, float xs,
                              __m512 scale) {
    if (formats[kind].bits < 8 && zero_of(kind))
        part = _mm512_sub_epi32(part, _mm512_set1_epi32(excess_of(kind, half_sums, h)));
    return add_scaled(sum, part, xs, scale);
}

/* `rows` rows of x from tile t on: up to TILE_ROWS, or two tiles. */
TARGET INLINE void dot_rows(const int kind, const int rows, const Tile *w, const Stretch *x, int64_t t, float *acc) {
    const Format f = formats[kind];
    const Acts *a = x->acts;
    __m512 sum[DIRECT_ROWS];
    EACH(m, rows) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t s = 0; s < x->count; s++) {
        const int64_t first = (t * a->steps + x->at + s) * TILE_ROWS, next = (a->steps - 1) * TILE_ROWS;
        const int8_t *row = a->q + t * TILE_ROWS * a->padded + (x->at + s) * K_STEP;
        const Quads from = {(const uint8_t *)w->at + s * w->step_bytes, 0};
        EACH(h, f.halves) {
            __m512i part[DIRECT_ROWS];
            sum_quads(kind, rows, from, h, row, a->padded, part);
            __m512 scale = _mm512_load_ps(w->scale + (s * f.halves + h) * GROUP);
            EACH(m, rows) {
                const int64_t at = first + m / TILE_ROWS * next + m;
                sum[m] = add_part(kind, sum[m], part[m], h, a->half_sums + at * 2, a->scale[at], scale);
            }
        }
        if (!f.shift) continue;
        __m512 shift = _mm512_load_ps(w->shift + s * GROUP);
        EACH(m, rows)
            sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[first + m / TILE_ROWS * next + m]), sum[m]);
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET INLINE void dot_kind(const int kind, const Tile *w, const Stretch *x) {
    int64_t t = 0;
    for (; t + 2 <= x->tiles; t += 2) dot_rows(kind, 2 * TILE_ROWS, w, x, x->tile + t, x->acc + t * TILE_ROWS * GROUP);
    Stretch rest = {x->acts, x->tile + t, x->tiles - t, x->at, x->count, x->acc + t * TILE_ROWS * GROUP};
    FOR_TILES(&rest, dot_rows(kind, ROWS, w, x, T, ACC))
}

TARGET static void dot(int64_t kind, const Tile *w, const Stretch *x) { WITH_UNPACKED(kind, dot_kind(KIND, w, x)) }

/* All rows there are, straight from the packed bytes. */
TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    __m512 sum[DIRECT_ROWS];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            const Quads quads = {from + f.header + s * f.step_bytes, 1, from};
            const int8_t *x = a->q + (block + s) * K_STEP;
            int64_t at[DIRECT_ROWS]; /* where a row has its scale */
            EACH(m, rows) at[m] = (m / TILE_ROWS * a->steps + block + s) * TILE_ROWS + m % TILE_ROWS;
            ask_for_step(kind, quads.q);
            EACH(h, f.halves) {
                __m512i part[DIRECT_ROWS];
                sum_quads(kind, rows, quads, h, x, a->padded, part);
                __m512 scale = load_scale(kind, from, s, h);
                EACH(m, rows)
                    sum[m] = add_part(kind, sum[m], part[m], h, a->half_sums + at[m] * 2, a->scale[at[m]], scale);
            }
            if (!f.shift) continue;
            __m512 shift = load_shift(kind, from, s);
            EACH(m, rows) sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[at[m]]), sum[m]);
        }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET static int direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (is_float_kind(kind)) return packed_avx512_direct_floats(kind, from, a, acc);
    if (has_planes(kind)) return packed_avx512_direct_planes(kind, from, a, acc);
    WITH_ROWS(a->rows, WITH_KIND(kind, direct_rows(KIND, ROWS, from, a, acc)))
    return 1;
}

/* ---- floats ---- */

/* Packed bf16 as it lies, for one row. */
TARGET INLINE void direct_bf16(const uint8_t *from, const Acts *a, float *acc) {
    __m512 sum = _mm512_setzero_ps();
    const float *x = a->wide;
    for (int64_t i = 0; i < a->padded; i += 2, from += 64, x += 2 * TILE_ROWS) {
        __m512i both = _mm512_loadu_si512(from);
        __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
        sum = _mm512_fmadd_ps(even, _mm512_set1_ps(x[0]), sum);
        sum = _mm512_fmadd_ps(odd, _mm512_set1_ps(x[TILE_ROWS]), sum);
    }
    _mm512_storeu_ps(acc, sum);
}

/* The same of float16. */
TARGET INLINE void direct_f16(const uint8_t *from, const Acts *a, float *acc) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < a->padded; i++, from += 32)
        sum = _mm512_fmadd_ps(load_halves(from), _mm512_set1_ps(a->wide[i * TILE_ROWS]), sum);
    _mm512_storeu_ps(acc, sum);
}

TARGET int packed_avx512_direct_floats(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (kind == P_F8) return packed_avx512_direct_float8(from, a, acc);
    if ((kind != P_BF16 && kind != P_F16) || a->rows != 1) return 0;
    if (kind == P_BF16)
        direct_bf16(from, a, acc);
    else
        direct_f16(from, a, acc);
    return 1;
}

/* `tiles` tiles at once: one alone would wait for its sums. */
TARGET INLINE void dot_wide_tiles(const int tiles, const int rows, const float *w, const Stretch *x, int64_t t,
                                  float *acc) {
    const float *from = x->acts->wide + ((x->tile + t) * x->acts->padded + x->at) * TILE_ROWS;
    const int64_t next = x->acts->padded * TILE_ROWS;
    __m512 sum[3][TILE_ROWS];
    EACH(i, tiles) EACH(m, rows) sum[i][m] = _mm512_loadu_ps(acc + (i * TILE_ROWS + m) * GROUP);
    for (int64_t k = 0; k < x->count; k++) {
        __m512 wv = _mm512_loadu_ps(w + k * GROUP);
        EACH(i, tiles) EACH(m, rows)
            sum[i][m] = _mm512_fmadd_ps(wv, _mm512_set1_ps(from[i * next + k * TILE_ROWS + m]), sum[i][m]);
    }
    EACH(i, tiles) EACH(m, rows) _mm512_storeu_ps(acc + (i * TILE_ROWS + m) * GROUP, sum[i][m]);
}

TARGET void packed_avx512_dot_wide(const float *w, const Stretch *x) {
    int64_t t = 0;
    for (; t + 3 <= x->tiles; t += 3) dot_wide_tiles(3, TILE_ROWS, w, x, t, x->acc + t * TILE_ROWS * GROUP);
    Stretch rest = {x->acts, x->tile + t, x->tiles - t, x->at, x->count, x->acc + t * TILE_ROWS * GROUP};
    FOR_TILES(&rest, dot_wide_tiles(1, ROWS, w, x, T - x->tile, ACC))
}

/* The same for two groups, `next` floats apart. */
TARGET INLINE void dot_wide_pair(const int tiles, const int rows, const float *w, int64_t next, const Stretch *x,
                                 int64_t t) {
    const float *from = x->acts->wide + ((x->tile + t) * x->acts->padded + x->at) * TILE_ROWS;
    const int64_t after = x->acts->padded * TILE_ROWS;
    float *acc[2] = {x->acc + t * TILE_ROWS * GROUP, x->second + t * TILE_ROWS * GROUP};
    __m512 sum[2][3 * TILE_ROWS];
    EACH(g, 2) EACH(m, tiles * rows) sum[g][m] = _mm512_loadu_ps(acc[g] + m * GROUP);
    for (int64_t k = 0; k < x->count; k++) {
        if (k % (GROUP / TILE_ROWS) == 0) /* a cache line of each of the tiles that come next */
            EACH(i, tiles) _mm_prefetch((const char *)(from + (i + tiles) * after + k * TILE_ROWS), _MM_HINT_T0);
        const __m512 first = _mm512_loadu_ps(w + k * GROUP), second = _mm512_loadu_ps(w + next + k * GROUP);
        EACH(i, tiles) EACH(m, rows) {
            const __m512 xv = _mm512_set1_ps(from[i * after + k * TILE_ROWS + m]);
            sum[0][i * rows + m] = _mm512_fmadd_ps(first, xv, sum[0][i * rows + m]);
            sum[1][i * rows + m] = _mm512_fmadd_ps(second, xv, sum[1][i * rows + m]);
        }
    }
    EACH(g, 2) EACH(m, tiles * rows) _mm512_storeu_ps(acc[g] + m * GROUP, sum[g][m]);
}

TARGET void packed_avx512_dot_wide_two(const float *w, int64_t next, const Stretch *x) {
    int64_t t = 0;
    for (; t + 3 <= x->tiles; t += 3) dot_wide_pair(3, TILE_ROWS, w, next, x, t);
    if (x->tiles - t == 2)
        dot_wide_pair(2, TILE_ROWS, w, next, x, t);
    else if (x->tiles - t == 1)
        dot_wide_pair(1, TILE_ROWS, w, next, x, t);
}

const Backend packed_avx512 = {.quantize = packed_avx512_quantize,
                               .unpack = packed_avx512_unpack,
                               .dot = dot,
                               .direct = direct,
                               .direct_rows = DIRECT_ROWS,
                               .direct_planes = 1,
                               .widen = packed_avx512_widen,
                               .dot_wide = packed_avx512_dot_wide,
                               .dot_wide_two = packed_avx512_dot_wide_two};

#endif
