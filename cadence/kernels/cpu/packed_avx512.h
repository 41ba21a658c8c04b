/* Parts of a Backend with AVX-512 and VNNI, shared by the instruction sets above it. */
#ifndef CADENCE_PACKED_AVX512_H
#define CADENCE_PACKED_AVX512_H

#include "packed.h"

/* x is kept as unsigned bytes (q + 128): the instruction multiplies unsigned by signed bytes. What that adds, 128 times
 * the sum of w, is taken off beforehand: Tile.fix holds its negative per scale. */
void packed_vnni_quantize(const float *x, int64_t k, const Acts *a, int64_t row);
void packed_vnni_unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to);
void packed_vnni_dot(int64_t kind, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps, float *acc);
void packed_vnni_widen(const uint8_t *from, int64_t k, float *to);
void packed_vnni_dot_wide(const float *w, const Acts *a, int64_t t, int64_t at, int64_t k, float *acc);

#endif
