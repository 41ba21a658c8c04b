/* The instruction sets that kernels are written for. */
#ifndef CADENCE_ISA_H
#define CADENCE_ISA_H

#include <stdint.h>

/* Of packed products: packed/packed.h says what they are, each is a file there. */
typedef struct Backend Backend;
extern const Backend packed_portable;
#if defined(__aarch64__)
extern const Backend packed_neon, packed_neon_dot, packed_neon_half;
#elif defined(__x86_64__)
extern const Backend packed_avx2, packed_avx512, packed_vnni, packed_avx512_bf16, packed_amx;
#endif

typedef struct {
    const char *name;
    const Backend *backend;
    int (*usable)(void); /* on this machine; asks the operating system where that is needed */
    int half, tiles;     /* whether attention multiplies float16 numbers as such, bf16 ones in tiles of AMX */
} Isa;

/* What there is, lowest first, ended by a NULL name. */
extern const Isa isas[];
int64_t count_isas(void);

#endif
