/* Packed products with AMX tiles: integers for 16 rows at once, bf16 for any number. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed_avx512.h"
#include "packed_x86.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET \
    __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define ASK_FOR_FEATURE 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18
#define ROWS16 16
#define TILES16 (ROWS16 / TILE_ROWS)

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

/* The integer sums of step s for 16 rows of x, into part [16][16]. Even and odd steps use tiles of their own, so that one
 * is summed while the other is stored. x is signed; so are bytes of weights, all others are not. */
#define SUM_STEP(sums)                                                       \
    {                                                                        \
        _tile_zero(sums);                                                    \
        _tile_loadd(4, x, stride);                                           \
        _tile_loadd(5, w, 64);                                               \
        if (kind == P_Q8)                                                    \
            _tile_dpbssd(sums, 4, 5);                                        \
        else                                                                 \
            _tile_dpbsud(sums, 4, 5);                                        \
        _tile_stored(sums, part, 64);                                        \
    }

TARGET INLINE void sum_step(const int kind, const int is_odd, const int8_t *x, int64_t stride, const int8_t *w,
                            int32_t *part) {
    if (is_odd)
        SUM_STEP(1)
    else
        SUM_STEP(0)
}

/* Rows are a tile's: row m lies m / TILE_ROWS * next + m % TILE_ROWS after the first of them. */
TARGET INLINE void add_step(const int kind, const Tile *w, int64_t s, const int32_t *part, const Acts *a, int64_t first,
                            __m512 *sum) {
    const int64_t next = a->steps * TILE_ROWS;
    const int shifted = kind != P_Q8 && zero_of(kind) != 0;
    __m512 scale = _mm512_load_ps(w->scale + s * GROUP), shift = _mm512_setzero_ps();
    if (formats[kind].shift) shift = _mm512_load_ps(w->shift + s * GROUP);
    EACH(m, ROWS16) {
        int64_t at = first + m / TILE_ROWS * next + m % TILE_ROWS;
        __m512i whole = _mm512_load_si512(part + m * GROUP);
        if (shifted) whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(excess_of(kind, a->half_sums + at * 2, 0)));
        __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(a->scale[at]));
        sum[m] = _mm512_fmadd_ps(scaled, scale, sum[m]);
        if (formats[kind].shift) sum[m] = _mm512_fmadd_ps(shift, _mm512_set1_ps(a->sum[at]), sum[m]);
    }
}

/* Four tiles of rows, of which the last may be past the end of x. */
TARGET INLINE void dot_16(const int kind, const Tile *w, const Stretch *x, int64_t t, float *acc) {
    int32_t part[2][ROWS16 * GROUP] __attribute__((aligned(64)));
    const Acts *a = x->acts;
    const int8_t *q = a->q + t * TILE_ROWS * a->padded + x->at * K_STEP;
    int64_t first = (t * a->steps + x->at) * TILE_ROWS;
    __m512 sum[ROWS16];
    EACH(m, ROWS16) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    sum_step(kind, 0, q, a->padded, w->at, part[0]);
    for (int64_t s = 0; s < x->count; s += 2) {
        if (s + 1 < x->count)
            sum_step(kind, 1, q + (s + 1) * K_STEP, a->padded, w->at + (s + 1) * w->step_bytes, part[1]);
        add_step(kind, w, s, part[0], a, first + s * TILE_ROWS, sum);
        if (s + 1 == x->count) break;
        if (s + 2 < x->count) sum_step(kind, 0, q + (s + 2) * K_STEP, a->padded, w->at + (s + 2) * w->step_bytes, part[0]);
        add_step(kind, w, s + 1, part[1], a, first + (s + 1) * TILE_ROWS, sum);
    }
    EACH(m, ROWS16) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

/* Tiles of integers for more than one tile of rows, VNNI for one (and for scales of half a step). */
TARGET static void dot(int64_t kind, const Tile *w, const Stretch *x) {
    int64_t t = 0;
    if (formats[kind].halves == 1)
        for (; x->tiles - t >= 2; t += TILES16)
            WITH_KIND(kind, dot_16(KIND, w, x, x->tile + t, x->acc + t * TILE_ROWS * GROUP))
    if (t >= x->tiles) return;
    Stretch rest = {x->acts, x->tile + t, x->tiles - t, x->at, x->count, x->acc + t * TILE_ROWS * GROUP};
    packed_vnni_dot(kind, w, &rest);
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
    int64_t block = ROWS16 * padded;
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
    _tile_stored(1, sums + ROWS16 * GROUP, 64);
    _tile_stored(2, sums + 2 * ROWS16 * GROUP, 64);
    _tile_stored(3, sums + 3 * ROWS16 * GROUP, 64);
}

TARGET static void dot_narrow(const uint8_t *from, const Acts *a, int64_t row, int64_t count, float *acc) {
    const uint16_t *x = a->narrow + row * a->padded;
    if (count == 64) {
        narrow_64(from, x, a->padded, acc);
        return;
    }
    for (int64_t m = 0; m < count; m += ROWS16) {
        float sums[ROWS16 * GROUP] __attribute__((aligned(64)));
        narrow_16(from, x + m * a->padded, a->padded, sums);
        memcpy(acc + m * GROUP, sums, (size_t)min64(count - m, ROWS16) * GROUP * 4);
    }
}

const Backend packed_amx = {.quantize = packed_vnni_quantize,
                            .unpack = packed_vnni_unpack,
                            .dot = dot,
                            .direct = packed_vnni_direct,
                            .widen = packed_vnni_widen,
                            .dot_wide = packed_vnni_dot_wide,
                            .dot_narrow = dot_narrow,
                            .begin = begin,
                            .end = end};

#endif
