/* Blocks of small scales (K-quants) times one row of x with Arm's dot product instructions, a step at a time, by hand:
 * compilers load scales too late and copy more than they compute. */
#ifndef CADENCE_PACKED_NEON_K_H
#define CADENCE_PACKED_NEON_K_H

#include "packed/arm/neon_tile.h"

/* Bytes: weights are asked for so far before they are needed, since the processor by itself does so too late. */
#define AHEAD 8192

/* What small integers of a block are multiplied by. An integer n < 256 in the second byte of the float 0x47000000 makes
 * it 32768 + n: times d, minus 32768 * d (and 128 * d where n is 128 too large), is the product, exact like each of its
 * parts. lift: what is to be added. */
typedef struct {
    float d[GROUP], lift[GROUP];
} SmallScales;

#define PLACES(r) {255, r, 255, 19, 255, r + 1, 255, 19, 255, r + 2, 255, 19, 255, r + 3, 255, 19}
/* Where a row's integer goes in a float (v22), and the top byte of lifted (v23); 255: zero. */
static const uint8_t places[4][16] __attribute__((aligned(64))) = {PLACES(0), PLACES(4), PLACES(8), PLACES(12)};
static const uint32_t lifted[4] __attribute__((aligned(16))) = {0x47000000, 0x47000000, 0x47000000, 0x47000000};

/* v12-v15 hold the integer sums, v16 and v17 the halves of x, v18 the scale and v19 the sum of x, v24-v31 scales, and
 * v9-v11 and v20-v23 all else. Scales of 4 and 5 bits are made first, next to the multiply-adds of the step before; those
 * of 6 bits, of which there are two, each after its half. */
#define K_BEGIN "ldp q12, q13, [%[starts]]\n ldp q14, q15, [%[starts], 32]\n"
#define K_BEGIN_AT "ld1r {v12.4s}, [%[begin]]\n ld1r {v13.4s}, [%[begin]]\n ld1r {v14.4s}, [%[begin]]\n ld1r {v15.4s}, [%[begin]]\n"
#define K_DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n"
#define K_AND(to, w) "and v" to ".16b, v" w ".16b, %[mask].16b\n"
#define K_SHR(w) "ushr v" w ".16b, v" w ".16b, 4\n"
#define K_SHL(to, w, by) "shl v" to ".16b, v" w ".16b, " by "\n"
#define K_SLI(to, w, by) "sli v" to ".16b, v" w ".16b, " by "\n"
/* Asks for line n of what is needed AHEAD bytes later. One at a time: several hold up the loads after them. */
#define K_ASK(n) "prfm pldl1keep, [%[q], %[ahead] + " #n " * 64]\n"

/* 4 bits: part p of all output rows. */
#define K_FOURS(p, lane)                                                                                     \
    "ldp q20, q21, [%[q], " #p " * 64]\n ldp q22, q23, [%[q], " #p " * 64 + 32]\n"                           \
    K_AND("9", "20") K_AND("10", "21") K_DOT("12", "9", "16", lane) K_DOT("13", "10", "16", lane)            \
    K_SHR("20") K_AND("11", "22") K_DOT("14", "11", "16", lane) K_DOT("12", "20", "17", lane)                \
    K_SHR("21") K_AND("9", "23") K_DOT("15", "9", "16", lane) K_DOT("13", "21", "17", lane)                  \
    K_SHR("22") K_SHR("23") K_DOT("14", "22", "17", lane) K_DOT("15", "23", "17", lane) K_ASK(p)
/* 5 bits: all parts of vector v of output rows. */
#define K_FIVES(sum, v)                                                                                      \
    "ldr q20, [%[q], " #v " * 16]\n ldr q23, [%[q], 192 + " #v " * 16]\n ldr q21, [%[q], 64 + " #v " * 16]\n"  \
    "ldr q9, [%[q], 256 + " #v " * 16]\n ldr q22, [%[q], 128 + " #v " * 16]\n"                               \
    K_SHL("10", "23", "2") K_AND("11", "20") K_SLI("10", "20", "5") K_DOT(sum, "11", "16", "0")              \
    K_AND("11", "21") K_AND("10", "10") K_DOT(sum, "11", "16", "1") K_DOT(sum, "10", "17", "1")              \
    K_SHL("10", "9", "2") K_AND("11", "22") K_SLI("10", "21", "5") K_DOT(sum, "11", "16", "2")               \
    K_AND("11", "23") K_AND("10", "10") K_DOT(sum, "11", "16", "3") K_DOT(sum, "10", "17", "2")              \
    K_SHL("10", "9", "3") K_AND("11", "9") K_SLI("10", "23", "4") K_DOT(sum, "11", "17", "0")                \
    K_SLI("10", "22", "5") K_DOT(sum, "10", "17", "3") K_ASK(v)
/* 6 bits: the parts of a half of vector v, at `at`, times half x of x. */
#define K_SIXES(sum, v, at, x)                                                                               \
    "ldr q20, [%[q], " #at " + " #v " * 16]\n ldr q21, [%[q], " #at " + 64 + " #v " * 16]\n"                 \
    "ldr q22, [%[q], " #at " + 128 + " #v " * 16]\n"                                                         \
    K_SHL("10", "22", "2") K_AND("11", "20") K_SLI("10", "21", "4") K_DOT(sum, "11", x, "0")                 \
    K_AND("9", "21") K_SLI("10", "20", "6") K_DOT(sum, "9", x, "1") K_AND("11", "22")                        \
    K_DOT(sum, "11", x, "2") K_DOT(sum, "10", x, "3")

/* The integers at `at` of [small] times `of`, into a, b, c and d, through ta to td and ma to md. v23 is lifted. */
#define K_SMALL(at, of, a, b, c, d, ta, tb, tc, td, ma, mb, mc, md)                                          \
    "ldr q22, [%[small], " #at "]\n ldp q" a ", q" b ", [%[" of "], 64]\n ldp q" c ", q" d ", [%[" of "], 96]\n" \
    "tbl v" ta ".16b, {v22.16b, v23.16b}, %[p0].16b\n tbl v" tb ".16b, {v22.16b, v23.16b}, %[p1].16b\n"      \
    "ldp q" ma ", q" mb ", [%[" of "]]\n ldp q" mc ", q" md ", [%[" of "], 32]\n"                            \
    "tbl v" tc ".16b, {v22.16b, v23.16b}, %[p2].16b\n tbl v" td ".16b, {v22.16b, v23.16b}, %[p3].16b\n"      \
    "fmla v" a ".4s, v" ta ".4s, v" ma ".4s\n fmla v" b ".4s, v" tb ".4s, v" mb ".4s\n"                      \
    "fmla v" c ".4s, v" tc ".4s, v" mc ".4s\n fmla v" d ".4s, v" td ".4s, v" md ".4s\n"
#define K_LIFTED "ldr q23, [%[lifted]]\n"
#define K_SCALES                                                                                             \
    K_LIFTED K_SMALL(0, "scale", "24", "25", "26", "27", "12", "13", "14", "15", "16", "17", "18", "19")     \
    K_SMALL(128, "least", "28", "29", "30", "31", "12", "13", "14", "15", "16", "17", "18", "19")
#define K_SCALES_AT(at)                                                                                      \
    K_LIFTED K_SMALL(at, "scale", "24", "25", "26", "27", "28", "29", "30", "31", "20", "21", "9", "10")
#define K_LIFTS "ldr q20, [%[x], 160]\n ldr q21, [%[x], 160]\n ldr q22, [%[x], 160]\n ldr q23, [%[x], 160]\n"
/* Adds the integer sums times the scale of x and those in v24-v27. */
#define K_SCALED                                                                                             \
    "fmla v20.4s, v12.4s, v18.s[0]\n fmla v21.4s, v13.4s, v18.s[0]\n"                                        \
    "fmla v22.4s, v14.4s, v18.s[0]\n fmla v23.4s, v15.4s, v18.s[0]\n"                                        \
    "fmla %[s0].4s, v20.4s, v24.4s\n fmla %[s1].4s, v21.4s, v25.4s\n"                                        \
    "fmla %[s2].4s, v22.4s, v26.4s\n fmla %[s3].4s, v23.4s, v27.4s\n"
#define K_SHIFTED                                                                                            \
    "fmls %[s0].4s, v28.4s, v19.s[0]\n fmls %[s1].4s, v29.4s, v19.s[0]\n"                                    \
    "fmls %[s2].4s, v30.4s, v19.s[0]\n fmls %[s3].4s, v31.4s, v19.s[0]\n"
#define K_X "ldp q16, q17, [%[x]]\n ldr s18, [%[x], 128]\n ldr s19, [%[x], 144]\n"
#define K_END K_LIFTS K_SCALED K_SHIFTED

#define K_STEP_OF_4                                                                                          \
    K_SCALES K_X K_BEGIN K_ASK(-1)                                                             \
    K_FOURS(0, "0") K_FOURS(1, "1") K_FOURS(2, "2") K_FOURS(3, "3") K_END
#define K_STEP_OF_5                                                                                          \
    K_SCALES K_X K_BEGIN_AT K_ASK(-1)                                                          \
    K_FIVES("12", 0) K_FIVES("13", 1) K_ASK(4) K_FIVES("14", 2) K_FIVES("15", 3) K_END
#define K_STEP_OF_6                                                                                          \
    K_X K_BEGIN K_ASK(-1)                                                              \
    K_SIXES("12", 0, 0, "16") K_ASK(0) K_SIXES("13", 1, 0, "16") K_ASK(1) K_SIXES("14", 2, 0, "16") K_ASK(2) \
    K_SIXES("15", 3, 0, "16") K_SCALES_AT(0) K_LIFTS K_SCALED K_ASK(3) K_BEGIN                      \
    K_SIXES("12", 0, 192, "17") K_SIXES("13", 1, 192, "17") K_ASK(4) K_SIXES("14", 2, 192, "17")             \
    K_SIXES("15", 3, 192, "17") K_ASK(5) K_SCALES_AT(16) K_LIFTS K_SCALED
#define K_ASM(step)                                                                                          \
    __asm__ volatile(step                                                                                    \
                     : [s0] "+w"(sum[0]), [s1] "+w"(sum[1]), [s2] "+w"(sum[2]), [s3] "+w"(sum[3])            \
                     : [q] "r"(q), [x] "r"(x), [begin] "r"(x->begin), [starts] "r"(starts), [small] "r"(small), \
                       [scale] "r"(scale), [least] "r"(least), [lifted] "r"(lifted), [ahead] "i"(AHEAD),     \
                       [mask] "w"(mask), [p0] "w"(vld1q_u8(places[0])), [p1] "w"(vld1q_u8(places[1])),       \
                       [p2] "w"(vld1q_u8(places[2])), [p3] "w"(vld1q_u8(places[3]))                          \
                     : "memory", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", \
                       "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

/* Adds a step to the sums of 16 output rows. small: its integers; minimums lie 8 * GROUP bytes after scales. Sums of 5
 * and 6 bits are FIVES and SIXES times too large, and so is `least`. */
DOT_TARGET INLINE void k_step(const int bits, const uint8_t *q, const TileStep *x, const uint8_t *small,
                              const SmallScales *scale, const SmallScales *least, float32x4_t *sum) {
    const uint8x16_t mask = vdupq_n_u8(bits == 4 ? 15 : bits == 5 ? 0xf8 : 0xfc);
    if (bits == 4)
        K_ASM(K_STEP_OF_4);
    else if (bits == 5)
        K_ASM(K_STEP_OF_5);
    else
        K_ASM(K_STEP_OF_6);
}

#endif
