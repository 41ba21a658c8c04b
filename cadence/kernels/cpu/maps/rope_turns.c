/* Cosines and sines of tokens whose positions have axes. */
#include "runtime/common.h"
#include "runtime/threads.h"

#define SEGMENT 5 /* first token, t, h, w, width */

/* Of `count` ascending numbers, `stride` apart, how many are at most `value`. */
static int64_t count_upto(const int32_t *numbers, int64_t stride, int64_t count, int64_t value) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (numbers[middle * stride] <= value) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void axes_of(int64_t axes[3], const struct rope_turns *w, int64_t row, int64_t position) {
    const int32_t *lines = w->segments + row * w->segment_stride;
    int64_t count = count_upto(lines, SEGMENT, w->counts[row * w->count_stride], position);
    const int32_t *s = lines + (count - 1) * SEGMENT;
    int64_t i = count ? position - s[0] : position, width = count ? s[4] : 0;
    for (int64_t a = 0; a < 3; a++) axes[a] = (count ? s[1 + a] : 0) + (width ? 0 : i);
    if (width) {
        axes[1] += i / width;
        axes[2] += i % width;
    }
    for (int64_t a = 0; a < 3; a++) axes[a] = axes[a] < 0 ? 0 : axes[a] < w->length ? axes[a] : w->length - 1;
}

static void turn_tokens(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct rope_turns *w = work;
    for (int64_t t = begin; t < end; t++) {
        int64_t run = count_upto(w->query_start + 1, 1, w->num_rows, t), axes[3] = {0, 0, 0};
        if (run < w->num_rows) axes_of(axes, w, w->rows[run], w->positions[t]);
        float *cos = w->out + t * 2 * w->half, *sin = cos + w->half;
        for (int64_t j = 0; j < w->half; j++) {
            const float *line = w->cos_sin + axes[w->axis_of[j]] * 2 * w->half;
            cos[j] = line[j];
            sin[j] = line[w->half + j];
        }
    }
}

EXPORT void call_rope_turns(const void *words) {
    const struct rope_turns *w = words;
    share_rows(w->num_tokens, 2 * w->half, turn_tokens, (void *)w);
}
