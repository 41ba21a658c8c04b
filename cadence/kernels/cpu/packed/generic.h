/* Plain C for every part of a Backend. Each instruction set compiles it once more with its own vectors. */
#ifndef CADENCE_PACKED_GENERIC_H
#define CADENCE_PACKED_GENERIC_H

#include "packed/packed.h"

/* ---- x ---- */

/* Scale of a step, of 22 significant bits: 0 where all is (nearly) zero, not a number where something is infinite, nearly
 * so or not a number: then the outputs say so, whatever q is. */
INLINE float step_scale(uint32_t top_bits, float *inverse) {
    float top = float_of_bits(top_bits), scale = float_of_bits(bits_of_float(top / 127.0f) & ~3u);
    int small = top < 0x1p-100f;
    *inverse = small ? 0.0f : 127.0f / top;
    return small ? 0.0f : top < 0x1p100f ? scale : NAN;
}

/* first, second: sums of the halves of q. */
INLINE void store_step(const Acts *a, int64_t row, int64_t step, float scale, int32_t first, int32_t second) {
    int64_t at = (row / TILE_ROWS * a->steps + step) * TILE_ROWS + row % TILE_ROWS;
    a->scale[at] = scale;
    a->sum[at] = scale * (float)(first + second);
    a->half_sums[at * 2] = first;
    a->half_sums[at * 2 + 1] = second;
}

INLINE void quantize_generic(const float *x, int64_t k, const Acts *a, int64_t row) {
    for (int64_t step = 0; step < a->steps; step++) {
        float part[K_STEP] = {0}, inverse;
        memcpy(part, x + step * K_STEP, (size_t)min64(k - step * K_STEP, K_STEP) * 4);
        uint32_t top = 0;
        for (int i = 0; i < K_STEP; i++) {
            uint32_t bits = bits_of_float(part[i]) & 0x7fffffff;
            top = bits > top ? bits : top;
        }
        float scale = step_scale(top, &inverse);
        int8_t *q = a->q + row * a->padded + step * K_STEP;
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < K_STEP; i++) {
            q[i] = (int8_t)bits_of_float(__builtin_fmaf(part[i], inverse, LIFT)); /* rounded, in the low bits */
            sum[i / 16] += q[i];
        }
        store_step(a, row, step, scale, sum[0], sum[1]);
    }
}

/* ---- weights ---- */

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#if defined(__aarch64__) /* bytes can be shifted; elsewhere four at a time are */
typedef uint8_t Word;
#else
typedef uint32_t Word;
#endif
typedef Word Words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Pairs __attribute__((vector_size(VECTOR_BYTES)));
#define IN_ALL(byte) ((Word)((byte) * 0x01010101u)) /* the byte in every byte of a Word */

INLINE Words load_words(const uint8_t *p) {
    Words w;
    memcpy(&w, p, sizeof w);
    return w;
}

INLINE void store_words(int8_t *p, Words w) { memcpy(p, &w, sizeof w); }

typedef uint8_t Sixteen __attribute__((vector_size(16)));

/* Entries of a table, codes < 16. */
INLINE Sixteen looked_up(Sixteen table, Sixteen codes) {
#if defined(__aarch64__)
    return (Sixteen)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)codes);
#elif defined(__clang__)
    Sixteen found;
    for (int i = 0; i < 16; i++) found[i] = table[codes[i]];
    return found;
#else
    return __builtin_shuffle(table, codes);
#endif
}

/* Bytes q < 128 minus `zero`, without borrowing from their neighbours. */
INLINE Words minus_zero(Words q, uint32_t zero) {
    if (sizeof(Word) == 1 || zero == 0) return q - IN_ALL(zero);
    return ((q | IN_ALL(0x80u)) - IN_ALL(zero)) ^ IN_ALL(0x80u);
}

/* Quad g of a step of 4-, 5- or 6-bit quants, a vector of it at a time; from: its first part there. The inverted bit
 * still is. */
INLINE Words quad_of(const int bits, const uint8_t *from, const int g) {
    if (bits == 4) return (load_words(from + g % 4 * 64) >> (g / 4 * 4)) & IN_ALL(15u);
    if (bits == 6) {
        from += g / 4 * 192;
        if (g % 4 < 3) return (load_words(from + g % 4 * 64) >> 2) & IN_ALL(63u);
        return (load_words(from) & IN_ALL(3u)) << 4 | (load_words(from + 64) & IN_ALL(3u)) << 2 |
               (load_words(from + 128) & IN_ALL(3u));
    }
    if (g < 5) return (load_words(from + g * 64) >> 3) & IN_ALL(31u);
    Words upper = (load_words(from + (g - 5) * 64) & IN_ALL(7u)) << 2;
    if (g < 7) return upper | ((load_words(from + (g - 2) * 64) >> 1) & IN_ALL(3u));
    return upper | (load_words(from + 192) & IN_ALL(1u)) << 1 | (load_words(from + 256) & IN_ALL(1u));
}

/* Quants of a step -> [8 quads][16 rows][4] int8. */
INLINE void unpack_quants(const int bits, const uint32_t zero, const uint32_t inverted, const uint8_t *from, int8_t *to) {
    for (int v = 0; v < 64; v += VECTOR_BYTES) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
            store_words(to + g * 64 + v, minus_zero(quad_of(bits, from + v, g) ^ IN_ALL(inverted), zero));
    }
}

/* Codes of a step looked up in a table -> [8 quads][16 rows][4] int8. */
INLINE void unpack_codes(const int8_t *table, const uint8_t *from, int8_t *to) {
    Sixteen found;
    memcpy(&found, table, 16);
    for (int part = 0; part < 4; part++)
        for (int v = 0; v < 64; v += 16) {
            Sixteen both;
            memcpy(&both, from + part * 64 + v, 16);
            Sixteen low = looked_up(found, both & 15), high = looked_up(found, both >> 4);
            memcpy(to + part * 64 + v, &low, 16);
            memcpy(to + (part + 4) * 64 + v, &high, 16);
        }
}

/* [16] float16. */
INLINE void halves_to_floats(const uint8_t *from, float *to) {
#if defined(__aarch64__)
    __fp16 half[GROUP];
    memcpy(half, from, sizeof half);
    for (int r = 0; r < GROUP; r++) to[r] = (float)half[r];
#else
    uint16_t half[GROUP];
    memcpy(half, from, sizeof half);
    for (int r = 0; r < GROUP; r++) to[r] = half_to_float(half[r]);
#endif
}

/* Scales (and shifts) of a block's steps. */
INLINE void unpack_header(int64_t kind, const uint8_t *from, float *scale, float *shift) {
    float d[GROUP], m[GROUP];
    if (kind == P_Q8_F || kind == P_T4_F) {
        memcpy(scale, from, (size_t)formats[kind].halves * GROUP * 4);
    } else if (kind == P_MXFP4) {
        for (int r = 0; r < GROUP; r++) scale[r] = exponent_to_float(from[r]);
    } else if (formats[kind].block == K_STEP) {
        halves_to_floats(from, scale);
        if (formats[kind].shift) halves_to_floats(from + 32, shift);
        if (has_zeros(kind))
            for (int r = 0; r < GROUP; r++) shift[r] *= scale[r];
    } else if (has_small_scales(kind)) {
        const uint8_t *s = from + 32;
        halves_to_floats(from, d);
        for (int i = 0; i < formats[kind].block / K_STEP * formats[kind].halves; i++)
            for (int r = 0; r < GROUP; r++) scale[i * GROUP + r] = (float)(s[i * GROUP + r] - 128) * d[r];
    } else {
        const uint8_t *s = from + 64, *n = from + 64 + 8 * GROUP;
        halves_to_floats(from, d);
        halves_to_floats(from + 32, m);
        for (int i = 0; i < 8; i++)
            for (int r = 0; r < GROUP; r++) {
                scale[i * GROUP + r] = (float)s[i * GROUP + r] * d[r];
                shift[i * GROUP + r] = -((float)n[i * GROUP + r] * m[r]);
            }
    }
}

/* is_signed: as signed numbers, else without their zero subtracted; bytes are signed always. */
INLINE void unpack_blocks(const int kind, const int is_signed, const uint8_t *from, int64_t k, Tile *to) {
    const Format f = formats[kind];
    const uint32_t zero = is_signed ? (uint32_t)f.zero : 0, inverted = (uint32_t)inverted_bit(kind);
    int64_t block_bytes = f.header + f.block / K_STEP * f.step_bytes, steps = f.block / K_STEP;
    const int in_bytes = lies_in_bytes(kind);
    const int8_t *table = f.table ? table_of(kind, from) : NULL;
    to->at = in_bytes ? (const int8_t *)from + f.header : to->q; /* bytes are used where they lie */
    to->step_bytes = in_bytes ? block_bytes : K_STEP * GROUP;
    for (int64_t b = 0; b < k / f.block; b++, from += block_bytes) {
        unpack_header(kind, from, to->scale + b * steps * f.halves * GROUP, to->shift + b * steps * GROUP);
        if (in_bytes) continue;
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            int8_t *out = to->q + (b * steps + s) * K_STEP * GROUP;
            if (f.table)
                unpack_codes(table, q, out);
            else
                unpack_quants(f.bits, zero, inverted, q, out);
        }
    }
}

/* Scales of a plane for all steps of a block. */
INLINE void unpack_plane_scales(const int kind, const int plane, const uint8_t *from, float *scale) {
    float one[GROUP];
    if (kind == P_Q2_K)
        halves_to_floats(from + plane * 32, one);
    else
        memcpy(one, from, sizeof one);
    for (int s = 0; s < formats[kind].block / K_STEP; s++)
        for (int r = 0; r < GROUP; r++) scale[s * GROUP + r] = kind == P_Q2_K && plane ? -one[r] : one[r];
}

/* A half of a step of Q2_K, its bytes and small scales and minimums [16 rows] -> [4 quads][16 rows][4] int8. */
INLINE void unpack_two_bits(const int plane, const uint8_t *from, const uint8_t *small, int8_t *to) {
    uint32_t words[GROUP]; /* the number of a row in every byte */
    uint8_t each[GROUP * 4];
    for (int r = 0; r < GROUP; r++) words[r] = (plane ? small[r] >> 4 : small[r] & 15u) * 0x01010101u;
    memcpy(each, words, sizeof each);
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < GROUP * 4; i++) {
            const uint8_t q = (uint8_t)(from[i] >> (2 * g)), one = (uint8_t) - (q & 1), two = (uint8_t) - (q >> 1 & 1);
            to[g * 64 + i] = (int8_t)(plane ? each[i] : (one & each[i]) + (two & each[i] * 2));
        }
}

/* One plane of a kind of two. */
INLINE void unpack_plane(const int kind, const int plane, const uint8_t *from, int64_t k, Tile *to) {
    const Format f = formats[kind];
    const int64_t steps = f.block / K_STEP;
    to->at = to->q, to->step_bytes = K_STEP * GROUP;
    for (int64_t at = 0; at < k / K_STEP; at += steps, from += f.header + steps * f.step_bytes) {
        unpack_plane_scales(kind, plane, from, to->scale + at * GROUP);
        for (int64_t s = 0; s < steps; s++) {
            const uint8_t *q = from + f.header + s * f.step_bytes;
            int8_t *out = to->q + (at + s) * K_STEP * GROUP;
            if (f.table)
                unpack_codes(code_tables[f.table + plane], q, out);
            else
                for (int h = 0; h < 2; h++)
                    unpack_two_bits(plane, q + h * 64, from + 64 + (s * 2 + h) * GROUP, out + h * 256);
        }
    }
}

#define UNPACK_PLANE(kind)                       \
    case kind:                                   \
        if (plane)                               \
            unpack_plane(kind, 1, from, k, to);  \
        else                                     \
            unpack_plane(kind, 0, from, k, to);  \
        break;

INLINE void unpack_generic(int64_t kind, int plane, const int is_signed, const uint8_t *from, int64_t k, Tile *to) {
    switch (kind) { /* the kind as a constant: loops are specialised */
        case P_Q8_0: unpack_blocks(P_Q8_0, is_signed, from, k, to); break;
        case P_Q4_0: unpack_blocks(P_Q4_0, is_signed, from, k, to); break;
        case P_Q4_1: unpack_blocks(P_Q4_1, is_signed, from, k, to); break;
        case P_Q5_0: unpack_blocks(P_Q5_0, is_signed, from, k, to); break;
        case P_Q5_1: unpack_blocks(P_Q5_1, is_signed, from, k, to); break;
        case P_Q4_K: unpack_blocks(P_Q4_K, is_signed, from, k, to); break;
        case P_Q5_K: unpack_blocks(P_Q5_K, is_signed, from, k, to); break;
        case P_Q4_Z: unpack_blocks(P_Q4_Z, is_signed, from, k, to); break;
        case P_Q8_F: unpack_blocks(P_Q8_F, is_signed, from, k, to); break;
        case P_IQ4_NL: unpack_blocks(P_IQ4_NL, is_signed, from, k, to); break;
        case P_IQ4_XS: unpack_blocks(P_IQ4_XS, is_signed, from, k, to); break;
        case P_MXFP4: unpack_blocks(P_MXFP4, is_signed, from, k, to); break;
        case P_T4_F: unpack_blocks(P_T4_F, is_signed, from, k, to); break;
        case P_Q6_K: unpack_blocks(P_Q6_K, is_signed, from, k, to); break;
        case P_Q8_Z: unpack_blocks(P_Q8_Z, is_signed, from, k, to); break;
        UNPACK_PLANE(P_NF4)
        UNPACK_PLANE(P_FP4)
        UNPACK_PLANE(P_Q2_K)
        default: abort();
    }
}

/* Packed bf16 [k / 2][16 rows][2] -> [k][16]. */
INLINE void widen_generic(const uint8_t *from, int64_t k, float *to) {
    for (int64_t i = 0; i < k / 2; i++, from += 64, to += 32)
        for (int v = 0; v < 64; v += VECTOR_BYTES) {
            Pairs pairs;
            memcpy(&pairs, from + v, sizeof pairs);
            store_words((int8_t *)to + v, (Words)(pairs << 16));
            store_words((int8_t *)(to + 16) + v, (Words)(pairs & 0xffff0000u));
        }
}

/* Runs `body` with HALVES and SHIFT constants of the kind. */
#define WITH_SCALES(kind, body)                  \
    if (formats[kind].halves == 2) {             \
        enum { HALVES = 2, SHIFT = 0 };          \
        body;                                    \
    } else if (formats[kind].shift) {            \
        enum { HALVES = 1, SHIFT = 1 };          \
        body;                                    \
    } else {                                     \
        enum { HALVES = 1, SHIFT = 0 };          \
        body;                                    \
    }

/* Rows of tile t that are there. */
INLINE int64_t tile_rows_of(const Acts *a, int64_t t) { return min64(a->rows - t * TILE_ROWS, TILE_ROWS); }

/* Rows of a stretch that are there. */
INLINE int64_t stretch_rows(const Stretch *x) {
    return min64(x->acts->rows - x->tile * TILE_ROWS, x->tiles * TILE_ROWS);
}

/* Runs `body` for every tile of a stretch, with T the tile, ACC its sums and ROWS the rows that are there (1, 2 or, for
 * 3 and 4, TILE_ROWS) a constant. */
#define FOR_TILES(x, body)                                                                     \
    for (int64_t i = 0; i < (x)->tiles; i++) {                                                 \
        const int64_t T = (x)->tile + i;                                                       \
        float *ACC = (x)->acc + i * TILE_ROWS * GROUP;                                         \
        switch (tile_rows_of((x)->acts, T)) {                                                  \
            case 1: { enum { ROWS = 1 }; body; } break;                                        \
            case 2: { enum { ROWS = 2 }; body; } break;                                        \
            default: { enum { ROWS = TILE_ROWS }; body; } break;                               \
        }                                                                                      \
    }

#endif
