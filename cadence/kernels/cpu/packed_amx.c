/* Packed products with AMX tiles: integers for 16 rows at once, bf16 for any number. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed_avx512.h"
#include "packed_generic.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET \
    __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#define ASK_FOR_FEATURE 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18
#define ROWS 16

int packed_amx_allowed(void) {
#if defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    int present = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1); /* bf16, tiles, int8 */
    return present && syscall(SYS_arch_prctl, ASK_FOR_FEATURE, TILE_DATA) == 0;
#else
    return 0;
#endif
}

/* Tiles 0-3: sums [16][16]. 4: x [16][32] bytes, 5: w [8][16 rows][4] bytes. 6: x [16][32] bf16, 7: w [16][16 rows][2]
 * bf16. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) Config;

static const Config config = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 32, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 8, 16, 16}};

TARGET static void begin(void) {
    const Config *at = &config;
    __asm__ volatile("" : "+r"(at) : : "memory"); /* some compilers believe the instruction reads less than 64 bytes */
    _tile_loadconfig(at);
}

TARGET static void end(void) { _tile_release(); }

/* Scales the sums of a step for 16 rows of x and adds them. */
TARGET INLINE void add_part(const int32_t *part, __m512 scale, const float *xs, int64_t tile, __m512 *sum) {
    EACH(m, ROWS) {
        __m512 x = _mm512_set1_ps(xs[m / TILE_ROWS * tile + m % TILE_ROWS]);
        __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(part + m * GROUP)), x);
        sum[m] = _mm512_fmadd_ps(scaled, scale, sum[m]);
    }
}

TARGET INLINE void dot_16(const int shift, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps,
                          float *acc) {
    int32_t part[2][ROWS * GROUP] __attribute__((aligned(64)));
    int64_t tile = a->steps * TILE_ROWS, first = t * tile + step * TILE_ROWS;
    __m512 sum[ROWS];
    EACH(m, ROWS) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t s = 0; s < steps; s++) {
        const int8_t *x = a->q + t * TILE_ROWS * a->padded + (step + s) * K_STEP;
        const float *xs = a->scale + first + s * TILE_ROWS, *xsum = a->sum + first + s * TILE_ROWS;
        _tile_loadd(4, x, a->padded);
        _tile_loadd(5, w->at + s * w->step_bytes, 64);
        if (s % 2 == 0) {
            _tile_loadd(0, w->fix + s * GROUP, 0); /* the same in every row */
            _tile_dpbusd(0, 4, 5);
            _tile_stored(0, part[0], 64);
        } else {
            _tile_loadd(1, w->fix + s * GROUP, 0);
            _tile_dpbusd(1, 4, 5);
            _tile_stored(1, part[1], 64);
        }
        add_part(part[s % 2], _mm512_loadu_ps(w->scale + s * GROUP), xs, tile, sum);
        if (shift) {
            __m512 shifts = _mm512_loadu_ps(w->shift + s * GROUP);
            EACH(m, ROWS)
                sum[m] = _mm512_fmadd_ps(shifts, _mm512_set1_ps(xsum[m / TILE_ROWS * tile + m % TILE_ROWS]), sum[m]);
        }
    }
    EACH(m, ROWS) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET static void dot16(int64_t kind, const Tile *w, const Acts *a, int64_t t, int64_t step, int64_t steps,
                         float *acc) {
    if (formats[kind].halves == 2)
        for (int64_t i = 0; i < 4; i++) packed_vnni_dot(kind, w, a, t + i, step, steps, acc + i * TILE_ROWS * GROUP);
    else if (formats[kind].shift)
        dot_16(1, w, a, t, step, steps, acc);
    else
        dot_16(0, w, a, t, step, steps, acc);
}

/* bf16 for 16 rows of x (rows past `count` are computed on what lies there, and dropped), or for four times as many. */
TARGET static void narrow_16(const uint8_t *from, const uint16_t *x, int64_t padded, float *sums) {
    _tile_zero(0);
    for (int64_t k = 0; k < padded; k += 32) {
        _tile_loadd(6, x + k, padded * 2);
        _tile_loadd(7, from + k * 32, 64);
        _tile_dpbf16ps(0, 6, 7);
    }
    _tile_stored(0, sums, 64);
}

TARGET static void narrow_64(const uint8_t *from, const uint16_t *x, int64_t padded, float *sums) {
    int64_t block = ROWS * padded;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < padded; k += 32) {
        _tile_loadd(7, from + k * 32, 64);
        _tile_loadd(6, x + k, padded * 2);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(6, x + block + k, padded * 2);
        _tile_dpbf16ps(1, 6, 7);
        _tile_loadd(6, x + 2 * block + k, padded * 2);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(6, x + 3 * block + k, padded * 2);
        _tile_dpbf16ps(3, 6, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + ROWS * GROUP, 64);
    _tile_stored(2, sums + 2 * ROWS * GROUP, 64);
    _tile_stored(3, sums + 3 * ROWS * GROUP, 64);
}

TARGET static void dot_narrow(const uint8_t *from, const Acts *a, int64_t row, int64_t count, float *acc) {
    const uint16_t *x = a->narrow + row * a->padded;
    if (count == 64) {
        narrow_64(from, x, a->padded, acc);
        return;
    }
    for (int64_t m = 0; m < count; m += ROWS) {
        float sums[ROWS * GROUP] __attribute__((aligned(64)));
        narrow_16(from, x + m * a->padded, a->padded, sums);
        memcpy(acc + m * GROUP, sums, (size_t)min64(count - m, ROWS) * GROUP * 4);
    }
}

const Backend packed_amx = {.quantize = packed_vnni_quantize,
                            .unpack = packed_vnni_unpack,
                            .dot = packed_vnni_dot,
                            .dot16 = dot16,
                            .widen = packed_vnni_widen,
                            .dot_wide = packed_vnni_dot_wide,
                            .dot_narrow = dot_narrow,
                            .begin = begin,
                            .end = end};

#endif
