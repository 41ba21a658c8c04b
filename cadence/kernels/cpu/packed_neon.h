/* Parts of a Backend for 64-bit Arm, shared by the instruction sets there. */
#ifndef CADENCE_PACKED_NEON_H
#define CADENCE_PACKED_NEON_H

#include "packed_generic.h"

#include <arm_neon.h>


void packed_neon_unpack(int64_t kind, const uint8_t *from, int64_t k, Tile *to);
void packed_neon_widen(const uint8_t *from, int64_t k, float *to);
void packed_neon_dot_wide(const float *w, const Stretch *x);
int packed_neon_direct_wide(int64_t kind, const uint8_t *from, const Acts *a, float *acc); /* as Backend.direct */

#endif
