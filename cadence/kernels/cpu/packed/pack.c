/* Puts weights into groups of rows, once, at load: from GGUF blocks as they lie in the file, or from floats. */
#include "packed/packed.h"
#include "runtime/threads.h"

#define WORTH_SHARING 65536 /* elements a thread takes at once */

typedef struct {
    int32_t elements, bytes;
} SourceBlock;

/* A block in the file. */
static const SourceBlock source_blocks[P_KINDS] = {
    [P_F32] = {1, 4},    [P_BF16] = {1, 2},   [P_Q8_0] = {32, 34},     [P_Q4_0] = {32, 18},  [P_Q4_1] = {32, 20},
    [P_Q5_0] = {32, 22}, [P_Q5_1] = {32, 24}, [P_Q4_K] = {256, 144}, [P_Q5_K] = {256, 176}, [P_Q6_K] = {256, 210},
    [P_HALF] = {1, 2},    [P_Q4_Z] = {32, 20}, [P_Q8_F] = {32, 36}, [P_F16] = {1, 2},
    [P_IQ4_NL] = {32, 18}, [P_IQ4_XS] = {256, 136}, [P_MXFP4] = {32, 17}, [P_T4_F] = {32, 40},
    [P_F8] = {32, 36},    [P_NF4] = {64, 36}, [P_FP4] = {64, 36},   [P_Q2_K] = {256, 84},   [P_Q8_Z] = {32, 36},
};

/* Quant i of each quad, q[quad * 4 + i], into byte `lane` of the parts of a step. */
static void store_lane(int bits, const uint8_t *q, uint8_t *to, int lane) {
    to += lane;
    if (bits == 4) {
        for (int p = 0; p < 4; p++) to[p * 64] = (uint8_t)((q[p * 4] & 15) | (q[p * 4 + 16] & 15) << 4);
    } else if (bits == 5) {
        const int a = q[20], b = q[24], c = q[28];
        const int low[5] = {a >> 2, b >> 2, c >> 2, (a & 3) << 1 | (c >> 1 & 1), (b & 3) << 1 | (c & 1)};
        for (int p = 0; p < 5; p++) to[p * 64] = (uint8_t)(q[p * 4] << 3 | low[p]);
    } else {
        for (int p = 0; p < 6; p++) {
            const int fourth = q[p / 3 * 16 + 12];
            to[p * 64] = (uint8_t)(q[(p / 3 * 4 + p % 3) * 4] << 2 | (fourth >> (4 - p % 3 * 2) & 3));
        }
    }
}

/* 32 quants of row r into a step of its group. */
static void store_quants(int64_t kind, const uint8_t *q, uint8_t *to, int r) {
    uint8_t stored[K_STEP];
    for (int i = 0; i < K_STEP; i++) stored[i] = q[i] ^ (uint8_t)inverted_bit(kind);
    for (int i = 0; i < 4; i++) store_lane(formats[kind].bits, stored + i, to, r * 4 + i);
}

/* A step of a block that has its fifth bits in front. */
static void pack_fives(int64_t kind, const uint8_t *from, uint8_t *to, int r) {
    uint8_t q[K_STEP];
    uint32_t fifth;
    memcpy(&fifth, from, 4);
    for (int i = 0; i < 16; i++) {
        q[i] = (uint8_t)((from[4 + i] & 15) | (fifth >> i & 1) << 4);
        q[i + 16] = (uint8_t)(from[4 + i] >> 4 | (fifth >> (i + 16) & 1) << 4);
    }
    store_quants(kind, q, to, r);
}

static void pack_short_block(int64_t kind, const uint8_t *from, uint8_t *to, int r) {
    const Format *f = &formats[kind];
    const int scale_bytes = kind == P_Q8_F ? 4 : 2;
    memcpy(to + r * scale_bytes, from, (size_t)scale_bytes);
    if (f->shift) memcpy(to + 32 + r * 2, from + 2, 2);
    if (has_zeros(kind)) to[32 + r * 2 + 1] ^= 0x80; /* the zero below zero */
    from += scale_bytes + (f->shift ? 2 : 0);
    to += f->header;
    if (f->bits == 5) {
        pack_fives(kind, from, to, r);
        return;
    }
    const uint32_t inverted = (uint32_t)inverted_bit(kind) * 0x11111111u;
    for (int quad = 0; quad < f->bits; quad++) { /* 4 words of halves, or 8 of bytes */
        uint32_t word;
        memcpy(&word, from + quad * 4, 4);
        word ^= inverted;
        memcpy(to + quad * 64 + r * 4, &word, 4);
    }
}

/* Twelve bytes hold eight 6-bit pairs: the first four pairs whole in bytes 0-7, the last four with their low halves in
 * bytes 8-11 and their top bits above the first four. */
static void pack_k_scales(const uint8_t *from, uint8_t *scale, uint8_t *least) {
    for (int i = 0; i < 4; i++) {
        scale[i * GROUP] = from[i] & 63;
        least[i * GROUP] = from[4 + i] & 63;
        scale[(4 + i) * GROUP] = (uint8_t)((from[8 + i] & 15) | (from[i] >> 6) << 4);
        least[(4 + i) * GROUP] = (uint8_t)((from[8 + i] >> 4) | (from[4 + i] >> 6) << 4);
    }
}

/* Sixteen bytes of codes, the first sixteen in the low halves, into a step. */
static void store_codes(const uint8_t *from, uint8_t *to, int r) {
    for (int part = 0; part < 4; part++) memcpy(to + part * 64 + r * 4, from + part * 4, 4);
}

/* IQ4_XS: scale f16, the upper two bits of eight small scales, their lower four, codes; small scales are 32 too large. */
static void pack_small_scaled_codes(const uint8_t *from, uint8_t *to, int r) {
    const Format *f = &formats[P_IQ4_XS];
    memcpy(to + r * 2, from, 2);
    for (int s = 0; s < 8; s++) {
        int low = from[4 + s / 2] >> (s % 2 * 4) & 15, high = from[2 + s / 4] >> (s % 4 * 2) & 3;
        to[32 + s * GROUP + r] = (uint8_t)((low | high << 4) - 32 + 128);
        store_codes(from + 8 + s * 16, to + f->header + s * f->step_bytes, r);
    }
}

static void pack_codes(int64_t kind, const uint8_t *from, uint8_t *to, int r) {
    const int before = source_blocks[kind].bytes - 16; /* bytes in front of codes */
    if (kind == P_IQ4_XS) {
        pack_small_scaled_codes(from, to, r);
        return;
    }
    if (kind == P_IQ4_NL) memcpy(to + r * 2, from, 2);
    if (kind == P_MXFP4) to[r] = from[0];
    if (kind == P_T4_F) {
        memcpy(to + 2 * GROUP * 4, from, 16);
        for (int h = 0; h < 2; h++) memcpy(to + (h * GROUP + r) * 4, from + 16 + h * 4, 4);
    }
    store_codes(from + before, to + formats[kind].header, r);
}

/* The largest of 64 columns, float32, then two steps of codes. */
static void pack_table_block(int64_t kind, const uint8_t *from, uint8_t *to, int r) {
    const Format *f = &formats[kind];
    float scale;
    memcpy(&scale, from, 4);
    scale /= kind == P_NF4 ? NF4_MOST : FP4_MOST;
    memcpy(to + r * 4, &scale, 4);
    for (int s = 0; s < 2; s++) store_codes(from + 4 + s * 16, to + f->header + s * f->step_bytes, r);
}

/* Q2_K: small scales and minimums, quants of each half's four steps in pairs of bits, scale f16, minimum f16. */
static void pack_two_bits(const uint8_t *from, uint8_t *to, int r) {
    const Format *f = &formats[P_Q2_K];
    memcpy(to + r * 2, from + 80, 2);
    memcpy(to + 32 + r * 2, from + 82, 2);
    for (int i = 0; i < 16; i++) to[64 + i * GROUP + r] = from[i];
    for (int step = 0; step < 8; step++)
        for (int i = 0; i < K_STEP; i++) {
            int q = from[16 + step / 4 * 32 + i] >> (step % 4 * 2) & 3;
            to[f->header + step * f->step_bytes + i / 16 * 64 + r * 4 + i % 4] |= (uint8_t)(q << (i % 16 / 4 * 2));
        }
}

/* A block of a kind of two planes. */
static void pack_planes(int64_t kind, const uint8_t *from, uint8_t *to, int r) {
    if (kind == P_Q2_K)
        pack_two_bits(from, to, r);
    else
        pack_table_block(kind, from, to, r);
}

static void pack_long_block(int64_t kind, const uint8_t *from, uint8_t *to, int r) {
    const Format *f = &formats[kind];
    const uint8_t *nibbles = from + (kind == P_Q6_K ? 0 : kind == P_Q4_K ? 16 : 48);
    if (kind == P_Q6_K) {
        memcpy(to + r * 2, from + 208, 2);
        for (int i = 0; i < 16; i++) to[32 + i * GROUP + r] = from[192 + i] ^ 128; /* plus 128 */
    } else {
        memcpy(to + r * 2, from, 2);
        memcpy(to + 32 + r * 2, from + 2, 2);
        pack_k_scales(from + 4, to + 64 + r, to + 64 + 8 * GROUP + r);
    }
    for (int step = 0; step < 8; step++) {
        uint8_t q[K_STEP];
        for (int i = 0; i < K_STEP; i++) {
            if (kind == P_Q6_K) {
                int half = step / 4, run = step % 4;
                int low = nibbles[half * 64 + run % 2 * 32 + i] >> (run / 2 * 4);
                q[i] = (uint8_t)((low & 15) | ((from[128 + half * 32 + i] >> (2 * run)) & 3) << 4);
            } else {
                q[i] = (nibbles[step / 2 * 32 + i] >> (step % 2 * 4)) & 15;
                if (kind == P_Q5_K) q[i] |= (uint8_t)(((from[16 + i] >> step) & 1) << 4);
            }
        }
        store_quants(kind, q, to + f->header + step * f->step_bytes, r);
    }
}

/* A row of bf16 as float16 numbers, times a power of two; its inverse after all elements of the group. */
static void pack_half_row(const uint8_t *from, int64_t k, uint8_t *to, int r) {
    float power = half_power(largest_finite(from, k), TO_WEIGHT), inverse = 1.0f / power;
    memcpy(to + group_bytes(P_HALF, round_up(k, K_STEP)) + r * 4, &inverse, 4);
    for (int64_t i = 0; i < k; i += VL) {
        vh halves = f32_to_f16(load_upto(from, i, BF16, k - i) * splat(power));
        for (int64_t j = 0; j < min64(VL, k - i); j++) {
            uint16_t half = halves[j];
            memcpy(to + ((i + j) * GROUP + r) * 2, &half, 2);
        }
    }
}

/* A row of float8 in blocks of 32 with a scale; blocks of one F8_RUN have the same. */
static void pack_float8_row(const uint8_t *from, int64_t k, uint8_t *to, int r) {
    for (int64_t b = 0; b < k / K_STEP; b++, from += 4 + K_STEP) {
        uint8_t *run = to + group_bytes(P_F8, b * K_STEP / F8_RUN * F8_RUN), *at = run + GROUP * 4;
        float scale;
        memcpy(&scale, from, 4);
        scale *= 0x1p8f;
        memcpy(run + r * 4, &scale, 4);
        at += b * K_STEP % F8_RUN * GROUP;
        for (int i = 0; i < K_STEP; i++) at[i * GROUP + r] = from[4 + i];
    }
}

/* `k` elements of row r of a group. */
static void pack_row(int64_t kind, const uint8_t *from, int64_t k, uint8_t *to, int r) {
    const Format *f = &formats[kind];
    int64_t block_bytes = is_float_kind(kind) ? 0 : group_bytes(kind, f->block);
    if (kind == P_F32)
        for (int64_t i = 0; i < k; i++) memcpy(to + (i * GROUP + r) * 4, from + i * 4, 4);
    else if (kind == P_BF16)
        for (int64_t i = 0; i < k; i++) memcpy(to + (i / 2 * GROUP + r) * 4 + i % 2 * 2, from + i * 2, 2);
    else if (kind == P_F16)
        for (int64_t i = 0; i < k; i++) memcpy(to + (i * GROUP + r) * 2, from + i * 2, 2);
    else if (kind == P_HALF)
        pack_half_row(from, k, to, r);
    else if (kind == P_F8)
        pack_float8_row(from, k, to, r);
    else if (has_planes(kind))
        for (int64_t b = 0; b < k / f->block; b++)
            pack_planes(kind, from + b * source_blocks[kind].bytes, to + b * block_bytes, r);
    else if (f->table)
        for (int64_t b = 0; b < k / f->block; b++)
            pack_codes(kind, from + b * source_blocks[kind].bytes, to + b * block_bytes, r);
    else if (f->block == K_STEP)
        for (int64_t b = 0; b < k / K_STEP; b++)
            pack_short_block(kind, from + b * source_blocks[kind].bytes, to + b * block_bytes, r);
    else
        for (int64_t b = 0; b < k / f->block; b++)
            pack_long_block(kind, from + b * source_blocks[kind].bytes, to + b * block_bytes, r);
}

typedef struct {
    uint8_t *to;
    const uint8_t *from;
    int64_t kind, rows, k, row_bytes, group_size;
} WeightPacking;

static void pack_groups(void *work, int64_t begin, int64_t end, int64_t thread) {
    const WeightPacking *p = work;
    for (int64_t g = begin; g < end; g++) {
        uint8_t *to = p->to + g * p->group_size;
        memset(to, 0, (size_t)p->group_size);
        for (int64_t r = 0; r < min64(GROUP, p->rows - g * GROUP); r++)
            pack_row(p->kind, p->from + (g * GROUP + r) * p->row_bytes, p->k, to, (int)r);
    }
}

/* from: rows of k elements, `from_bytes` in all, without gaps -> to: `to_bytes`. k fills whole blocks of the source. */
EXPORT int64_t cadence_pack(uint8_t *to, int64_t to_bytes, const uint8_t *from, int64_t from_bytes, int64_t kind,
                            int64_t rows, int64_t k) {
    if (!packed_sizes_fit(to, kind, rows, k, to_bytes) || k % source_blocks[kind].elements) return PACKED_BAD_SIZE;
    int64_t row_bytes = k / source_blocks[kind].elements * source_blocks[kind].bytes;
    if (rows > INT64_MAX / row_bytes || from_bytes != rows * row_bytes) return PACKED_BAD_SIZE;
    WeightPacking work = {to, from, kind, rows, k, row_bytes, group_size(kind, k)};
    share((rows + GROUP - 1) / GROUP, WORTH_SHARING / (GROUP * k) + 1, pack_groups, &work);
    return PACKED_OK;
}
