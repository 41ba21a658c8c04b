/* Floats to blocks of 32 in the forms of Q8_0 and Q4_1, for models that come unquantised. */
#include "packed.h"
#include "threads.h"

#define BLOCK 32
#define CANDIDATES 12 /* ranges tried per 4-bit block: the full one, and ones cut at both ends */
#define CUT 0.03f     /* of the range, per candidate */

INLINE uint16_t to_half(float x) {
    vh h = f32_to_f16(splat(x));
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}

static void to_eight(const float *x, uint8_t *to) {
    float top = 0.0f;
    for (int i = 0; i < BLOCK; i++) top = fmaxf(top, fabsf(x[i]));
    uint16_t half = to_half(top / 127.0f);
    float scale = half_to_float(half), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    memcpy(to, &half, 2);
    for (int i = 0; i < BLOCK; i++) to[2 + i] = (uint8_t)(int8_t)rintf(fminf(fmaxf(x[i] * inverse, -127.0f), 127.0f));
}

typedef struct {
    uint16_t scale, shift;
    float error;
    float q[BLOCK];
} Four;

/* Rounds x to sixteen levels. */
INLINE void round_levels(const float *x, float scale, float shift, float *q) {
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int i = 0; i < BLOCK; i++) q[i] = fminf(fmaxf(__builtin_rintf((x[i] - shift) * inverse), 0.0f), 15.0f);
}

/* The scale and shift that fit given levels best, by least squares; as they were where all levels are one. */
INLINE void refit(const float *x, const float *q, float *scale, float *shift) {
    float sq = 0, sx = 0, sqq = 0, sqx = 0;
    for (int i = 0; i < BLOCK; i++) sq += q[i], sx += x[i], sqq += q[i] * q[i], sqx += q[i] * x[i];
    float spread = BLOCK * sqq - sq * sq;
    if (spread <= 0.0f) return;
    float fit = (BLOCK * sqx - sq * sx) / spread;
    if (fit <= 0.0f) return;
    *scale = fit;
    *shift = (sx - fit * sq) / BLOCK;
}

static Four try_range(const float *x, float low, float high) {
    Four f;
    float scale = (high - low) / 15.0f, shift = low;
    round_levels(x, scale, shift, f.q);
    refit(x, f.q, &scale, &shift);
    f.scale = to_half(scale), f.shift = to_half(shift);
    scale = half_to_float(f.scale), shift = half_to_float(f.shift);
    round_levels(x, scale, shift, f.q);
    f.error = 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        float off = f.q[i] * scale + shift - x[i];
        f.error += off * off;
    }
    return f;
}

static void to_four(const float *x, uint8_t *to) {
    float low = x[0], high = x[0];
    for (int i = 1; i < BLOCK; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    Four best = try_range(x, low, high);
    for (int c = 1; c < CANDIDATES; c++) {
        float cut = CUT * (float)c * (high - low) / 2;
        Four f = try_range(x, low + cut, high - cut);
        if (f.error < best.error) best = f;
    }
    memcpy(to, &best.scale, 2);
    memcpy(to + 2, &best.shift, 2);
    for (int i = 0; i < 16; i++) to[4 + i] = (uint8_t)((int)best.q[i] | (int)best.q[i + 16] << 4);
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
