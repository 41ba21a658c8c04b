/* Parts of a Backend for 64-bit Arm, shared by the instruction sets there. */
#ifndef CADENCE_PACKED_NEON_H
#define CADENCE_PACKED_NEON_H

#include "packed/generic.h"

#include <arm_neon.h>

/* Parts of 5 or 6 bits of 4 output rows -> its quads, each in the top bits of its bytes, above bits of others. */
INLINE void top_fives(const uint8x16_t *p, uint8x16_t *top) {
    EACH(i, 5) top[i] = p[i];
    top[5] = vsliq_n_u8(vshlq_n_u8(p[3], 2), p[0], 5);
    top[6] = vsliq_n_u8(vshlq_n_u8(p[4], 2), p[1], 5);
    top[7] = vsliq_n_u8(vsliq_n_u8(vshlq_n_u8(p[4], 3), p[3], 4), p[2], 5);
}

INLINE void top_sixes(const uint8x16_t *p, uint8x16_t *top) {
    EACH(h, 2) {
        EACH(i, 3) top[h * 4 + i] = p[h * 3 + i];
        top[h * 4 + 3] = vsliq_n_u8(vsliq_n_u8(vshlq_n_u8(p[h * 3 + 2], 2), p[h * 3 + 1], 4), p[h * 3], 6);
    }
}

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
