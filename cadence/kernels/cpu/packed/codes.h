/* One row of x times weights of codes, of two planes or of float8, straight from the packed bytes: as Backend.direct, for any backend of
 * x86 that has these instructions. */
#ifndef CADENCE_PACKED_CODES_H
#define CADENCE_PACKED_CODES_H

#include "packed/packed.h"

int packed_avx2_direct_codes(int64_t kind, const uint8_t *from, const Acts *a, float *acc);
int packed_avx2_direct_planes(int64_t kind, const uint8_t *from, const Acts *a, float *acc);
int packed_avx2_direct_float8(const uint8_t *from, const Acts *a, float *acc);
int packed_avx512_direct_float8(const uint8_t *from, const Acts *a, float *acc); /* AVX-512 F, BW, VL */

#endif
