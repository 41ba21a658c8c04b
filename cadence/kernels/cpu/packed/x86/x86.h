/* What the instruction sets of x86 share: how weights count from zero, and constants of a kind for loops. */
#ifndef CADENCE_PACKED_X86_H
#define CADENCE_PACKED_X86_H

#include "packed/generic.h"

#define AHEAD 4096 /* bytes: weights that are read once are asked for so far before they are needed */

/* What quants of a kind, taken as unsigned bytes, are too large by. Bytes become unsigned by turning their top bit. */
INLINE int32_t zero_of(const int kind) {
    return formats[kind].bits == 8 ? 128 : formats[kind].zero;
}

/* Zero times the sum of x: what the sum over a step (or over half h of it) of unsigned quants is too large by. Wraps
 * around on rows that only fill up x. */
INLINE int32_t excess_of(const int kind, const int32_t *half_sums, const int h) {
    const uint32_t first = (uint32_t)half_sums[0], second = (uint32_t)half_sums[1];
    uint32_t sum = formats[kind].halves == 1 ? first + second : h == 0 ? first : second;
    return (int32_t)((uint32_t)zero_of(kind) * sum);
}

/* What is multiplied by rows of x: quads of a step, as a tile has them or as they are packed. */
typedef struct {
    const uint8_t *q;
    int packed;
    const uint8_t *header; /* of packed codes */
} Quads;

/* Without an instruction for dot products, unsigned are multiplied by signed bytes and pairs added in 16 bits: pairs of
 * how many quads of half a step (or of all of it) can be added in 16 bits, too. Quants of up to 6 bits are unsigned.
 * Bytes are signed: |w| times x with the sign of w, at most 2 * 128 * 127. */
INLINE int quads_in_16_bits(const int kind) {
    const int bits = formats[kind].bits, quads = 8 / formats[kind].halves;
    const int most = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    return most < quads ? most : quads;
}

/* Asks for what lies AHEAD of a step and its share of a header. */
INLINE void ask_for_step(const int kind, const uint8_t *q) {
    const Format f = formats[kind];
    EACH(line, (f.step_bytes + f.header * K_STEP / f.block + 63) / 64)
        _mm_prefetch((const char *)q + AHEAD + line * 64, _MM_HINT_T0);
}

/* Runs `body` with KIND a constant: one of the kinds of one plane that are no floats. */
#define WITH_KIND(kind, body)                            \
    switch (kind) {                                      \
        case P_Q8_0: { enum { KIND = P_Q8_0 }; body; } break;     \
        case P_Q4_0: { enum { KIND = P_Q4_0 }; body; } break; \
        case P_Q4_1: { enum { KIND = P_Q4_1 }; body; } break; \
        case P_Q5_0: { enum { KIND = P_Q5_0 }; body; } break; \
        case P_Q5_1: { enum { KIND = P_Q5_1 }; body; } break; \
        case P_Q4_K: { enum { KIND = P_Q4_K }; body; } break; \
        case P_Q5_K: { enum { KIND = P_Q5_K }; body; } break; \
        case P_Q4_Z: { enum { KIND = P_Q4_Z }; body; } break; \
        case P_Q8_F: { enum { KIND = P_Q8_F }; body; } break; \
        case P_IQ4_NL: { enum { KIND = P_IQ4_NL }; body; } break; \
        case P_IQ4_XS: { enum { KIND = P_IQ4_XS }; body; } break; \
        case P_MXFP4: { enum { KIND = P_MXFP4 }; body; } break; \
        case P_T4_F: { enum { KIND = P_T4_F }; body; } break; \
        case P_Q6_K: { enum { KIND = P_Q6_K }; body; } break; \
        case P_Q8_Z: { enum { KIND = P_Q8_Z }; body; } break; \
        default: abort();                                     \
    }

/* The same for tiles, in which kinds of the same numbers are alike: KIND is one of these. */
#define WITH_UNPACKED(kind, body)                                                        \
    if (formats[kind].bits == 8 && formats[kind].halves == 2) { enum { KIND = P_T4_F }; body; } \
    else if (formats[kind].bits == 8 && formats[kind].shift) { enum { KIND = P_Q8_Z }; body; } \
    else if (formats[kind].bits == 8) { enum { KIND = P_Q8_0 }; body; }                   \
    else if (formats[kind].bits == 6) { enum { KIND = P_Q6_K }; body; }                   \
    else if (formats[kind].bits == 5 && formats[kind].zero) { enum { KIND = P_Q5_0 }; body; } \
    else if (formats[kind].bits == 5) { enum { KIND = P_Q5_1 }; body; }                   \
    else if (formats[kind].zero) { enum { KIND = P_Q4_0 }; body; }                        \
    else { enum { KIND = P_Q4_1 }; body; }

INLINE int32_t four_bytes(const int8_t *x) {
    int32_t bytes;
    memcpy(&bytes, x, 4);
    return bytes;
}

#endif
