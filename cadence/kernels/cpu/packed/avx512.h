/* Packed products with AVX-512 and VNNI: parts of a Backend that the instruction sets above it share. */
#ifndef CADENCE_PACKED_AVX512_H
#define CADENCE_PACKED_AVX512_H

#include "packed/packed.h"

#define DIRECT_ROWS 8

/* The instruction multiplies unsigned bytes, the weights without their zero subtracted, by signed ones, x. What that is
 * too much, zero * sum of x, is a number of the row and half of a step: sums of integers begin at its negative. */
void packed_vnni_quantize(const float *x, int64_t k, const Acts *a, int64_t row);
void packed_vnni_unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to);
void packed_vnni_dot(int64_t kind, const Tile *w, const Stretch *x);
int packed_vnni_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc);
void packed_vnni_widen(const uint8_t *from, int64_t k, float *to);
void packed_vnni_dot_wide(const float *w, const Stretch *x);

#endif
