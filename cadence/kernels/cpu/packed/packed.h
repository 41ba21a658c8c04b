/* Matrix products with packed weights: y[M, N] = x[M, K] * W[N, K]^T + bias.
 *
 * A weight is packed once, in groups of GROUP output rows: what one step along K needs for all rows of a group lies
 * side by side, so a vector lane is an output row and a group is read as one stream. K is padded to a multiple of
 * K_STEP with zeros, rows to a multiple of GROUP.
 *
 * Order of sums. Every output element is one chain over K, the same whatever M, the number of threads and the
 * instruction set. Quantised kinds: x is rounded to int8 per row and K_STEP, with a scale of 22 significant bits; products
 * of a step are summed as integers (exact); then
 *     sum = fma(float(step) * x_scale, w_scale, sum);  sum = fma(w_shift, x_sum, sum)  (kinds with a shift).
 * Kinds of two planes, whose weights are unit * first + second with a number of each: two such chains, from 0 on, and
 *     y = fma(sum of the first, unit, sum of the second).
 * Kinds of floats: sum = fma(x, w, sum) for k = 0, 1, 2 ... P_F8, whose numbers have scales: for each K_STEP
 *     run = fma(x, w, run) for k = 0, 1, 2 ... from 0 on;  sum = fma(run, scale, sum),
 * where w is 2^-8 of the number, as a float16 of its bits is, and scale 2^8 times that of the number. An instruction set with bf16 products of its own keeps one
 * order of its own for bf16 x (and only for that), whatever M. So does one that multiplies P_HALF by bf16 x in float16:
 * for each HALF_RUN of K
 *     run = x * w, then fma(x, w, run), in order and rounded to float16;  sum = sum + float(run);
 * at the end sum * a * b, where a <= b are what undoes the powers of two of the rows of x and w. */
#ifndef CADENCE_PACKED_H
#define CADENCE_PACKED_H

#include "runtime/common.h"
#include "runtime/isa.h"

#define GROUP 16
#define K_STEP 32
#define K_CHUNK 1024     /* elements of K unpacked at once: a group's tile stays in the L1 cache */
#define K_CHUNK_WIDE 256 /* the same for float tiles */
#define K_CHUNK_PAIR 128 /* the same for float tiles of two groups */
#define K_BLOCK 256      /* the longest block of a format */
#define TILE_ROWS 4      /* rows of x whose scales lie side by side */
#define PADDED_ROWS 16   /* rows of x that some kernels read together */
#define NARROW_TILE 16   /* rows of x whose bf16 numbers lie side by side */
#define NARROW_ROWS 32   /* rows of x of one bf16 product */
#define HALF_ROWS 8      /* rows of x that float16 products take together */
#define HALF_RUN 64      /* elements of K summed in float16 */
#define LIFT 12582912.0f /* 1.5 * 2^23: adding it to an integer below 2^22 leaves that in the low bits */

#define P_KINDS (P_Q8_Z + 1) /* enum kind */
#define F8_RUN 128         /* elements of K that have one scale in P_F8 */

/* One block of a group: `header` bytes of scales, then for each K_STEP `bytes` of quants:
 *   8 bits: [8 quads][16 rows][4] int8
 *   2 bits: [2 halves][16 rows][4] uint8, the first quad of a half in the lowest bits
 *   4 bits: [4][16 rows][4] uint8, quad c in the low halves of part c, quad c + 4 in the high halves
 *   5 bits: [5][16 rows][4] uint8: quad p in the top bits of part p; below them the upper three bits of quads 5, 6 and 7
 *           in parts 0, 1 and 2, and in parts 3 and 4 the other two of quad 5 (6) and then bit 1 (0) of quad 7
 *   6 bits: twice [3][16 rows][4] uint8, for quads 0-3 and 4-7: quad p in the top bits of part p; below them the upper,
 *           middle and lower two bits of the fourth quad in parts 0, 1 and 2
 * (a quad: 4 elements along K). So a quad of 5 or 6 bits takes one to three instructions to be alone in the top bits of
 * its byte, as a signed number: the top bit of a quant of 5 or 6 bits, and of Q4_0, is stored inverted.
 * Codes: 4 bits as above, each the index of a number in a table of 16 int8. Such kinds are multiplied as bytes are
 * (bits 8), once they have been looked up.
 * Headers, all [16 rows] innermost:
 *   32-blocks: scale f16, then shift f16 where the kind has one; Q4_Z, Q8_Z: scale f16, -zero f16 (a whole number),
 *   times which it is the shift, exactly; Q8_F: scale f32
 *   Q2_K: scale f16, minimum f16, [16] uint8: of 16 elements a scale in the low half, a minimum in the high one
 *   Q4_K, Q5_K: scale f16, minimum f16, [8] uint8 scales, [8] uint8 minimums
 *   Q6_K: scale f16, [16] uint8 scales (one per 16 elements), 128 too large
 *   IQ4_NL: scale f16; IQ4_XS: scale f16, [8] uint8 scales, 128 too large; MXFP4: exponent uint8 of twice the scale
 *   T4_F: [2] scale f32 (one per 16 elements), then the table, the same in all blocks of a weight
 *   NF4, FP4: scale f32 of the numbers of their tables: the block's largest divided by the largest of those
 * table: that of codes (of the first plane; that of the second follows), OWN_TABLE = in the header, 0 = the quants are no
 * codes. unit: of a kind of two planes, else 0. NF4, FP4: both planes have the block's scale. Q2_K: the first plane is of
 * quants times small scales, with the block's scale; the second of small minimums, with the block's minimum below zero. */
typedef struct {
    int32_t block, header, step_bytes, bits, zero, halves, shift, table, unit;
} Format;

enum { IQ4_TABLE = 1, FP4_TABLE, NF4_FIRST, NF4_SECOND, BNB_FIRST, BNB_SECOND, OWN_TABLE };

/* Tables of more than eight bits in two planes, UNIT * first + second, the two of one sign. bitsandbytes' nf4: its
 * numbers times NF4_MOST, rounded, none by more than 2^-15.9 of the largest. Its fp4: times FP4_MOST, exactly. The sign
 * is the top bit of a code: set for numbers below zero in fp4, and not in nf4. */
#define UNIT 128
#define NF4_MOST 15684
#define FP4_MOST 12288

static const int8_t code_tables[OWN_TABLE][16] __attribute__((aligned(16))) = {
    [IQ4_TABLE] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    [FP4_TABLE] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, /* E2M1, times two */
    [NF4_FIRST] = {-122, -85, -64, -48, -34, -22, -11, 0, 9, 19, 30, 41, 54, 68, 88, 122},
    [NF4_SECOND] = {-68, -39, -43, -50, -109, -82, -20, 0, 96, 92, 20, 52, 0, 120, 75, 68},
    [BNB_FIRST] = {0, 0, 64, 96, 32, 48, 16, 24, 0, 0, -64, -96, -32, -48, -16, -24},
    [BNB_SECOND] = {0, 64, 0, 0, 0, 0, 0, 0, 0, -64, 0, 0, 0, 0, 0, 0},
};

static const Format formats[P_KINDS] = {
    [P_Q8_0] = {32, 32, 512, 8, 0, 1, 0},      [P_Q4_0] = {32, 32, 256, 4, 8, 1, 0},
    [P_Q4_1] = {32, 64, 256, 4, 0, 1, 1},    [P_Q5_0] = {32, 32, 320, 5, 16, 1, 0},
    [P_Q5_1] = {32, 64, 320, 5, 0, 1, 1},    [P_Q4_K] = {256, 320, 256, 4, 0, 1, 1},
    [P_Q5_K] = {256, 320, 320, 5, 0, 1, 1},  [P_Q6_K] = {256, 288, 384, 6, 32, 2, 0},
    [P_Q4_Z] = {32, 64, 256, 4, 0, 1, 1},    [P_Q8_F] = {32, 64, 512, 8, 0, 1, 0},
    [P_IQ4_NL] = {32, 32, 256, 8, 0, 1, 0, IQ4_TABLE}, [P_IQ4_XS] = {256, 160, 256, 8, 0, 1, 0, IQ4_TABLE},
    [P_MXFP4] = {32, 16, 256, 8, 0, 1, 0, FP4_TABLE},  [P_T4_F] = {32, 144, 256, 8, 0, 2, 0, OWN_TABLE},
    [P_NF4] = {64, 64, 256, 8, 0, 1, 0, NF4_FIRST, UNIT}, [P_FP4] = {64, 64, 256, 8, 0, 1, 0, BNB_FIRST, UNIT},
    [P_Q2_K] = {256, 320, 128, 2, 0, 1, 0, 0, 1},        [P_Q8_Z] = {32, 64, 512, 8, 0, 1, 1},
};

/* Floats: F32 and F16 (finite) are [k][16 rows], BF16 is [k / 2][16 rows][2]. HALF holds rows of bf16 numbers as [k][16 rows] float16, each
 * row times a power of two that brings its largest finite element to [2^6, 2^7); after them [16 rows] float, what
 * undoes these powers. Elements below 2^-23 of the row's largest lose bits; none is off by more than 2^-31 of it.
 * F8: for each F8_RUN of K, of which the last may be shorter, [16 rows] float scales (2^8 times those of numbers), then
 * [k][16 rows] float8 E4M3, of which all are numbers. */
INLINE int is_float_kind(int64_t kind) {
    return kind == P_F32 || kind == P_BF16 || kind == P_HALF || kind == P_F16 || kind == P_F8;
}

/* Whether quants lie as the bytes that are multiplied. */
INLINE int lies_in_bytes(int64_t kind) { return formats[kind].bits == 8 && !formats[kind].table; }

INLINE int has_planes(int64_t kind) { return formats[kind].unit != 0; }

/* Whether shifts are zero points times scales. */
INLINE int has_zeros(int64_t kind) { return kind == P_Q4_Z || kind == P_Q8_Z; }

/* The kind whose unpacked tiles are multiplied as those of `kind`, or of one of its planes, are. */
INLINE int64_t tile_kind(int64_t kind) {
    if (!formats[kind].table && !has_planes(kind)) return kind;
    return formats[kind].halves == 1 ? P_Q8_0 : P_T4_F;
}

/* The table of a kind of codes; header: of any block. */
INLINE const int8_t *table_of(int64_t kind, const uint8_t *header) {
    return formats[kind].table == OWN_TABLE ? (const int8_t *)header + 2 * GROUP * 4 : code_tables[formats[kind].table];
}

/* Whether a block has a scale of its own, and small integers, 128 too large, for the scales of its steps. */
INLINE int has_small_scales(int64_t kind) {
    return formats[kind].block != K_STEP && !formats[kind].shift && !has_planes(kind);
}

/* The bit of a quant that is stored inverted. */
INLINE int inverted_bit(int64_t kind) {
    const int bits = formats[kind].bits;
    return bits == 5 || bits == 6 || kind == P_Q4_0 ? 1 << (bits - 1) : 0;
}

/* Bytes of `k` elements (a multiple of the kind's block) of one group. */
INLINE int64_t group_bytes(int64_t kind, int64_t k) {
    if (kind == P_F32) return k * GROUP * 4;
    if (kind == P_F8) return (k + F8_RUN - 1) / F8_RUN * GROUP * 4 + k * GROUP;
    if (is_float_kind(kind)) return k * GROUP * 2;
    const Format *f = &formats[kind];
    return k / f->block * (f->header + f->block / K_STEP * f->step_bytes);
}

/* Bytes of a whole group of rows of `k` elements. */
INLINE int64_t group_size(int64_t kind, int64_t k) {
    return group_bytes(kind, round_up(k, K_STEP)) + (kind == P_HALF ? GROUP * 4 : 0);
}

INLINE int64_t packed_bytes(int64_t kind, int64_t rows, int64_t k) {
    return (rows + GROUP - 1) / GROUP * group_size(kind, k);
}

/* A stretch of a group ready to be multiplied: at [steps][8 quads][16 rows][4], step_bytes from step to step (in q, or
 * the packed bytes themselves); scale [steps * halves][16], shift [steps][16]. Whether quants are signed is the
 * backend's affair. */
typedef struct {
    const int8_t *at;
    int64_t step_bytes;
    int8_t q[K_CHUNK * GROUP] __attribute__((aligned(64)));
    float scale[K_CHUNK / K_STEP * 2 * GROUP] __attribute__((aligned(64)));
    float shift[K_CHUNK / K_STEP * GROUP] __attribute__((aligned(64)));
} Tile;

/* A step of a tile of rows of x, all that is multiplied together in one stretch of memory. lift: -LIFT * scale; begin:
 * what sums of quants of 5 bits begin at where they have no zero. */
typedef struct {
    int8_t q[TILE_ROWS][K_STEP];
    float scale[TILE_ROWS], sum[TILE_ROWS], lift[TILE_ROWS][4];
    int32_t begin[TILE_ROWS];
} TileStep;

/* x, in the forms that the weights of a call need; the others are NULL. Rows are padded to PADDED_ROWS; what padding
 * holds is no matter, except that `tiles`, q, scale, sum and `wide` of the rows that fill up a tile are zero. */
typedef struct {
    TileStep *tiles;    /* [tiles][steps] and one more, instead of the next four where the backend wants it so */
    int8_t *q;          /* [rows][padded] */
    float *scale;       /* [tiles][steps][TILE_ROWS] */
    float *sum;         /* the same shape: scale * sum of q over the step */
    int32_t *half_sums; /* [tiles][steps][TILE_ROWS][2]: sums of q over the halves of the step */
    float *wide;        /* [tiles][padded][TILE_ROWS] */
    uint16_t *narrow;   /* [tiles of NARROW_TILE][steps][NARROW_TILE][K_STEP] bf16 */
    uint16_t *half;     /* [tiles of HALF_ROWS][padded][n] float16, n: half_lanes of the rows in that tile */
    float *half_scale;  /* [rows]: what undoes the powers of two in `half` */
    int64_t rows, padded, steps;
} Acts;

/* Bytes that will be read soon. */
typedef struct {
    const char *at;
    int64_t bytes;
} Ask;

/* Some rows of x along some of K, and where their sums go: tiles [tile, tile + tiles), from `at` on `count` steps (or
 * elements, for floats). */
typedef struct {
    const Acts *acts;
    int64_t tile, tiles, at, count;
    float *acc;     /* [tiles][TILE_ROWS][GROUP] */
    float *second;  /* the same for the second of two groups */
    int64_t stride; /* from row to row of acc: GROUP, or any in a backend that sums in place */
    Ask soon;       /* memory that may be asked for meanwhile */
} Stretch;

/* What an instruction set brings. */
struct Backend {
    void (*quantize)(const float *x, int64_t k, const Acts *a, int64_t row);
    void (*unpack)(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to); /* plane: 0 where there is one */
    void (*dot)(int64_t kind, const Tile *w, const Stretch *x); /* adds to x->acc */
    /* All of K for up to direct_rows rows (all there are) straight from the packed bytes, acc [rows][GROUP]; false = not
     * for this kind and number. */
    int (*direct)(int64_t kind, const uint8_t *from, const Acts *a, float *acc);
    int64_t direct_rows; /* a multiple of TILE_ROWS */
    int direct_planes;   /* whether it is faster for kinds of two planes, direct_rows at a time, however many there are */
    void (*widen)(const uint8_t *from, int64_t k, float *to);
    void (*dot_wide)(const float *w, const Stretch *x); /* w [count][16]; adds to x->acc */
    /* The same bits for two groups at once, into x->acc and x->second: what is loaded of x serves both. NULL = one group
     * at a time is as good. `next`: floats from w to the second group. */
    void (*dot_two)(int64_t kind, const Tile *first, const Tile *second, const Stretch *x);
    void (*dot_wide_two)(const float *w, int64_t next, const Stretch *x);
    /* bf16 times bf16 over all of K, NULL = there is none: a group and, unless `next` is 0, the one that many bytes
     * after it; rows [row, row + count) of x, row a multiple of NARROW_ROWS, count up to that; acc [groups][count,
     * rounded up to NARROW_TILE][16]. Memory may be asked for `soon` meanwhile. */
    void (*dot_narrow)(const uint8_t *from, int64_t next, const Acts *a, int64_t row, int64_t count, Ask soon,
                       float *acc);
    /* The same bits for up to TILE_ROWS rows (all there are) from Acts.wide, acc [TILE_ROWS][16]; NULL: dot_narrow is as
     * good. */
    void (*few_narrow)(const uint8_t *from, const Acts *a, float *acc);
    /* float16 products, NULL = there are none: rows of bf16 x [k] into tile `tile` of Acts.half; and P_HALF times them
     * over all of K for rows [row, row + count), row a multiple of HALF_ROWS, acc [count, rounded up to that][16]. */
    void (*halve)(const uint16_t *x, int64_t stride, int64_t k, const Acts *a, int64_t tile);
    void (*dot_half)(const uint8_t *from, const Acts *a, int64_t row, int64_t count, float *acc);
    int tiled;           /* whether it wants Acts.tiles */
    int in_place;        /* whether its dot takes any stride, and sets acc where K begins instead of adding */
    /* With more than TILE_ROWS rows, on every thread: before work on weights of a kind, unless it is direct, and after
     * all work. NULL = nothing to do. */
    void (*begin)(int64_t kind);
    void (*end)(void);
};

typedef struct packed_linear PackedJob;

enum { PACKED_OK = 0, PACKED_BAD_SIZE = 1, PACKED_NO_MEMORY = 2, PACKED_BAD_ROW = 3 };

/* k must fill whole blocks of the formats with long ones; bounds keep products from overflowing. */
INLINE int packed_shape_fits(int64_t kind, int64_t rows, int64_t k) {
    if (kind < 0 || kind >= P_KINDS || rows < 1 || k < 1 || rows > (int64_t)1 << 40 || k > (int64_t)1 << 20) return 0;
    return is_float_kind(kind) || round_up(k, K_STEP) % formats[kind].block == 0;
}

INLINE int packed_sizes_fit(const uint8_t *data, int64_t kind, int64_t rows, int64_t k, int64_t bytes) {
    return data && packed_shape_fits(kind, rows, k) && bytes == packed_bytes(kind, rows, k);
}

/* Rows of x side by side in a tile of Acts.half that has so many. */
INLINE int half_lanes(int64_t rows) { return rows <= 2 ? (int)rows : rows <= 4 ? 4 : HALF_ROWS; }

/* ---- scalars ---- */

INLINE float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

INLINE uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

INLINE float half_to_float(uint16_t h) {
    uint32_t rest = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float scaled = float_of_bits(rest) * 0x1p112f; /* re-biases the exponent; subnormals become exact normals */
    uint32_t bits = rest >= (0x7c00u << 13) ? rest | 0x7f800000u : bits_of_float(scaled);
    return float_of_bits(bits | sign);
}

/* The bits of 2^-8 of a float8 (E4M3) that is a number, as float16. */
INLINE uint16_t float8_to_half(uint8_t byte) { return (uint16_t)((byte & 0x80) << 8 | (byte & 0x7f) << 7); }

/* The bits, as a float, of the largest finite |x| of a row of bf16. */
INLINE uint32_t largest_finite(const void *row, int64_t k) {
    typedef uint16_t Eight __attribute__((vector_size(16)));
    Eight most = {0};
    for (int64_t i = 0; i < k; i += 8) {
        Eight bits = {0};
        if (k - i >= 8)
            memcpy(&bits, (const char *)row + i * 2, 16);
        else
            memcpy(&bits, (const char *)row + i * 2, (size_t)(k - i) * 2);
        bits &= 0x7fff;
        bits &= (Eight)(bits < 0x7f80);
        Eight more = (Eight)(bits > most);
        most = (bits & more) | (most & ~more);
    }
    uint16_t top = 0;
    for (int i = 0; i < 8; i++) top = most[i] > top ? most[i] : top;
    return (uint32_t)top << 16;
}

/* The power of two that brings `top`, the bits of the largest finite |x| of a row, to [2^to, 2^(to + 1)), to > 0, or
 * as near as is possible with a float and its inverse. Of rows of x and of weights |x * w| < 2^9: a sum of HALF_RUN of
 * them is at most 2^15 however it is rounded on the way, and float16 ends at 65504. */
enum { TO_X = 1, TO_WEIGHT = 6 };
INLINE float half_power(uint32_t top, int to) {
    uint32_t exponent = 254 + (uint32_t)to - (top >> 23);
    return float_of_bits((exponent < 253 ? exponent : 253) << 23);
}

/* The scale of MXFP4: 2^(exponent - 128), which is below the normal floats for the lowest two. */
INLINE float exponent_to_float(uint8_t exponent) {
    return float_of_bits(exponent ? (uint32_t)exponent << 23 : 0x400000u) * 0.5f;
}

INLINE float bfloat_to_float(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

INLINE uint16_t float_to_bfloat(float x) {
    uint32_t bits = bits_of_float(x);
    return (uint16_t)(x != x ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#endif
