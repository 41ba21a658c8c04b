/* Packed products with AVX-512: VNNI for integers, and its bf16 products where there are any. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed/avx512.h"
#include "packed/codes.h"
#include "packed/x86.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))
#define BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))

/* ---- x ---- */

TARGET void packed_vnni_quantize(const float *x, int64_t k, const Acts *a, int64_t row) {
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
        int32_t sum[2];
        EACH(i, 2) {
            __m512 lifted = _mm512_fmadd_ps(v[i], _mm512_set1_ps(inverse), _mm512_set1_ps(LIFT));
            __m512i n = _mm512_sub_epi32(_mm512_castps_si512(lifted), begin);
            _mm_storeu_si128((__m128i *)(a->q + row * a->padded + step * K_STEP + i * 16), _mm512_cvtepi32_epi8(n));
            sum[i] = _mm512_reduce_add_epi32(n);
        }
        store_step(a, row, step, scale, sum[0], sum[1]);
    }
}

/* ---- weights ---- */

/* Bits of `mask` from a, the others from b. */
TARGET INLINE __m512i merged(const int mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)mask), a, b, 0xca);
}

/* The quants of a part of a step, in their bytes' low bits (and others' bits above): of 5 bits quads 5-7, of 6 bits the
 * fourth of a half. Bytes are shifted in pairs; what comes from a neighbour is dropped. */
TARGET INLINE __m512i fifths(const uint8_t *q, const int g) {
    __m512i upper = _mm512_slli_epi16(_mm512_loadu_si512(q + (g - 5) * 64), 2);
    if (g < 7) return merged(28, upper, _mm512_srli_epi16(_mm512_loadu_si512(q + (g - 2) * 64), 1));
    __m512i middle = _mm512_slli_epi16(_mm512_loadu_si512(q + 192), 1);
    return merged(28, upper, merged(2, middle, _mm512_loadu_si512(q + 256)));
}

TARGET INLINE __m512i fourth(const uint8_t *q) {
    __m512i upper = _mm512_slli_epi16(_mm512_loadu_si512(q), 4), middle = _mm512_slli_epi16(_mm512_loadu_si512(q + 64), 2);
    return merged(48, upper, merged(12, middle, _mm512_loadu_si512(q + 128)));
}

/* Quad g of a step, as unsigned bytes. */
TARGET INLINE __m512i load_quad(const int kind, const uint8_t *q, const int g) {
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
TARGET INLINE __m512i load_codes(__m512i table, const uint8_t *q, const int g) {
    __m512i both = _mm512_loadu_si512(q + g % 4 * 64);
    if (g >= 4) both = _mm512_srli_epi16(both, 4);
    return _mm512_shuffle_epi8(table, _mm512_and_si512(both, _mm512_set1_epi8(15)));
}

/* The table of a kind of codes in every quarter. */
TARGET INLINE __m512i load_table(const int kind, const uint8_t *header) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table_of(kind, header)));
}

TARGET INLINE __m512 load_halves(const uint8_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

/* Scales of half h, and shifts, of step s of a block: its own, or small integers times the block's. */
TARGET INLINE __m512 load_scale(const int kind, const uint8_t *header, int64_t s, const int h) {
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

TARGET INLINE __m512 load_shift(const int kind, const uint8_t *header, int64_t s) {
    if (kind == P_Q4_Z) return _mm512_mul_ps(load_halves(header + 32), load_halves(header));
    if (formats[kind].block == K_STEP) return load_halves(header + 32);
    __m512i n = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(header + 64 + (8 + s) * GROUP)));
    __m512 least = _mm512_mul_ps(_mm512_cvtepi32_ps(n), load_halves(header + 32));
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(least), _mm512_set1_epi32((int)0x80000000)));
}

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

TARGET void packed_vnni_unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to) {
    WITH_KIND(kind, unpack_kind(KIND, from, k, to))
}

TARGET void packed_vnni_widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

/* ---- integers ---- */

/* What a sum of half h of a step (or of all of it) begins at. */
TARGET INLINE __m512i begin_sum(const int kind, const int32_t *half_sums, const int h) {
    if (zero_of(kind) == 0) return _mm512_setzero_si512();
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(excess_of(kind, half_sums, h)));
}

TARGET INLINE __m512 add_scaled(__m512 sum, __m512i part, float xs, __m512 scale) {
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part), _mm512_set1_ps(xs)), scale, sum);
}

TARGET INLINE void dot_rows(const int kind, const int rows, const Tile *w, const Stretch *x, int64_t t, float *acc) {
    const Format f = formats[kind];
    const Acts *a = x->acts;
    const int quads = 8 / f.halves;
    const __m512i top = _mm512_set1_epi8((char)0x80);
    __m512 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t s = 0; s < x->count; s++) {
        int64_t at = (t * a->steps + x->at + s) * TILE_ROWS;
        const int8_t *row = a->q + t * TILE_ROWS * a->padded + (x->at + s) * K_STEP;
        EACH(h, f.halves) {
            __m512i part[TILE_ROWS];
            EACH(m, rows) part[m] = begin_sum(kind, a->half_sums + (at + m) * 2, h);
            EACH(g, quads) {
                __m512i wv = _mm512_loadu_si512(w->at + s * w->step_bytes + (h * quads + g) * 64);
                if (f.bits == 8) wv = _mm512_xor_si512(wv, top);
                EACH(m, rows) {
                    int32_t four = four_bytes(row + m * a->padded + (h * quads + g) * 4);
                    part[m] = _mm512_dpbusd_epi32(part[m], wv, _mm512_set1_epi32(four));
                }
            }
            __m512 scale = _mm512_load_ps(w->scale + (s * f.halves + h) * GROUP);
            EACH(m, rows) sum[m] = add_scaled(sum[m], part[m], a->scale[at + m], scale);
        }
        if (f.shift) {
            __m512 shift = _mm512_load_ps(w->shift + s * GROUP);
            EACH(m, rows) sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[at + m]), sum[m]);
        }
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET void packed_vnni_dot(int64_t kind, const Tile *w, const Stretch *x) {
    FOR_TILES(x, WITH_KIND(kind, dot_rows(KIND, ROWS, w, x, T, ACC)))
}

/* All rows there are, straight from the packed bytes. */
TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    const __m512i top = _mm512_set1_epi8((char)0x80);
    const __m512i table = f.table ? _mm512_xor_si512(load_table(kind, from), top) : top;
    __m512 sum[DIRECT_ROWS];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t block = 0; block < a->steps; block += steps, from += f.header + steps * f.step_bytes)
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            const int8_t *x = a->q + (block + s) * K_STEP;
            int64_t at[DIRECT_ROWS]; /* where a row has its scale */
            EACH(m, rows) at[m] = (m / TILE_ROWS * a->steps + block + s) * TILE_ROWS + m % TILE_ROWS;
            EACH(line, (f.step_bytes + f.header * K_STEP / f.block + 63) / 64)
                _mm_prefetch((const char *)q + AHEAD + line * 64, _MM_HINT_T0);
            __m512i part[2][DIRECT_ROWS];
            EACH(h, f.halves) EACH(m, rows) part[h][m] = begin_sum(kind, a->half_sums + at[m] * 2, h);
            EACH(g, 8) {
                __m512i w = f.table ? load_codes(table, q, g) : load_quad(kind, q, g);
                const int h = f.halves == 2 && g >= 4;
                EACH(m, rows) {
                    __m512i four = _mm512_set1_epi32(four_bytes(x + m * a->padded + g * 4));
                    part[h][m] = _mm512_dpbusd_epi32(part[h][m], w, four);
                }
            }
            EACH(h, f.halves) {
                __m512 scale = load_scale(kind, from, s, h);
                EACH(m, rows) sum[m] = add_scaled(sum[m], part[h][m], a->scale[at[m]], scale);
            }
            if (!f.shift) continue;
            __m512 shift = load_shift(kind, from, s);
            EACH(m, rows) sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[at[m]]), sum[m]);
        }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
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

TARGET int packed_vnni_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (kind == P_F8) return packed_avx512_direct_float8(from, a, acc);
    if (is_float_kind(kind)) {
        if ((kind != P_BF16 && kind != P_F16) || a->rows != 1) return 0;
        if (kind == P_BF16)
            direct_bf16(from, a, acc);
        else
            direct_f16(from, a, acc);
    } else if (a->rows == 1) {
        WITH_KIND(kind, direct_rows(KIND, 1, from, a, acc))
    } else if (a->rows == 2) {
        WITH_KIND(kind, direct_rows(KIND, 2, from, a, acc))
    } else if (a->rows <= 4) {
        WITH_KIND(kind, direct_rows(KIND, 4, from, a, acc))
    } else {
        WITH_KIND(kind, direct_rows(KIND, 8, from, a, acc))
    }
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

TARGET void packed_vnni_dot_wide(const float *w, const Stretch *x) {
    int64_t t = 0;
    for (; t + 3 <= x->tiles; t += 3) dot_wide_tiles(3, TILE_ROWS, w, x, t, x->acc + t * TILE_ROWS * GROUP);
    Stretch rest = {x->acts, x->tile + t, x->tiles - t, x->at, x->count, x->acc + t * TILE_ROWS * GROUP};
    FOR_TILES(&rest, dot_wide_tiles(1, ROWS, w, x, T - x->tile, ACC))
}

const Backend packed_vnni = {.quantize = packed_vnni_quantize,
                             .unpack = packed_vnni_unpack,
                             .dot = packed_vnni_dot,
                             .direct = packed_vnni_direct,
                             .direct_rows = DIRECT_ROWS,
                             .widen = packed_vnni_widen,
                             .dot_wide = packed_vnni_dot_wide};

/* ---- bf16 times bf16 ---- */

/* Packed pairs along K as they lie, one chain of pairs per output; x: rows of a tile. */
BF16_TARGET INLINE void narrow_rows(const int rows, const uint8_t *from, const uint16_t *x, int64_t steps, float *acc) {
    __m512 sum[8];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; s++, x += NARROW_TILE * K_STEP)
        for (int i = 0; i < K_STEP; i += 2, from += 64) {
            __m512i w = _mm512_loadu_si512(from);
            EACH(m, rows) {
                __m512i pair = _mm512_set1_epi32(four_bytes((const int8_t *)(x + m * K_STEP + i)));
                sum[m] = _mm512_dpbf16_ps(sum[m], (__m512bh)w, (__m512bh)pair);
            }
        }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

/* Up to a tile of rows. */
BF16_TARGET static void narrow_tile(const uint8_t *from, const uint16_t *x, int64_t steps, int64_t count, float *acc) {
    int64_t m = 0;
    for (; m + 8 <= count; m += 8) narrow_rows(8, from, x + m * K_STEP, steps, acc + m * GROUP);
    for (; m + 2 <= count; m += 2) narrow_rows(2, from, x + m * K_STEP, steps, acc + m * GROUP);
    if (m < count) narrow_rows(1, from, x + m * K_STEP, steps, acc + m * GROUP);
}

BF16_TARGET static void dot_narrow(const uint8_t *from, int64_t next, const Acts *a, int64_t row, int64_t count,
                                   Ask soon, float *acc) {
    for (int group = 0; group < (next ? 2 : 1); group++, from += next)
        for (int64_t m = 0; m < count; m += NARROW_TILE, acc += NARROW_TILE * GROUP)
            narrow_tile(from, a->narrow + (row + m) * a->padded, a->steps, min64(count - m, NARROW_TILE), acc);
}

const Backend packed_avx512_bf16 = {.quantize = packed_vnni_quantize,
                                    .unpack = packed_vnni_unpack,
                                    .dot = packed_vnni_dot,
                                    .direct = packed_vnni_direct,
                                    .direct_rows = DIRECT_ROWS,
                                    .widen = packed_vnni_widen,
                                    .dot_wide = packed_vnni_dot_wide,
                                    .dot_narrow = dot_narrow};

#endif
