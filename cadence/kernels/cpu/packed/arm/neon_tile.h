/* Four rows of x against 8 output rows with Arm's dot product instructions, all steps, by hand: compilers copy sums about
 * or load too late. */
#ifndef CADENCE_PACKED_NEON_TILE_H
#define CADENCE_PACKED_NEON_TILE_H

#include "packed/arm/neon.h"

#ifdef __ARM_FEATURE_DOTPROD
#define DOT_TARGET
#elif defined(__clang__)
#define DOT_TARGET __attribute__((target("dotprod")))
#else
#define DOT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

/* Integer sums begin at START, the bits of LIFT: |sum| < 2^22 added to them is the float LIFT + sum. Since x_scale has
 * 22 significant bits, LIFT * x_scale is exact and fma(LIFT + sum, x_scale, -LIFT * x_scale) rounds sum * x_scale once,
 * as float(sum) * x_scale does: one instruction instead of two, one of them slow. TileStep.lift holds -LIFT * x_scale. */
#define START 0x4b400000
#define FOUR_STARTS {START, START, START, START}
static const int32_t starts[4][4] __attribute__((aligned(64))) = {FOUR_STARTS, FOUR_STARTS, FOUR_STARTS, FOUR_STARTS};

/* p, of which the compiler does not know that it is: loads through it are loads again, not copies of a register (which
 * would take the place of a product). */
INLINE const void *again(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

INLINE int32x4_t start_at(const void *from, int v) { return vld1q_s32((const int32_t *)from + v * 4); }

/* sum * x_scale for row m of a tile, of an integer sum begun at START. */
INLINE float32x4_t scaled(int32x4_t sum, const TileStep *x, int m) {
    float32x4_t lift = vld1q_f32((const float *)again(x->lift[m]));
    return vfmaq_n_f32(lift, vreinterpretq_f32_s32(sum), x->scale[m]);
}

/* Quants of 5 and 6 bits are multiplied in the top bits of their bytes: so many times too large. */
#define FIVES 8
#define SIXES 4

/* v0-v7 hold the sums [row][2], v8-v15 the integer sums, v16-v19 the first halves of x, v20-v23 the second ones, v24-v29
 * weights. Loads are spread evenly among the products, and a step loads the beginning of x for the next one (past the
 * last step too: there is one TileStep more than asked for). Going back from multiply-adds to the (shorter) dot products
 * costs two cycles: sums are scaled all together, at the end of a step. */
#define DOT2(p, q, a, b, x, lane)                                       \
    "sdot v" p ".4s, v" a ".16b, v" x ".4b[" lane "]\n"                 \
    "sdot v" q ".4s, v" b ".16b, v" x ".4b[" lane "]\n"
/* A quad of K, with a load after each row. */
#define FIRST(lane, a, b, l0, l1, l2, l3)                               \
    DOT2("8", "9", a, b, "16", lane) l0 DOT2("10", "11", a, b, "17", lane) l1 \
    DOT2("12", "13", a, b, "18", lane) l2 DOT2("14", "15", a, b, "19", lane) l3
#define SECOND(lane, a, b, l0, l1, l2, l3)                              \
    DOT2("8", "9", a, b, "20", lane) l0 DOT2("10", "11", a, b, "21", lane) l1 \
    DOT2("12", "13", a, b, "22", lane) l2 DOT2("14", "15", a, b, "23", lane) l3
#define W(a, b, at) "ldp q" a ", q" b ", [%[q], " #at "]\n"
#define X(to, at) "ldr q" to ", [%[x], " #at "]\n"
#define START2(p, q) "ldp q" p ", q" q ", [%[start]]\n"
#define NONE ""
#define STARTS START2("8", "9") START2("10", "11") START2("12", "13") START2("14", "15")
/* The integer sums p, q of a row times its scale, into y, z. */
#define LIFTED(y, z, p, q, row) \
    "fmla v" y ".4s, v" p ".4s, v30.s[" row "]\n fmla v" z ".4s, v" q ".4s, v30.s[" row "]\n"
#define ADD(s, t, y, z) "fmla v" s ".4s, v" y ".4s, v24.4s\n fmla v" t ".4s, v" z ".4s, v25.4s\n"
#define SHIFT2(s, t, row) "fmla v" s ".4s, v28.4s, v31.s[" row "]\n fmla v" t ".4s, v29.4s, v31.s[" row "]\n"
#define NEXT2(a, b, from) "ldp q" a ", q" b ", [%[" from "]], 64\n"
#define FIRST_HALF                                                                                        \
    W("24", "25", 0) W("26", "27", 64)                                                                    \
    FIRST("0", "24", "25", W("28", "29", 128), X("20", 16), NONE, X("21", 48))                            \
    FIRST("1", "26", "27", W("24", "25", 192), X("22", 80), NONE, X("23", 112))
/* Scales the sums of a half or a step: first all rows by the scales of x (in y0-y7 = v28, v29, four registers of x that
 * are not wanted any more, v26, v27, where the lifts are), then by the weights': none waits for the one before. */
#define SCALED_SUMS(y2, y3, y4, y5, more)                                                                 \
    LIFTED("28", "29", "8", "9", "0") START2("8", "9") LIFTED(y2, y3, "10", "11", "1") START2("10", "11") \
    LIFTED(y4, y5, "12", "13", "2") START2("12", "13") LIFTED("26", "27", "14", "15", "3") START2("14", "15") \
    ADD("0", "1", "28", "29") more ADD("2", "3", y2, y3) ADD("4", "5", y4, y5) ADD("6", "7", "26", "27")
#define LAST_QUARTER                                                                                      \
    SECOND("2", "24", "25", X("28", 160), X("29", 160), X("30", 128), X("31", 144))                       \
    SECOND("3", "26", "27", NEXT2("24", "25", "scale") X("20", 176), X("21", 176), X("22", 192),          \
           X("23", 192) X("26", 208) X("27", 208))
#define WHOLE_STEP(more)                                                                                  \
    FIRST_HALF                                                                                            \
    FIRST("2", "28", "29", W("26", "27", 256), NONE, NONE, NONE)                                          \
    FIRST("3", "24", "25", W("28", "29", 320), NONE, NONE, NONE)                                          \
    SECOND("0", "26", "27", W("24", "25", 384), X("16", 240), NONE, X("17", 272))                         \
    SECOND("1", "28", "29", W("26", "27", 448), X("18", 304), NONE, X("19", 336))                         \
    LAST_QUARTER SCALED_SUMS("20", "21", "22", "23", more)
#define TWO_HALVES                                                                                        \
    FIRST_HALF                                                                                            \
    FIRST("2", "28", "29", X("30", 128), X("26", 208), X("27", 208), X("28", 160) X("29", 160))           \
    FIRST("3", "24", "25", X("16", 176), X("17", 176), X("18", 192), X("19", 192) NEXT2("24", "25", "scale")) \
    SCALED_SUMS("16", "17", "18", "19", NONE) W("26", "27", 256) W("28", "29", 320)                       \
    SECOND("0", "26", "27", W("24", "25", 384), X("16", 240), NONE, X("17", 272))                         \
    SECOND("1", "28", "29", W("26", "27", 448), X("18", 304), NONE, X("19", 336))                         \
    LAST_QUARTER SCALED_SUMS("20", "21", "22", "23", NONE)
#define SHIFTED_STEP                                                                                      \
    WHOLE_STEP(NEXT2("28", "29", "shift"))                                                                \
    SHIFT2("0", "1", "0") SHIFT2("2", "3", "1") SHIFT2("4", "5", "2") SHIFT2("6", "7", "3")
/* The sums of four rows, `skip` bytes apart. */
#define SUMS(op, from, skip)                                                                                        \
    op " q0, q1, [%[" from "]]\n add %[at], %[" from "], %[" skip "]\n" op " q2, q3, [%[at]]\n"                     \
    "add %[at], %[at], %[" skip "]\n" op " q4, q5, [%[at]]\n add %[at], %[at], %[" skip "]\n" op " q6, q7, [%[at]]\n"
#define ALL_STEPS(...)                                                                                              \
    __asm__ volatile(X("16", 0) X("17", 32) X("18", 64) X("19", 96) STARTS SUMS("ldp", "from", "from_skip")         \
                     "1:\n" __VA_ARGS__                                                                             \
                     "add %[q], %[q], %[step_bytes]\n add %[x], %[x], 240\n subs %[steps], %[steps], 1\n b.ne 1b\n" \
                     SUMS("stp", "acc", "acc_skip")                                                                 \
                     : [q] "+r"(q), [x] "+r"(x), [scale] "+r"(scale), [shift] "+r"(shift), [steps] "+r"(steps),     \
                       [at] "=&r"(at)                                                                               \
                     : [start] "r"(starts), [step_bytes] "r"(step_bytes), [acc] "r"(acc), [acc_skip] "r"(skip),  \
                       [from] "r"(begin ? zeros : acc), [from_skip] "r"(begin ? 0 : skip)                           \
                     : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",    \
                       "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",   \
                       "v25", "v26", "v27", "v28", "v29", "v30", "v31")

static const float zeros[8] __attribute__((aligned(64))) = {0};

/* The sums of rows of a tile: [rows][stride], at their beginning to be set, else to be added to. */
typedef struct {
    float *acc;
    int64_t stride;
    int begin;
} Sums;

/* Output rows [col, col + 8) of a tile; steps > 0. */
DOT_TARGET static void dot_tile(const int halves, const int shifted, const Tile *w, const TileStep *x, int64_t steps,
                                int64_t col, Sums sums) {
    const int8_t *q = w->at + col * 4;
    const int64_t step_bytes = w->step_bytes;
    const float *scale = w->scale + col, *shift = w->shift + col;
    float *acc = sums.acc + col, *at;
    const int64_t skip = sums.stride * 4;
    const int begin = sums.begin;
    if (halves == 2)
        ALL_STEPS(TWO_HALVES);
    else if (shifted)
        ALL_STEPS(SHIFTED_STEP);
    else
        ALL_STEPS(WHOLE_STEP(NONE));
}

/* ---- straight from packed halves of bytes ----
 *
 * Part c of a step holds quad c in the low halves and c + 4 in the high ones. v31 holds a mask while they are split. */
#define UNSIGNED_LOWS(a, b) "and v28.16b, v" a ".16b, v31.16b\n and v29.16b, v" b ".16b, v31.16b\n"
#define UNSIGNED_HIGHS(a, b) "ushr v" a ".16b, v" a ".16b, 4\n ushr v" b ".16b, v" b ".16b, 4\n"
#define SIGNED_LOWS(a, b) "shl v28.16b, v" a ".16b, 4\n shl v29.16b, v" b ".16b, 4\n" /* sixteen times the value */
#define SIGNED_HIGHS(a, b) "and v" a ".16b, v" a ".16b, v31.16b\n and v" b ".16b, v" b ".16b, v31.16b\n"
#define PART(sign, lane, a, b, next)                                                                      \
    sign##_LOWS(a, b) sign##_HIGHS(a, b)                                                                  \
    FIRST(lane, "28", "29", NONE, NONE, NONE, NONE) SECOND(lane, a, b, NONE, NONE, NONE, next)
/* Eight float16 at `at` of the header, through v`from`. */
#define HEADER(a, b, from, at)                                                                            \
    "ldr q" from ", [%[scale], " #at "]\n fcvtl v" a ".4s, v" from ".4h\n fcvtl2 v" b ".4s, v" from ".8h\n"
#define PACKED_STEP(sign, more)                                                                           \
    W("24", "25", 0) W("26", "27", 64) "ldr q31, [%[shift]]\n" X("20", 16) X("21", 48) X("22", 80) X("23", 112) \
    PART(sign, "0", "24", "25", W("24", "25", 128)) PART(sign, "1", "26", "27", W("26", "27", 192))       \
    PART(sign, "2", "24", "25", NONE) HEADER("24", "25", "30", 0)                                         \
    sign##_LOWS("26", "27") sign##_HIGHS("26", "27")                                                      \
    FIRST("3", "28", "29", X("16", 240), X("17", 272), X("18", 304), X("19", 336))                        \
    X("28", 160) X("29", 160) X("30", 128) X("31", 144)                          \
    SECOND("3", "26", "27", X("20", 176), X("21", 176), X("22", 192), X("23", 192) X("26", 208) X("27", 208)) \
    SCALED_SUMS("20", "21", "22", "23", more)
/* Shifts of a header that has zero points below zero: times the scale. */
#define OF_ZEROS "fmul v28.4s, v28.4s, v24.4s\n fmul v29.4s, v29.4s, v25.4s\n"
#define PACKED_SHIFTED(sign, more)                                                                        \
    PACKED_STEP(sign, HEADER("28", "29", "29", 32) more)                                                  \
    SHIFT2("0", "1", "0") SHIFT2("2", "3", "1") SHIFT2("4", "5", "2") SHIFT2("6", "7", "3")
#define NEXT_HEADER "add %[scale], %[scale], %[step_bytes]\n"

/* Output rows [col, col + 8) of a group of Q4_1, Q4_Z or Q4_0 (then sixteen times the sums) with a tile of x. */
DOT_TARGET static void packed_tile(const int kind, const uint8_t *from, const TileStep *x, int64_t steps, int64_t col,
                                   Sums sums) {
    static const uint8_t masks[2][16] __attribute__((aligned(16))) = {
        {15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15},
        {240, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240}};
    const Format f = formats[kind];
    const int is_signed = kind == P_Q4_0;
    const int64_t step_bytes = f.header + f.step_bytes, skip = sums.stride * 4;
    const int8_t *q = (const int8_t *)from + f.header + col * 4;
    const uint8_t *scale = from + col * 2, *shift = masks[is_signed];
    float *acc = sums.acc + col, *at;
    const int begin = sums.begin;
    if (is_signed)
        ALL_STEPS(PACKED_STEP(SIGNED, NONE) NEXT_HEADER);
    else if (kind == P_Q4_Z)
        ALL_STEPS(PACKED_SHIFTED(UNSIGNED, OF_ZEROS) NEXT_HEADER);
    else
        ALL_STEPS(PACKED_SHIFTED(UNSIGNED, NONE) NEXT_HEADER);
}

#endif
