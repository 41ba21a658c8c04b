/* Short causal convolutions, each channel by itself. */
#include "states/states.h"

#define BLOCK (8 * VL) /* channels of an item, at most */

typedef struct {
    const struct state_conv *w;
    Run run;
    const float *taps; /* [taps + 1, BLOCK]: weights, then the bias */
    int64_t first;     /* channel of the block */
} Block;

/* What the run sees at `at`, counted from the first input that its first token sees: VL channels from `channel` on. */
INLINE const char *seen_at(const Block *b, int64_t at, int64_t channel) {
    const struct state_conv *w = b->w;
    const int64_t before = w->taps - 1, row = b->run.row * w->inputs_row;
    if (at < before) return crow_of(w->inputs, row + (b->run.replayed + at) * w->channels + channel, w->dtype);
    return crow_of(w->x, (b->run.begin + at - before) * w->x_stride + channel, w->dtype);
}

/* VL channels, or the last `lanes`, of all tokens of a run. TAPS: how many, or 0 = any number */
INLINE void convolve(const int TAPS, const Block *b, int64_t channel, int64_t lanes, const int silu_too, const int dtype) {
    const struct state_conv *w = b->w;
    const float *taps = b->taps + channel - b->first;
    int64_t tokens = b->run.certain + b->run.kept;
    vf weight[4], seen[4];
    EACH(i, TAPS) weight[i] = loadf(taps + i * BLOCK);
    EACH(i, TAPS - 1) seen[i] = load_upto(seen_at(b, i, channel), 0, dtype, lanes);
    for (int64_t at = 0; at < tokens; at++) {
        vf total = loadf(taps + w->taps * BLOCK);
        if (TAPS) {
            seen[TAPS - 1] = load_upto(crow_of(w->x, (b->run.begin + at) * w->x_stride + channel, dtype), 0, dtype, lanes);
            EACH(i, TAPS) total = madd(total, weight[i], seen[i]);
            EACH(i, TAPS - 1) seen[i] = seen[i + 1];
        } else {
            for (int64_t i = 0; i < w->taps; i++)
                total = madd(total, loadf(taps + i * BLOCK), load_upto(seen_at(b, at + i, channel), 0, dtype, lanes));
        }
        if (silu_too) total = silu(total);
        store_upto(w->out, (b->run.begin + at) * w->channels + channel, dtype, lanes, total);
    }
}

INLINE void convolve_block(const int TAPS, const Block *b, int64_t count, const int silu_too, const int dtype) {
    int64_t i = 0;
    for (; i + VL <= count; i += VL) convolve(TAPS, b, b->first + i, VL, silu_too, dtype);
    if (i < count) convolve(TAPS, b, b->first + i, count - i, silu_too, dtype);
}

INLINE void convolve_silu(const Block *b, int64_t count, const int silu_too, const int dtype) {
    if (b->w->taps == 4)
        convolve_block(4, b, count, silu_too, dtype);
    else if (b->w->taps == 3)
        convolve_block(3, b, count, silu_too, dtype);
    else
        convolve_block(0, b, count, silu_too, dtype);
}

/* Weights and bias of a block as floats, a tap's side by side. */
static void take_taps(const struct state_conv *w, float *taps, int64_t first, int64_t count) {
    const int64_t size = element_size(w->weight_dtype);
    char line[BLOCK * 4];
    for (int64_t tap = 0; tap < w->taps; tap++) {
        const char *from = crow_of(w->weight, first * w->weight_channel + tap * w->weight_tap, w->weight_dtype);
        const int64_t step = w->weight_channel * size;
        if (size == 4)
            for (int64_t i = 0; i < count; i++) ((uint32_t *)line)[i] = *(const uint32_t *)(from + i * step);
        else
            for (int64_t i = 0; i < count; i++) ((uint16_t *)line)[i] = *(const uint16_t *)(from + i * step);
        widen(taps + tap * BLOCK, line, count, (int)w->weight_dtype);
    }
    float *bias = taps + w->taps * BLOCK;
    memset(bias, 0, BLOCK * 4);
    if (w->bias) widen(bias, crow_of(w->bias, first, w->bias_dtype), count, (int)w->bias_dtype);
}

/* The state takes in what is certain; after it come the inputs of the others. No line is read after it is written. */
static void take_inputs(const Block *b, int64_t count) {
    const struct state_conv *w = b->w;
    const int64_t size = element_size(w->dtype), lines = w->taps - 1 + b->run.kept;
    char *to = w->inputs + (b->run.row * w->inputs_row + b->first) * size;
    if (b->run.replayed + b->run.certain + b->run.kept == 0) return;
    for (int64_t i = 0; i < lines; i++)
        memmove(to + i * w->channels * size, seen_at(b, b->run.certain + i, b->first), (size_t)(count * size));
}

static void convolve_blocks(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct state_conv *w = work;
    float *taps = thread_buffer((w->taps + 1) * BLOCK);
    for (int64_t at = begin; taps && at < end; at++) {
        Block b = {w, .taps = taps, .first = at * BLOCK};
        int64_t count = min64(BLOCK, w->channels - b.first);
        take_taps(w, taps, b.first, count);
        for (int64_t r = 0; r < w->runs.num_runs; r++) {
            b.run = run_of(&w->runs, r);
            if (w->silu) {
                WITH_DTYPE(w->dtype, convolve_silu(&b, count, 1, DTYPE))
            } else {
                WITH_DTYPE(w->dtype, convolve_silu(&b, count, 0, DTYPE))
            }
            take_inputs(&b, count);
            zero_padding(w->out, w->channels, b.first, count, &b.run, (int)w->dtype);
        }
    }
}

EXPORT void call_state_conv(const void *words) {
    const struct state_conv *w = words;
    int64_t blocks = (w->channels + BLOCK - 1) / BLOCK;
    int64_t worth = SHARED_WORK / 4 / max64(1, tokens_of(&w->runs) * BLOCK); /* blocks that are worth a thread */
    share(blocks, 1 + worth, convolve_blocks, (void *)w);
}
