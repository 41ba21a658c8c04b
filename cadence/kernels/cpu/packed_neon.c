/* Packed products on 64-bit Arm: with the dot product instructions, and without. */
#if defined(__aarch64__)

#include "packed_generic.h"

#include <arm_neon.h>

#ifdef __ARM_FEATURE_DOTPROD
#define DOT_TARGET
#elif defined(__clang__)
#define DOT_TARGET __attribute__((target("dotprod")))
#else
#define DOT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

/* An integer below 2^22 added to these bits is a float that much above MAGIC: one subtraction converts it, which is
 * faster than the instruction for it. */
#define MAGIC_BITS 0x4b400000
#define MAGIC 12582912.0f

/* ---- x ---- */

static void quantize(const float *x, int64_t k, const Acts *a, int64_t row) {
    for (int64_t step = 0; step < a->steps; step++) {
        float part[K_STEP] = {0}, inverse;
        const float *from = x + step * K_STEP;
        if (k - step * K_STEP < K_STEP) {
            memcpy(part, from, (size_t)(k - step * K_STEP) * 4);
            from = part;
        }
        float32x4_t v[8];
        uint32x4_t top[8];
        EACH(i, 8) v[i] = vld1q_f32(from + i * 4), top[i] = vreinterpretq_u32_f32(vabsq_f32(v[i]));
        EACH(i, 4) top[i] = vmaxq_u32(top[i], top[i + 4]);
        uint32_t most = vmaxvq_u32(vmaxq_u32(vmaxq_u32(top[0], top[1]), vmaxq_u32(top[2], top[3])));
        float scale = step_scale(most, &inverse);
        int32x4_t n[8];
        EACH(i, 8) n[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse)); /* not a number becomes 0 */
        int16x8_t h[4];
        EACH(i, 4) h[i] = vcombine_s16(vmovn_s32(n[2 * i]), vmovn_s32(n[2 * i + 1]));
        int8_t *q = a->q + row * a->padded + step * K_STEP;
        vst1q_s8(q, vcombine_s8(vmovn_s16(h[0]), vmovn_s16(h[1])));
        vst1q_s8(q + 16, vcombine_s8(vmovn_s16(h[2]), vmovn_s16(h[3])));
        int16x8_t sum = vaddq_s16(vaddq_s16(h[0], h[1]), vaddq_s16(h[2], h[3]));
        store_step(a, row, step, scale, vaddlvq_s16(sum));
    }
}

/* ---- weights ---- */

static void unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to) { unpack_generic(kind, from, k, to); }
static void widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

/* ---- floats ---- */

/* ROWS rows of a tile of x [k][TILE_ROWS] times w [k][16]. */
INLINE void dot_wide_rows(const int rows, const float *w, const float *x, int64_t k, float *acc) {
    float32x4_t sum[TILE_ROWS][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vld1q_f32(acc + m * GROUP + v * 4);
    for (int64_t i = 0; i < k; i++) {
        float32x4_t wv[4];
        EACH(v, 4) wv[v] = vld1q_f32(w + i * GROUP + v * 4);
        float32x4_t xv = vld1q_f32(x + i * TILE_ROWS);
        EACH(m, rows) EACH(v, 4) sum[m][v] = vfmaq_n_f32(sum[m][v], wv[v], xv[m]);
    }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v]);
}

static void dot_wide(const float *w, const Acts *a, int64_t t, int64_t at, int64_t k, float *acc) {
    const float *x = a->wide + (t * a->padded + at) * TILE_ROWS;
    switch (tile_rows_of(a, t)) {
        case 1: dot_wide_rows(1, w, x, k, acc); break;
        case 2: dot_wide_rows(2, w, x, k, acc); break;
        case 3: dot_wide_rows(3, w, x, k, acc); break;
        default: dot_wide_rows(4, w, x, k, acc); break;
    }
}

/* Packed bf16 as it lies, for few rows. */
INLINE void direct_bf16(const int rows, const uint8_t *from, const Acts *a, float *acc) {
    float32x4_t sum[2][4];
    EACH(m, rows) EACH(v, 4) sum[m][v] = vdupq_n_f32(0.0f);
    const uint32x4_t top = vdupq_n_u32(0xffff0000u);
    const float *x = a->wide;
    for (int64_t i = 0; i < a->padded / 2; i++, from += 64, x += 2 * TILE_ROWS) {
        float32x4_t x0 = vld1q_f32(x), x1 = vld1q_f32(x + TILE_ROWS);
        EACH(v, 4) {
            uint32x4_t pair = vld1q_u32((const uint32_t *)(from + v * 16));
            float32x4_t even = vreinterpretq_f32_u32(vshlq_n_u32(pair, 16));
            float32x4_t odd = vreinterpretq_f32_u32(vandq_u32(pair, top));
            EACH(m, rows) {
                sum[m][v] = vfmaq_n_f32(sum[m][v], even, x0[m]);
                sum[m][v] = vfmaq_n_f32(sum[m][v], odd, x1[m]);
            }
        }
    }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + m * GROUP + v * 4, sum[m][v]);
}

/* ---- with dot product instructions ---- */

#define DOT_QUAD(sum, w, x, lane) sum = vdotq_laneq_s32(sum, w, x, lane)

/* Four quads against 8 output rows (two vectors) for `rows` rows of x. */
#define DOT_QUADS(lane)                                                       \
    {                                                                         \
        int8x16_t w0 = vld1q_s8(q + (lane) * 64), w1 = vld1q_s8(q + (lane) * 64 + 16); \
        EACH(m, rows) {                                                       \
            DOT_QUAD(part[m][0], w0, xv[m], lane);                            \
            DOT_QUAD(part[m][1], w1, xv[m], lane);                            \
        }                                                                     \
    }

/* The same for four rows of x, by hand: the compiler would copy sums about, or load too late. Integer sums of one half
 * of a step, or of a whole one, on top of MAGIC_BITS (loaded: a copy of a register would take the place of a product).
 * x: four rows, from `at` on; q: [quads][64]. v16-v19 and v20-v23 hold x, v24-v29 hold q. */
#define DOT_ROW(m, x, lane, a, b)                                \
    "sdot %[p" #m "0].4s, " a ".16b, " x ".4b[" lane "]\n"       \
    "sdot %[p" #m "1].4s, " b ".16b, " x ".4b[" lane "]\n"
#define DOT_Y(lane, a, b)                                        \
    DOT_ROW(0, "v16", lane, a, b) DOT_ROW(1, "v17", lane, a, b)  \
    DOT_ROW(2, "v18", lane, a, b) DOT_ROW(3, "v19", lane, a, b)
#define DOT_Z(lane, a, b)                                        \
    DOT_ROW(0, "v20", lane, a, b) DOT_ROW(1, "v21", lane, a, b)  \
    DOT_ROW(2, "v22", lane, a, b) DOT_ROW(3, "v23", lane, a, b)
#define LOAD_Y "ldr q16, [%[x0]]\n ldr q17, [%[x1]]\n ldr q18, [%[x2]]\n ldr q19, [%[x3]]\n"
#define LOAD_Z "ldr q20, [%[x0], 16]\n ldr q21, [%[x1], 16]\n ldr q22, [%[x2], 16]\n ldr q23, [%[x3], 16]\n"
#define LOAD_Q(a, b, at) "ldr " a ", [%[q], " #at "]\n ldr " b ", [%[q], " #at " + 16]\n"
#define START(p) "ldr %q[" p "0], [%[start]]\n ldr %q[" p "1], [%[start]]\n"
#define STARTS START("p0") START("p1") START("p2") START("p3")
#define DOT_ASM(...)                                                                                      \
    __asm__ volatile(__VA_ARGS__                                                                          \
                     : [p00] "=&w"(part[0][0]), [p01] "=&w"(part[0][1]), [p10] "=&w"(part[1][0]),         \
                       [p11] "=&w"(part[1][1]), [p20] "=&w"(part[2][0]), [p21] "=&w"(part[2][1]),         \
                       [p30] "=&w"(part[3][0]), [p31] "=&w"(part[3][1])                                   \
                     : [q] "r"(q), [x0] "r"(x[0] + at), [x1] "r"(x[1] + at), [x2] "r"(x[2] + at),         \
                       [x3] "r"(x[3] + at), [start] "r"(start)                                            \
                     : "memory", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25",    \
                       "v26", "v27", "v28", "v29")

static const int32_t start[4] __attribute__((aligned(16))) = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};

DOT_TARGET INLINE void dot_half4(const int8_t *q, const int8_t *const *x, int64_t at, int32x4_t part[][2]) {
    DOT_ASM(LOAD_Y LOAD_Q("q24", "q25", 0) LOAD_Q("q26", "q27", 64) STARTS  /**/
            DOT_Y("0", "v24", "v25") LOAD_Q("q28", "q29", 128)              /**/
            DOT_Y("1", "v26", "v27") LOAD_Q("q24", "q25", 192)              /**/
            DOT_Y("2", "v28", "v29") DOT_Y("3", "v24", "v25"));
}

DOT_TARGET INLINE void dot_step4(const int8_t *q, const int8_t *const *x, int64_t at, int32x4_t part[][2]) {
    DOT_ASM(LOAD_Y LOAD_Q("q24", "q25", 0) LOAD_Q("q26", "q27", 64) STARTS  /**/
            DOT_Y("0", "v24", "v25") LOAD_Q("q28", "q29", 128) LOAD_Z       /**/
            DOT_Y("1", "v26", "v27") LOAD_Q("q24", "q25", 192)              /**/
            DOT_Y("2", "v28", "v29") LOAD_Q("q26", "q27", 256)              /**/
            DOT_Y("3", "v24", "v25") LOAD_Q("q28", "q29", 320)              /**/
            DOT_Z("0", "v26", "v27") LOAD_Q("q24", "q25", 384)              /**/
            DOT_Z("1", "v28", "v29") LOAD_Q("q26", "q27", 448)              /**/
            DOT_Z("2", "v24", "v25") DOT_Z("3", "v26", "v27"));
}

/* Scales the integer sums of a step and adds them: 8 output rows. */
INLINE void add_part(const int rows, int32x4_t part[][2], const float *scale, const float *xs, float32x4_t sum[][2]) {
    float32x4_t s0 = vld1q_f32(scale), s1 = vld1q_f32(scale + 4), magic = vdupq_n_f32(MAGIC), d = vld1q_f32(xs);
    EACH(m, rows) {
        float32x4_t p0 = vsubq_f32(vreinterpretq_f32_s32(part[m][0]), magic);
        float32x4_t p1 = vsubq_f32(vreinterpretq_f32_s32(part[m][1]), magic);
        sum[m][0] = vfmaq_f32(sum[m][0], vmulq_n_f32(p0, d[m]), s0);
        sum[m][1] = vfmaq_f32(sum[m][1], vmulq_n_f32(p1, d[m]), s1);
    }
}

INLINE void add_shift(const int rows, const float *shift, const float *xsum, float32x4_t sum[][2]) {
    float32x4_t s0 = vld1q_f32(shift), s1 = vld1q_f32(shift + 4), x = vld1q_f32(xsum);
    EACH(m, rows) {
        sum[m][0] = vfmaq_n_f32(sum[m][0], s0, x[m]);
        sum[m][1] = vfmaq_n_f32(sum[m][1], s1, x[m]);
    }
}

/* Integer sums over `quads` quads (4 or 8), on top of MAGIC_BITS. */
DOT_TARGET INLINE void dot_part(const int rows, const int quads, const int8_t *q, const int8_t *const *x, int64_t at,
                                int32x4_t part[][2]) {
    if (rows == 4 && quads == 8) {
        dot_step4(q, x, at, part);
    } else if (rows == 4) {
        dot_half4(q, x, at, part);
    } else {
        EACH(m, rows) EACH(v, 2) part[m][v] = vdupq_n_s32(MAGIC_BITS);
        for (int half = 0; half < quads / 4; half++, at += 16, q += 256) {
            int8x16_t xv[TILE_ROWS];
            EACH(m, rows) xv[m] = vld1q_s8(x[m] + at);
            DOT_QUADS(0) DOT_QUADS(1) DOT_QUADS(2) DOT_QUADS(3)
        }
    }
}

/* `rows` rows of x against output rows [col, col + 8) of a tile. */
DOT_TARGET INLINE void dot_cols(const int rows, const int halves, const int shift, const Tile *w, const Acts *a,
                                int64_t t, int64_t step, int64_t steps, int64_t col, float *acc) {
    const int8_t *q = w->at + col * 4, *x[TILE_ROWS];
    const float *xs = a->scale + (t * a->steps + step) * TILE_ROWS, *xsum = a->sum + (t * a->steps + step) * TILE_ROWS;
    const float *scale = w->scale + col, *shifts = w->shift + col;
    float32x4_t sum[TILE_ROWS][2];
    EACH(m, TILE_ROWS) x[m] = a->q + (t * TILE_ROWS + m) * a->padded + step * K_STEP;
    EACH(m, rows) EACH(v, 2) sum[m][v] = vld1q_f32(acc + m * GROUP + col + v * 4);
    for (int64_t s = 0; s < steps; s++, xs += TILE_ROWS, xsum += TILE_ROWS, shifts += GROUP, q += w->step_bytes) {
        int32x4_t part[TILE_ROWS][2];
        EACH(half, halves) {
            dot_part(rows, 8 / halves, q + half * 256, x, s * K_STEP + half * 16, part);
            add_part(rows, part, scale, xs, sum);
            scale += GROUP;
        }
        if (shift) add_shift(rows, shifts, xsum, sum);
    }
    EACH(m, rows) EACH(v, 2) vst1q_f32(acc + m * GROUP + col + v * 4, sum[m][v]);
}

#define DOT_COLS(rows)                                                                  \
    for (int64_t col = 0; col < GROUP; col += 8)                                        \
    dot_cols(rows, HALVES, SHIFT, w, a, t, step, steps, col, acc)

DOT_TARGET static void dot_with(int64_t kind, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps,
                                float *acc) {
    switch (tile_rows_of(a, t)) {
        case 1: WITH_SCALES(kind, DOT_COLS(1)) break;
        case 2: WITH_SCALES(kind, DOT_COLS(2)) break;
        default: WITH_SCALES(kind, DOT_COLS(4)) break;
    }
}

/* -- few rows, straight from the packed bytes -- */

INLINE void load_halves(const uint8_t *from, float32x4_t *to) {
    EACH(i, 2) {
        float16x8_t h = vld1q_f16((const float16_t *)(from + i * 16));
        to[2 * i] = vcvt_f32_f16(vget_low_f16(h));
        to[2 * i + 1] = vcvt_high_f32_f16(h);
    }
}

/* [16] small integers times d. */
INLINE void load_scaled(const uint8_t *from, const int is_signed, const float32x4_t *d, float32x4_t *to) {
    int16x8_t low, high;
    if (is_signed) {
        int8x16_t b = vld1q_s8((const int8_t *)from);
        low = vmovl_s8(vget_low_s8(b)), high = vmovl_high_s8(b);
    } else {
        uint8x16_t b = vld1q_u8(from);
        low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b))), high = vreinterpretq_s16_u16(vmovl_high_u8(b));
    }
    to[0] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), d[0]);
    to[1] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(low)), d[1]);
    to[2] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), d[2]);
    to[3] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(high)), d[3]);
}

/* Integer sums of a step for 16 output rows. */
#define NIBBLES(lane)                                                              \
    EACH(v, 4) {                                                                   \
        uint8x16_t b = vld1q_u8(q + (lane) * 64 + v * 16);                         \
        int8x16_t low, high;                                                       \
        if (is_signed) { /* sixteen times the value */                             \
            low = vreinterpretq_s8_u8(vshlq_n_u8(b, 4));                           \
            high = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(0xf0)));             \
        } else {                                                                   \
            low = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15)));                \
            high = vreinterpretq_s8_u8(vshrq_n_u8(b, 4));                          \
        }                                                                          \
        EACH(m, rows) {                                                            \
            DOT_QUAD(part[0][m][v], low, x[m][0], lane);                              \
            DOT_QUAD(part[0][m][v], high, x[m][1], lane);                             \
        }                                                                          \
    }
#define BYTES(lane)                                                                \
    EACH(v, 4) {                                                                   \
        int8x16_t first = vreinterpretq_s8_u8(vld1q_u8(q + (lane) * 64 + v * 16)); \
        int8x16_t second = vreinterpretq_s8_u8(vld1q_u8(q + 256 + (lane) * 64 + v * 16)); \
        EACH(m, rows) {                                                            \
            DOT_QUAD(part[0][m][v], first, x[m][0], lane);                          \
            DOT_QUAD(part[0][m][v], second, x[m][1], lane);                         \
        }                                                                          \
    }

/* The bit at `from` of every byte (and those above it that `mask` lets through) moved to bit 4. */
INLINE uint8x16_t high_bits(uint8x16_t plane, const int from, const uint8_t mask) {
    uint8x16_t moved = from <= 4 ? plane << (4 - from) : plane >> (from - 4);
    return moved & vdupq_n_u8(mask);
}

/* 5 and 6 bits: halves of a byte, completed from the planes behind them. */
#define HIGHER(lane)                                                                                     \
    {                                                                                                    \
        uint8x16_t b = vld1q_u8(q + (lane) * 64 + v * 16), low = b & vdupq_n_u8(15), high = b >> 4;      \
        if (bits == 5) {                                                                                 \
            low |= high_bits(plane[0], lane, 16), high |= high_bits(plane[0], (lane) + 4, 16);           \
        } else {                                                                                         \
            low |= high_bits(plane[(lane) % 2], (lane) / 2 * 2, 48);                                     \
            high |= high_bits(plane[(lane) % 2], (lane) / 2 * 2 + 4, 48);                                \
        }                                                                                                \
        int8x16_t first = vreinterpretq_s8_u8(low - zeros), second = vreinterpretq_s8_u8(high - zeros);  \
        EACH(m, rows) {                                                                                  \
            DOT_QUAD(part[0][m][v], first, x[m][0], lane);                                               \
            DOT_QUAD(part[halves - 1][m][v], second, x[m][1], lane);                                     \
        }                                                                                                \
    }

/* part [halves][rows][4 vectors of output rows] */
DOT_TARGET INLINE void direct_step(const int kind, const int rows, const uint8_t *q, const int8_t *from,
                                   int64_t stride, int32x4_t part[][2][4]) {
    const int bits = formats[kind].bits, halves = formats[kind].halves, is_signed = kind == P_Q4_0;
    int8x16_t x[2][2];
    EACH(m, rows) EACH(i, 2) x[m][i] = vld1q_s8(from + m * stride + i * 16);
    EACH(h, halves) EACH(m, rows) EACH(v, 4) part[h][m][v] = vdupq_n_s32(MAGIC_BITS);
    if (bits == 4) {
        NIBBLES(0) NIBBLES(1) NIBBLES(2) NIBBLES(3)
    } else if (bits == 8) {
        BYTES(0) BYTES(1) BYTES(2) BYTES(3)
    } else {
        const uint8x16_t zeros = vdupq_n_u8((uint8_t)formats[kind].zero);
        EACH(v, 4) {
            uint8x16_t plane[2];
            EACH(p, bits - 4) plane[p] = vld1q_u8(q + 256 + p * 64 + v * 16);
            HIGHER(0) HIGHER(1) HIGHER(2) HIGHER(3)
        }
    }
}

/* Scales of half h of step s: of its own block, or its small integers times the block's d. */
INLINE void direct_scale(const int kind, const uint8_t *header, int s, int h, const float32x4_t *d, float32x4_t *to) {
    if (kind == P_Q6_K)
        load_scaled(header + 32 + (s * 2 + h) * GROUP, 1, d, to);
    else if (formats[kind].block != K_STEP)
        load_scaled(header + 64 + s * GROUP, 0, d, to);
    else
        load_halves(header, to);
}

/* Rows [row, row + rows) of the first tile. */
DOT_TARGET INLINE void direct_rows(const int kind, const int rows, const uint8_t *from, const Acts *a, int64_t row,
                                   float *acc) {
    const Format f = formats[kind];
    const int steps = f.block / K_STEP, is_long = f.block != K_STEP;
    const float unit = kind == P_Q4_0 ? 0.0625f : 1.0f; /* signed halves of bytes come sixteen times too large */
    float32x4_t sum[2][4], magic = vdupq_n_f32(MAGIC);
    EACH(m, rows) EACH(v, 4) sum[m][v] = vdupq_n_f32(0.0f);
    const float *xs = a->scale + row, *xsum = a->sum + row;
    const int8_t *x = a->q + row * a->padded;
    for (int64_t k = 0; k < a->padded; k += f.block) {
        float32x4_t d[4], least[4];
        const uint8_t *header = from;
        if (is_long) load_halves(header, d);
        if (is_long && f.shift) load_halves(header + 32, least);
        from += f.header;
        for (int s = 0; s < steps; s++, x += K_STEP, xs += TILE_ROWS, xsum += TILE_ROWS, from += f.step_bytes) {
            int32x4_t part[2][2][4];
            float32x4_t scale[4], shift[4];
            direct_step(kind, rows, from, x, a->padded, part);
            EACH(h, f.halves) {
                direct_scale(kind, header, s, h, d, scale);
                EACH(m, rows) EACH(v, 4) {
                    float32x4_t p = vsubq_f32(vreinterpretq_f32_s32(part[h][m][v]), magic);
                    sum[m][v] = vfmaq_f32(sum[m][v], vmulq_n_f32(p, xs[m] * unit), scale[v]);
                }
            }
            if (!f.shift) continue;
            if (is_long)
                load_scaled(header + 64 + (8 + s) * GROUP, 0, least, shift);
            else
                load_halves(header + 32, shift);
            EACH(m, rows) EACH(v, 4) sum[m][v] = vfmaq_n_f32(sum[m][v], shift[v], is_long ? -xsum[m] : xsum[m]);
        }
    }
    EACH(m, rows) EACH(v, 4) vst1q_f32(acc + (row + m) * GROUP + v * 4, sum[m][v]);
}

#define DIRECT(kind)                                                            \
    case kind:                                                                  \
        for (int64_t row = 0; row + 2 <= a->rows; row += 2)                     \
            direct_rows(kind, 2, from, a, row, acc);                            \
        if (a->rows % 2) direct_rows(kind, 1, from, a, a->rows - 1, acc);       \
        return 1;

DOT_TARGET static int direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc) {
    if (kind == P_BF16 && a->rows == 1) {
        direct_bf16(1, from, a, acc);
        return 1;
    }
    if (kind == P_BF16 && a->rows == 2) {
        direct_bf16(2, from, a, acc);
        return 1;
    }
    if (a->rows > 2 && (formats[kind].bits == 5 || formats[kind].bits == 6)) return 0; /* unpacking once pays */
    switch (kind) {
        DIRECT(P_Q8)
        DIRECT(P_Q4_0)
        DIRECT(P_Q4_1)
        DIRECT(P_Q5_0)
        DIRECT(P_Q5_1)
        DIRECT(P_Q4_K)
        DIRECT(P_Q5_K)
        DIRECT(P_Q6_K)
        default: return 0;
    }
}

const Backend packed_neon_dot = {.quantize = quantize,
                                 .unpack = unpack,
                                 .dot = dot_with,
                                 .direct = direct,
                                 .widen = widen,
                                 .dot_wide = dot_wide};

/* ---- without ---- */

/* Sums of a quad's four products for 4 output rows: two in 16 bits (they cannot overflow), then the pairs. */
INLINE int32x4_t quad_without(int32x4_t sum, int8x16_t w, int8x16_t x) {
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    int32x4_t high = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(sum, vpaddq_s32(low, high));
}

INLINE void row_without(const int halves, const int shift, const Tile *w, const Acts *a, int64_t row, int64_t step,
                        int64_t steps, float *acc) {
    const int quads = 8 / halves;
    float32x4_t sum[4];
    EACH(v, 4) sum[v] = vld1q_f32(acc + v * 4);
    for (int64_t s = 0; s < steps; s++) {
        int64_t at = (row / TILE_ROWS * a->steps + step + s) * TILE_ROWS + row % TILE_ROWS;
        EACH(h, halves) {
            const int8_t *x = a->q + row * a->padded + (step + s) * K_STEP + h * quads * 4;
            const int8_t *q = w->at + s * w->step_bytes + h * quads * 64;
            int32x4_t part[4];
            EACH(v, 4) part[v] = vdupq_n_s32(0);
            EACH(g, quads) {
                int32_t four;
                memcpy(&four, x + g * 4, 4);
                int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(four));
                EACH(v, 4) part[v] = quad_without(part[v], vld1q_s8(q + g * 64 + v * 16), xv);
            }
            EACH(v, 4) {
                float32x4_t scale = vld1q_f32(w->scale + (s * halves + h) * GROUP + v * 4);
                sum[v] = vfmaq_f32(sum[v], vmulq_n_f32(vcvtq_f32_s32(part[v]), a->scale[at]), scale);
            }
        }
        if (shift)
            EACH(v, 4) sum[v] = vfmaq_n_f32(sum[v], vld1q_f32(w->shift + s * GROUP + v * 4), a->sum[at]);
    }
    EACH(v, 4) vst1q_f32(acc + v * 4, sum[v]);
}

static void dot_without(int64_t kind, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps,
                        float *acc) {
    for (int64_t m = 0; m < tile_rows_of(a, t); m++)
        WITH_SCALES(kind, row_without(HALVES, SHIFT, w, a, t * TILE_ROWS + m, step, steps, acc + m * GROUP))
}

const Backend packed_neon = {
    .quantize = quantize, .unpack = unpack, .dot = dot_without, .widen = widen, .dot_wide = dot_wide};

#endif
