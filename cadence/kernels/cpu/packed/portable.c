/* Packed products in plain C: correct everywhere, and what the other instruction sets are held to. */
#include "packed/generic.h"

static void quantize(const float *x, int64_t k, const Acts *a, int64_t row) { quantize_generic(x, k, a, row); }
static void unpack(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to) {
    unpack_generic(kind, plane, 1, from, k, to);
}
static void widen(const uint8_t *from, int64_t k, float *to) { widen_generic(from, k, to); }

INLINE void dot_row(const int halves, const int shift, const Tile *w, const Acts *a, int64_t row, int64_t step,
                    int64_t steps, float *acc) {
    const int quads = 8 / halves;
    for (int64_t s = 0; s < steps; s++) {
        int64_t at = (row / TILE_ROWS * a->steps + step + s) * TILE_ROWS + row % TILE_ROWS;
        for (int h = 0; h < halves; h++) {
            const int8_t *x = a->q + row * a->padded + (step + s) * K_STEP + h * quads * 4;
            const int8_t *q = w->at + s * w->step_bytes + h * quads * 64;
            int32_t sum[GROUP] = {0};
            for (int g = 0; g < quads; g++)
                for (int r = 0; r < GROUP; r++)
                    for (int i = 0; i < 4; i++) sum[r] += q[g * 64 + r * 4 + i] * x[g * 4 + i];
            const float *scale = w->scale + (s * halves + h) * GROUP;
            for (int r = 0; r < GROUP; r++)
                acc[r] = __builtin_fmaf((float)sum[r] * a->scale[at], scale[r], acc[r]);
        }
        if (shift)
            for (int r = 0; r < GROUP; r++) acc[r] = __builtin_fmaf(w->shift[s * GROUP + r], a->sum[at], acc[r]);
    }
}

static void dot(int64_t kind, const Tile *w, const Stretch *x) {
    const Acts *a = x->acts;
    for (int64_t m = 0; m < stretch_rows(x); m++) {
        int64_t row = x->tile * TILE_ROWS + m;
        WITH_SCALES(kind, dot_row(HALVES, SHIFT, w, a, row, x->at, x->count, x->acc + m * GROUP))
    }
}

static void dot_wide(const float *w, const Stretch *x) {
    for (int64_t m = 0; m < stretch_rows(x); m++) {
        const float *from = x->acts->wide + ((x->tile + m / TILE_ROWS) * x->acts->padded + x->at) * TILE_ROWS;
        float *acc = x->acc + m * GROUP;
        for (int64_t i = 0; i < x->count; i++)
            for (int r = 0; r < GROUP; r++)
                acc[r] = __builtin_fmaf(w[i * GROUP + r], from[i * TILE_ROWS + m % TILE_ROWS], acc[r]);
    }
}

const Backend packed_portable = {
    .quantize = quantize, .unpack = unpack, .dot = dot, .widen = widen, .dot_wide = dot_wide};
