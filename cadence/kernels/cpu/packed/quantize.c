/* Floats to blocks of 32 in the forms of Q8_0 and Q4_1, for models that come unquantised. */
#include "packed/packed.h"
#include "runtime/powers.h"
#include "runtime/threads.h"

#define BLOCK 32
#define CANDIDATES 12 /* ranges tried per 4-bit block: the full one, and ones cut at both ends */
#define CUT 0.03f     /* of the range, per candidate */

INLINE uint16_t to_half(float x) {
    vh h = f32_to_f16(splat(x));
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}

#define EACH_VECTOR(i) EACH(i, BLOCK / VL)
typedef vf Levels[BLOCK / VL];

INLINE vf within(vf x, float low, float high) { return smaller(larger(x, splat(low)), splat(high)); }
INLINE vf rounded(vf x) { return (x + splat(LIFT)) - splat(LIFT); } /* |x| < 2^22, ties to even */

static void to_eight(const float *x, uint8_t *to) {
    vf top = splat(0.0f);
    EACH_VECTOR(i) top = larger(top, larger(loadf(x + i * VL), -loadf(x + i * VL)));
    uint16_t half = to_half(max1(top) / 127.0f);
    float scale = half_to_float(half), inverse = scale > 0.0f ? 1.0f / scale : 0.0f, q[BLOCK];
    memcpy(to, &half, 2);
    EACH_VECTOR(i) storef(q + i * VL, rounded(within(loadf(x + i * VL) * inverse, -127.0f, 127.0f)));
    for (int i = 0; i < BLOCK; i++) to[2 + i] = (uint8_t)(int8_t)(int32_t)q[i];
}

typedef struct {
    uint16_t scale, shift;
    float error;
    Levels q;
} Four;

/* Rounds x to sixteen levels. */
INLINE void round_levels(const float *x, float scale, float shift, vf *q) {
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    EACH_VECTOR(i) q[i] = rounded(within((loadf(x + i * VL) - shift) * inverse, 0.0f, 15.0f));
}

/* The scale and shift that fit given levels best, by least squares; as they were where all levels are one. */
INLINE void refit(const float *x, const vf *q, float *scale, float *shift) {
    vf a = {0}, b = {0}, c = {0}, d = {0};
    EACH_VECTOR(i) {
        vf v = loadf(x + i * VL);
        a += q[i], b += v, c = madd(c, q[i], q[i]), d = madd(d, q[i], v);
    }
    v4 sums = sum4(a, b, c, d);
    float sq = sums[0], sx = sums[1], sqq = sums[2], sqx = sums[3];
    float spread = BLOCK * sqq - sq * sq;
    if (spread <= 0.0f) return;
    float fit = (BLOCK * sqx - sq * sx) / spread;
    if (fit <= 0.0f) return;
    *scale = fit;
    *shift = (sx - fit * sq) / BLOCK;
}

INLINE Four try_range(const float *x, float low, float high) {
    Four f;
    float scale = (high - low) / 15.0f, shift = low;
    round_levels(x, scale, shift, f.q);
    refit(x, f.q, &scale, &shift);
    f.scale = to_half(scale), f.shift = to_half(shift);
    scale = half_to_float(f.scale), shift = half_to_float(f.shift);
    round_levels(x, scale, shift, f.q);
    vf error = {0};
    EACH_VECTOR(i) {
        vf off = madd(splat(shift), f.q[i], splat(scale)) - loadf(x + i * VL);
        error = madd(error, off, off);
    }
    f.error = sum1(error);
    return f;
}

static void to_four(const float *x, uint8_t *to) {
    vf least = loadf(x), most = least;
    EACH_VECTOR(i) least = smaller(least, loadf(x + i * VL)), most = larger(most, loadf(x + i * VL));
    float low = -max1(-least), high = max1(most), q[BLOCK];
    Four best = try_range(x, low, high);
    for (int c = 1; c < CANDIDATES; c++) {
        float cut = CUT * (float)c * (high - low) / 2;
        Four f = try_range(x, low + cut, high - cut);
        if (f.error < best.error) best = f;
    }
    memcpy(to, &best.scale, 2);
    memcpy(to + 2, &best.shift, 2);
    EACH_VECTOR(i) storef(q + i * VL, best.q[i]);
    for (int i = 0; i < 16; i++) to[4 + i] = (uint8_t)((int)q[i] | (int)q[i + 16] << 4);
}

typedef struct {
    uint8_t *to;
    const float *x;
    int64_t bits;
} Quantizing;

static void quantize_blocks(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Quantizing *q = work;
    for (int64_t b = begin; b < end; b++) {
        if (q->bits == 8)
            to_eight(q->x + b * BLOCK, q->to + b * 34);
        else
            to_four(q->x + b * BLOCK, q->to + b * 20);
    }
}

/* x [blocks, 32] -> to [blocks, 34] (bits 8) or [blocks, 20] (bits 4). */
EXPORT void cadence_quantize(uint8_t *to, const float *x, int64_t blocks, int64_t bits) {
    Quantizing work = {to, x, bits};
    share(blocks, 1024, quantize_blocks, &work);
}
