/* Logits of tokens that a grammar does not allow. */
#include "runtime/common.h"
#include "runtime/threads.h"

#define ALL 0xffffffffu

/* Columns [begin, end), at most 32, of which bit i of `word` allows the one at begin + i. What is not finite stays. */
INLINE void mask_f32(uint32_t *line, int64_t begin, int64_t end, uint32_t word) {
    for (int64_t i = begin; i < end; i++) {
        int stays = (word >> (i - begin) & 1) | ((line[i] & 0x7f800000u) == 0x7f800000u);
        line[i] = stays ? line[i] : 0xff800000u;
    }
}

INLINE void mask_half(uint16_t *line, int64_t begin, int64_t end, uint32_t word, uint16_t infinity) {
    for (int64_t i = begin; i < end; i++) {
        int stays = (word >> (i - begin) & 1) | ((line[i] & infinity) == infinity);
        line[i] = stays ? line[i] : (uint16_t)(infinity | 0x8000);
    }
}

static void mask_lines(void *work, int64_t first, int64_t last, int64_t thread) {
    const struct token_mask *w = work;
    int dtype = (int)w->dtype;
    for (int64_t l = first; l < last; l++) {
        if (w->mask_of_line[l] < 0) continue;
        const int32_t *mask = w->masks + w->mask_of_line[l] * w->mask_stride;
        char *line = w->logits + l * w->logits_stride * element_size(dtype);
        for (int64_t begin = 0; begin < w->vocab; begin += 32) {
            uint32_t word = (uint32_t)mask[begin / 32];
            if (word == ALL) continue;
            int64_t end = min64(begin + 32, w->vocab);
            if (dtype == F32)
                mask_f32((uint32_t *)line, begin, end, word);
            else
                mask_half((uint16_t *)line, begin, end, word, dtype == BF16 ? 0x7f80 : 0x7c00);
        }
    }
}

EXPORT void call_token_mask(const void *words) {
    const struct token_mask *w = words;
    share_rows(w->lines, w->vocab, mask_lines, (void *)w);
}
