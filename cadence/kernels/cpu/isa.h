/* The instruction sets that kernels are written for. */
#ifndef CADENCE_ISA_H
#define CADENCE_ISA_H

typedef struct Backend Backend; /* of packed products: packed.h */

typedef struct {
    const char *name;
    const Backend *backend;
    int (*usable)(void); /* on this machine; asks the operating system where that is needed */
    int half, tiles;     /* whether attention multiplies float16 numbers as such, bf16 ones in tiles of AMX */
} Isa;

/* What there is, lowest first, ended by a NULL name. */
extern const Isa isas[];

#endif
