/* The tokens that a transcript may go on with. */
#include "runtime/common.h"
#include "runtime/threads.h"

#define NO_TIMES -1
#define BARRED -INFINITY

enum { FIRST_TIMESTAMP, NO_TIMESTAMPS, END_OF_TEXT, LAST_INITIAL, NUMBERS };

static void bar(float *line, int64_t begin, int64_t end) {
    for (int64_t i = max64(begin, 0); i < end; i++) line[i] = BARRED;
}

static void bar_listed(const struct speech_rules *w) {
    for (const int64_t *pair = w->pairs, *end = pair + 2 * w->num_pairs; pair < end; pair += 2)
        w->logits[pair[0] * w->logits_stride + pair[1]] = BARRED;
    for (const int64_t *pair = w->first_pairs, *end = pair + 2 * w->num_first; pair < end; pair += 2)
        if (w->lengths[pair[0]] == w->prompt_lens[pair[0]])
            w->logits[pair[0] * w->logits_stride + pair[1]] = BARRED;
}

/* What would break a pair of times, go back in time, or begin without one. */
static void bar_times(const struct speech_rules *w, int64_t l, const int64_t *numbers, float *line) {
    const int32_t *tokens = w->tokens + w->rows[l] * w->token_stride;
    int64_t length = w->lengths[l], prompt = w->prompt_lens[l], times = min64(numbers[FIRST_TIMESTAMP], w->vocab);
    int64_t last = length - 1;
    while (last >= prompt && tokens[last] < numbers[FIRST_TIMESTAMP]) last--; /* the latest time; below prompt: none */
    int after_time = length > prompt && last == length - 1;
    /* The first time has no partner: after it comes text, as after a pair. */
    int after_pair = after_time && (length - prompt < 2 || tokens[length - 2] >= numbers[FIRST_TIMESTAMP]);
    int inside_pair = after_time && !after_pair;
    if (numbers[NO_TIMESTAMPS] >= 0 && numbers[NO_TIMESTAMPS] < w->vocab) line[numbers[NO_TIMESTAMPS]] = BARRED;
    if (last >= prompt) bar(line, times, min64(tokens[last] + (inside_pair ? 0 : 1), w->vocab));
    if (after_pair) bar(line, times, w->vocab);
    if (inside_pair) bar(line, 0, min64(numbers[END_OF_TEXT], w->vocab));
    if (length == prompt) {
        bar(line, 0, times);
        bar(line, numbers[LAST_INITIAL] + 1, w->vocab);
    }
}

static float largest_of(const float *x, int64_t n) {
    float best[64], most = BARRED;
    EACH(j, 64) best[j] = BARRED;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 64; j++) best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int j = 0; j < 64; j++) most = best[j] > most ? best[j] : most;
    return most;
}

/* Where all times together are likelier than any other token, the others are barred. */
static void bar_less_likely(float *line, int64_t times, int64_t vocab) {
    float top = largest_of(line + times, vocab - times), text = largest_of(line, times);
    if (top == BARRED) return;
    double sum = 0.0;
    for (int64_t i = times; i < vocab; i++) sum += line[i] == BARRED ? 0.0 : expf(line[i] - top);
    if ((double)top + log(sum) > text) bar(line, 0, times);
}

static void rule_lines(void *work, int64_t first, int64_t last, int64_t thread) {
    const struct speech_rules *w = work;
    for (int64_t l = first; l < last; l++) {
        const int64_t *numbers = w->times + l * NUMBERS;
        float *line = w->logits + l * w->logits_stride;
        if (numbers[FIRST_TIMESTAMP] == NO_TIMES) continue;
        bar_times(w, l, numbers, line);
        bar_less_likely(line, min64(numbers[FIRST_TIMESTAMP], w->vocab), w->vocab);
    }
}

EXPORT void call_speech_rules(const void *words) {
    const struct speech_rules *w = words;
    bar_listed(w);
    share_rows(w->lines, w->vocab, rule_lines, (void *)w);
}
