/* Columns of a matrix in another order. */
#include "maps/row_maps.h"

#define PICK(type)                                                                        \
    for (int64_t r = begin; r < end; r++) {                                               \
        const type *x = (const type *)w->x + r * w->x_stride;                             \
        type *out = (type *)w->out + r * w->width;                                        \
        for (int64_t i = 0; i < w->width; i++) out[i] = x[w->order[i]];                   \
    }

static void pick_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct pick_columns *w = work;
    if (element_size((int)w->dtype) == 4)
        PICK(uint32_t)
    else
        PICK(uint16_t)
}

EXPORT void call_pick_columns(const void *words) {
    const struct pick_columns *w = words;
    share_rows(w->rows, w->width, pick_rows, (void *)w);
}
