/* Gumbel noise from Philox4x32-10, word for word what the reference describes. */
#include "common.h"

#define QUADS 64 /* Philox blocks computed together, four words each */
#define DL (VL / 2)

typedef double vd __attribute__((vector_size(DL * 8), aligned(8), may_alias));
typedef int64_t vl __attribute__((vector_size(DL * 8)));

typedef struct {
    uint32_t word[4][QUADS];
} Words;

static void philox(Words *w, uint32_t first, int64_t position, uint64_t seed) {
    for (int i = 0; i < QUADS; i++) {
        w->word[0][i] = first + (uint32_t)i;
        w->word[1][i] = (uint32_t)position;
        w->word[2][i] = (uint32_t)((uint64_t)position >> 32);
        w->word[3][i] = 0;
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int i = 0; i < QUADS; i++) {
            uint64_t a = (uint64_t)w->word[0][i] * 0xD2511F53u, b = (uint64_t)w->word[2][i] * 0xCD9E8D57u;
            w->word[0][i] = (uint32_t)(b >> 32) ^ w->word[1][i] ^ k0;
            w->word[1][i] = (uint32_t)b;
            w->word[2][i] = (uint32_t)(a >> 32) ^ w->word[3][i] ^ k1;
            w->word[3][i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Natural logarithm of positive normal doubles, within 2 ulp: x = 2^e * m, m in [1/sqrt 2, sqrt 2),
 * log m = 2 atanh((m - 1) / (m + 1)) by its odd series. */
INLINE vd logd(vd x) {
    vl bits = (vl)x;
    vl e = ((bits - 0x3fe6a09e667f3bcd) >> 52);
    vd m = (vd)(bits - (e << 52));
    vd n = __builtin_convertvector(e, vd);
    vd f = m - 1.0, s = f / (m + 1.0), z = s * s;
    vd poly = z * (1.0 / 23) + 1.0 / 21;
    poly = poly * z + 1.0 / 19;
    poly = poly * z + 1.0 / 17;
    poly = poly * z + 1.0 / 15;
    poly = poly * z + 1.0 / 13;
    poly = poly * z + 1.0 / 11;
    poly = poly * z + 1.0 / 9;
    poly = poly * z + 1.0 / 7;
    poly = poly * z + 1.0 / 5;
    poly = poly * z + 1.0 / 3;
    vd tail = s * z * poly * 2.0 + n * 1.90821492927058770002e-10;
    return n * 6.93147180369123816490e-01 + (s * 2.0 + tail);
}

/* seeds, positions [rows] with the given strides -> out [rows, vocab] contiguous. */
EXPORT void cadence_gumbel(float *out, const int64_t *seeds, int64_t seed_stride, const int64_t *positions,
                           int64_t position_stride, int64_t rows, int64_t vocab) {
    int64_t pieces = (vocab + 4 * QUADS - 1) / (4 * QUADS);
#pragma omp parallel for if (rows * pieces > 8)
    for (int64_t job = 0; job < rows * pieces; job++) {
        int64_t r = job / pieces, piece = job % pieces;
        Words w;
        double u[4 * QUADS];
        float noise[4 * QUADS];
        philox(&w, (uint32_t)(piece * QUADS), positions[r * position_stride], (uint64_t)seeds[r * seed_stride]);
        for (int i = 0; i < QUADS; i++)
            for (int j = 0; j < 4; j++) u[4 * i + j] = ((double)w.word[j][i] + 0.5) * 0x1p-32;
        for (int i = 0; i < 4 * QUADS; i += DL) {
            vd *at = (vd *)(u + i);
            *at = -logd(-logd(*at));
        }
        for (int i = 0; i < 4 * QUADS; i++) noise[i] = (float)u[i];
        int64_t first = piece * 4 * QUADS;
        memcpy(out + r * vocab + first, noise, (size_t)min64(vocab - first, 4 * QUADS) * 4);
    }
}
