/* Packed products in Arm's float16 arithmetic; all else is packed_neon_dot's. */
#if defined(__aarch64__)

#include "packed/arm/neon.h"

#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
#define HALF_TARGET
#elif defined(__clang__)
#define HALF_TARGET __attribute__((target("fullfp16")))
#else
#define HALF_TARGET __attribute__((target("arch=armv8.2-a+fp16+dotprod")))
#endif

typedef float16x8_t halves;

HALF_TARGET INLINE halves load_halves(const uint16_t *p) { return vreinterpretq_f16_u16(vld1q_u16(p)); }

/* ---- x ---- */

/* The first 8 of the `left` elements at x, missing ones zero, times a power of two. */
HALF_TARGET INLINE uint16x8_t halved(const uint16_t *x, int64_t left, float power) {
    uint16_t part[8] = {0};
    if (left < 8) x = memcpy(part, x, (size_t)max64(left, 0) * 2);
    uint16x8_t bits = vld1q_u16(x);
    float32x4_t low = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16));
    float32x4_t high = vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16));
    float16x4_t first = vcvt_f16_f32(vmulq_n_f32(low, power));
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(first, vmulq_n_f32(high, power)));
}

/* `lanes` rows of x side by side: [padded][lanes]. */
HALF_TARGET INLINE void halve_rows(const int lanes, const uint16_t *const *x, const float *power, int64_t k,
                                   int64_t padded, uint16_t *to) {
    for (int64_t i = 0; i < padded; i += 8, to += lanes * 8) {
        uint16x8_t v[HALF_ROWS], z[HALF_ROWS];
        EACH(m, lanes) v[m] = halved(x[m] + i, k - i, power[m]);
        for (int n = 1; n < lanes; n *= 2) {
            EACH(m, lanes / 2) {
                z[2 * m] = vzip1q_u16(v[m], v[m + lanes / 2]);
                z[2 * m + 1] = vzip2q_u16(v[m], v[m + lanes / 2]);
            }
            EACH(m, lanes) v[m] = z[m];
        }
        EACH(m, lanes) vst1q_u16(to + m * 8, v[m]);
    }
}

/* Lanes without a row repeat the last one; what comes of them is dropped. */
static HALF_TARGET void halve(const uint16_t *x, int64_t stride, int64_t k, const Acts *a, int64_t tile) {
    int64_t row = tile * HALF_ROWS, rows = min64(a->rows - row, HALF_ROWS);
    uint16_t *to = a->half + row * a->padded;
    const uint16_t *from[HALF_ROWS];
    float power[HALF_ROWS];
    for (int64_t m = 0; m < HALF_ROWS; m++) {
        from[m] = x + min64(m, rows - 1) * stride;
        power[m] = m < rows ? half_power(largest_finite(from[m], k), TO_X) : power[m - 1];
        a->half_scale[row + m] = 1.0f / power[m];
    }
    switch (half_lanes(rows)) {
        case 1: halve_rows(1, from, power, k, a->padded, to); break;
        case 2: halve_rows(2, from, power, k, a->padded, to); break;
        case 4: halve_rows(4, from, power, k, a->padded, to); break;
        default: halve_rows(8, from, power, k, a->padded, to); break;
    }
}

/* ---- products ---- */

/* w * lane of x, and sum + that. Written out, since gcc copies lanes to registers of their own first. */
#define PRODUCT(sum, w, x, lane) __asm__("fmul %0.8h, %1.8h, %2.h[" #lane "]" : "=w"(sum) : "w"(w), "x"(x))
#define ADD_PRODUCT(sum, w, x, lane) __asm__("fmla %0.8h, %1.8h, %2.h[" #lane "]" : "+w"(sum) : "w"(w), "x"(x))

/* A lane of x: row lane % rows of an element of K, with whose first row the weights are loaded. */
#define LANE(lane)                                                                                              \
    {                                                                                                           \
        const int m = (lane) % rows;                                                                            \
        if (m == 0) EACH(v, 2) wv[v] = load_halves(w + (lane) / rows * GROUP + v * 8);                          \
        if (begin && (lane) < rows)                                                                             \
            EACH(v, 2) PRODUCT(sum[m][v], wv[v], xv, lane);                                                     \
        else                                                                                                    \
            EACH(v, 2) ADD_PRODUCT(sum[m][v], wv[v], xv, lane);                                                 \
    }

/* The elements of K in a vector of x; begin: the first sets the sums. */
HALF_TARGET INLINE void add_vector(const int rows, const int begin, const uint16_t *w, const uint16_t *x,
                                   halves sum[][2]) {
    halves xv = load_halves(x), wv[2];
    LANE(0) LANE(1) LANE(2) LANE(3) LANE(4) LANE(5) LANE(6) LANE(7)
}

/* A run: a sum of `length` elements in float16, added to acc. */
HALF_TARGET INLINE void add_run(const int rows, const int length, const uint16_t *w, const uint16_t *x, float *acc) {
    const int many = 8 / rows;
    halves sum[HALF_ROWS][2];
    add_vector(rows, 1, w, x, sum);
    for (int k = many; k < length; k += many) add_vector(rows, 0, w + k * GROUP, x + k * rows, sum);
    EACH(m, rows) EACH(v, 2) {
        float *to = acc + m * GROUP + v * 8;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), vcvt_f32_f16(vget_low_f16(sum[m][v]))));
        vst1q_f32(to + 4, vaddq_f32(vld1q_f32(to + 4), vcvt_high_f32_f16(sum[m][v])));
        __asm__ volatile("" ::: "memory"); /* one after another: there are no registers for more */
    }
}

/* One run after another, even where a single row of x leaves the processor waiting for its sums: weights come from
 * memory no faster, and do so in one stream. */
HALF_TARGET INLINE void dot_tile(const int rows, const uint8_t *from, const Acts *a, int64_t row, float *acc) {
    const uint16_t *w = (const uint16_t *)from, *x = a->half + row * a->padded;
    int64_t k = 0;
    memset(acc, 0, (size_t)rows * GROUP * 4);
    for (; k + HALF_RUN <= a->padded; k += HALF_RUN) add_run(rows, HALF_RUN, w + k * GROUP, x + k * rows, acc);
    if (k < a->padded) add_run(rows, K_STEP, w + k * GROUP, x + k * rows, acc); /* half a run is left */
    const float *w_scale = (const float *)(from + group_bytes(P_HALF, a->padded));
    EACH(m, rows) {
        float32x4_t x_scale = vdupq_n_f32(a->half_scale[row + m]);
        EACH(v, 4) {
            float *at = acc + m * GROUP + v * 4;
            float32x4_t scale = vld1q_f32(w_scale + v * 4), sum = vmulq_f32(vld1q_f32(at), vminq_f32(scale, x_scale));
            vst1q_f32(at, vmulq_f32(sum, vmaxq_f32(scale, x_scale)));
        }
    }
}

static HALF_TARGET void dot_half(const uint8_t *from, const Acts *a, int64_t row, int64_t count, float *acc) {
    for (int64_t end = row + count; row < end; row += HALF_ROWS, acc += HALF_ROWS * GROUP) {
        switch (half_lanes(min64(a->rows - row, HALF_ROWS))) {
            case 1: dot_tile(1, from, a, row, acc); break;
            case 2: dot_tile(2, from, a, row, acc); break;
            case 4: dot_tile(4, from, a, row, acc); break;
            default: dot_tile(8, from, a, row, acc); break;
        }
    }
}

const Backend packed_neon_half = {.quantize = packed_neon_dot_quantize,
                                  .unpack = packed_neon_unpack,
                                  .dot = packed_neon_dot_tiles,
                                  .direct = packed_neon_dot_direct,
                                  .direct_rows = TILE_ROWS,
                                  .widen = packed_neon_widen,
                                  .dot_wide = packed_neon_dot_wide,
                                  .halve = halve,
                                  .dot_half = dot_half,
                                  .tiled = 1,
                                  .in_place = 1};

#endif
