/* Sums of rows by segment, exact: numbers are added as integers, multiples of 2^-30. Columns are shared out, so that one
 * thread adds up each sum. */
#include "maps/row_maps.h"

#define COLUMNS 64           /* that a thread takes at once */
#define SCALE 0x1p30         /* as interface/ops.py has it, and MOST */
#define MOST 0x1p44          /* a multiple, at most */
#define ROUNDING 0x1.8p52    /* added to a number below 2^51 it leaves the nearest integer, to even, in the low bits */

typedef struct token_sums TokenSums;

/* lost[r]: whether row r has something that is no finite number. */
static void find_lost(void *work, int64_t begin, int64_t end, int64_t thread) {
    const TokenSums *a = work;
    for (int64_t r = begin; r < end; r++) {
        const char *x = a->x + r * a->x_stride * element_size(a->dtype);
        vi lost = {0};
        for (int64_t i = 0; i < a->width; i += VL) {
            vf v;
            WITH_DTYPE(a->dtype, v = load_upto(x, i, DTYPE, a->width - i);)
            lost |= ((vi)v & 0x7f800000) == 0x7f800000;
        }
        int found = 0;
        for (int i = 0; i < VL; i++) found |= lost[i] != 0;
        a->lost[r] = found;
    }
}

INLINE void add_columns(int64_t *to, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double v = (double)x[i] * SCALE;
        v = v > MOST ? MOST : v < -MOST ? -MOST : v;
        v += ROUNDING;
        int64_t bits, zero;
        const double base = ROUNDING;
        memcpy(&bits, &v, 8);
        memcpy(&zero, &base, 8);
        to[i] += bits - zero;
    }
}

static void sum_columns(void *work, int64_t begin, int64_t end, int64_t thread) {
    const TokenSums *a = work;
    const int64_t stride = a->width + 1;
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * COLUMNS, count = min64(COLUMNS, a->width - first);
        const int64_t zeroed = count + (first + count == a->width); /* the last counts lost rows, too */
        for (int64_t s = 0; s < a->segments; s++) memset(a->out + s * stride + first, 0, (size_t)zeroed * 8);
        for (int64_t r = 0; r < a->rows; r++) {
            int64_t *to = a->out + a->segment[r] * stride;
            if (a->lost[r]) {
                to[a->width] += zeroed > count;
                continue;
            }
            float x[COLUMNS + VL];
            const char *from = a->x + (r * a->x_stride + first) * element_size(a->dtype);
            WITH_DTYPE(a->dtype,
                       for (int64_t i = 0; i < count; i += VL) storef(x + i, load_upto(from, i, DTYPE, count - i));)
            add_columns(to + first, x, count);
        }
    }
}

EXPORT void call_token_sums(const void *words) {
    const TokenSums *a = words;
    share_rows(a->rows, a->width, find_lost, (void *)a);
    share((a->width + COLUMNS - 1) / COLUMNS, 1, sum_columns, (void *)a);
}
