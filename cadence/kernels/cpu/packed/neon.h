/* Parts of a Backend for 64-bit Arm, shared by the instruction sets there. */
#ifndef CADENCE_PACKED_NEON_H
#define CADENCE_PACKED_NEON_H

#include "packed/generic.h"

#include <arm_neon.h>

void packed_neon_unpack(int64_t kind, int plane, const uint8_t *from, int64_t k, Tile *to);
void packed_neon_widen(const uint8_t *from, int64_t k, float *to);
void packed_neon_dot_wide(const float *w, const Stretch *x);
int packed_neon_direct_wide(int64_t kind, const uint8_t *from, const Acts *a, float *acc); /* as Backend.direct */

/* With the dot product instructions. */
void packed_neon_dot_quantize(const float *x, int64_t k, const Acts *a, int64_t row);
void packed_neon_dot_tiles(int64_t kind, const Tile *w, const Stretch *x);
int packed_neon_dot_direct(int64_t kind, const uint8_t *from, const Acts *a, float *acc);
int packed_neon_direct_planes(int64_t kind, const uint8_t *from, const Acts *a, float *acc); /* of kinds of two planes */

#endif
