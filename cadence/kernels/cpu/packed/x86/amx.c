/* Packed products with AMX tiles: integers for 16 rows at once, bf16 for any number but a few. */
#if defined(__x86_64__)

#define VECTOR_BYTES 64
#include "packed/x86/avx512.h"
#include "packed/x86/x86.h"
#include "runtime/amx.h"

#define TARGET \
    __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define ROWS16 16
#define TILES16 (ROWS16 / TILE_ROWS)

/* Tiles 0-3: sums [16][16]. Integers: 4 x [16][32], 5 w [8][16 rows][4]. bf16: 4, 5 x [16][32], 6, 7 w [16][16
 * rows][2]. */
static const TileShapes of_integers = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 32, 64}, .rows = {16, 16, 16, 16, 16, 8}};

TARGET static void begin(int64_t kind) { SHAPE_TILES(is_float_kind(kind) ? &whole_tiles : &of_integers) }

TARGET static void end(void) { _tile_release(); }

/* ---- integers ----
 *
 * Of a step of K come integer sums [16][16], which are scaled and added up as floats. Four steps are under way, in
 * tiles and buffers of their own: one is multiplied, one of two steps before is stored, one of four steps before is
 * added, so that nothing waits for what was just begun. */

#define UNDER_WAY 4
#define STORED_AFTER 2

/* x is signed; so are bytes of weights, all others are not. */
#define MULTIPLY(kind, sums, x, stride, w) \
    {                                      \
        _tile_zero(sums);                  \
        _tile_loadd(4, x, stride);         \
        _tile_loadd(5, w, 64);             \
        if (formats[kind].bits == 8)       \
            _tile_dpbssd(sums, 4, 5);      \
        else                               \
            _tile_dpbsud(sums, 4, 5);      \
    }

/* Rows are a tile's: row m lies m / TILE_ROWS * next + m % TILE_ROWS after the first of them. */
TARGET INLINE void add_step(const int kind, const Tile *w, int64_t s, const int32_t *part, const Acts *a, int64_t first,
                            __m512 *sum) {
    const int64_t next = a->steps * TILE_ROWS;
    const int shifted = formats[kind].bits != 8 && zero_of(kind) != 0;
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

/* What is done in turn s. turn: s modulo UNDER_WAY, stored: s - STORED_AFTER modulo that; literals, as tiles want. */
#define TURN(turn, stored)                                                                                         \
    if (s < x->count) MULTIPLY(kind, turn, q + s * K_STEP, a->padded, w->at + s * w->step_bytes)                    \
    if (s >= STORED_AFTER && s < x->count + STORED_AFTER) _tile_stored(stored, part[stored], 64);                  \
    if (s >= UNDER_WAY) add_step(kind, w, s - UNDER_WAY, part[turn], a, first + (s - UNDER_WAY) * TILE_ROWS, sum); \
    if (++s == x->count + UNDER_WAY) break;

/* Four tiles of rows, of which the last may be past the end of x. */
TARGET INLINE void dot_16(const int kind, const Tile *w, const Stretch *x, int64_t t, float *acc) {
    int32_t part[UNDER_WAY][ROWS16 * GROUP] __attribute__((aligned(64)));
    const Acts *a = x->acts;
    const int8_t *q = a->q + t * TILE_ROWS * a->padded + x->at * K_STEP;
    int64_t first = (t * a->steps + x->at) * TILE_ROWS;
    __m512 sum[ROWS16];
    EACH(m, ROWS16) sum[m] = _mm512_loadu_ps(acc + m * GROUP);
    for (int64_t s = 0;;) {
        TURN(0, 2)
        TURN(1, 3)
        TURN(2, 0)
        TURN(3, 1)
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

/* ---- bf16 times bf16 ----
 *
 * The order of the tile instruction: of each K_STEP the even elements are one chain of sums, the odd ones another, both
 * from zero; then sum = sum + (even + odd). Numbers below the normal ones are zeros. */

#define TILE_BYTES 1024 /* of x and of a group of weights in one K_STEP */
#define NEAR_ZERO_IS_ZERO 0x8040

/* One or two tiles of rows of x times one or two groups, `next` bytes apart. Rows that fill up a tile are computed on
 * what lies there. acc [groups][tiles][16][16]. */
TARGET INLINE void narrow_block(const int tiles, const int groups, const char *from, int64_t next, const char *x,
                                int64_t steps, Ask soon, float *acc) {
    const char *second = x + steps * TILE_BYTES;
    const int64_t fours = (soon.bytes / 256 + steps - 1) / steps; /* lines asked for in a step, in fours */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = 0; at < steps * TILE_BYTES; at += TILE_BYTES) {
        _tile_loadd(4, x + at, 64);
        _tile_loadd(6, from + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (tiles == 2) {
            _tile_loadd(5, second + at, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (groups == 2) {
            _tile_loadd(7, from + next + at, 64);
            _tile_dpbf16ps(2, 4, 7);
        }
        if (groups == 2 && tiles == 2) _tile_dpbf16ps(3, 5, 7);
        for (int64_t i = 0; i < fours; i++, soon.at += 256) EACH(line, 4) _mm_prefetch(soon.at + line * 64, _MM_HINT_T1);
    }
    _tile_stored(0, acc, 64);
    if (tiles == 2) _tile_stored(1, acc + NARROW_TILE * GROUP, 64);
    if (groups == 2) _tile_stored(2, acc + tiles * NARROW_TILE * GROUP, 64);
    if (groups == 2 && tiles == 2) _tile_stored(3, acc + 3 * NARROW_TILE * GROUP, 64);
}

TARGET static void dot_narrow(const uint8_t *from, int64_t next, const Acts *a, int64_t row, int64_t count, Ask soon,
                              float *acc) {
    const char *w = (const char *)from, *x = (const char *)(a->narrow + row * a->padded);
    if (count > NARROW_TILE && next)
        narrow_block(2, 2, w, next, x, a->steps, soon, acc);
    else if (count > NARROW_TILE)
        narrow_block(2, 1, w, next, x, a->steps, soon, acc);
    else if (next)
        narrow_block(1, 2, w, next, x, a->steps, soon, acc);
    else
        narrow_block(1, 1, w, next, x, a->steps, soon, acc);
}

/* The same for a few rows, without tiles: those would be loaded for one row as for sixteen. */
TARGET INLINE void few_rows(const int rows, const uint8_t *from, const Acts *a, float *acc) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const float *x = a->wide;
    __m512 sum[TILE_ROWS];
    EACH(m, rows) sum[m] = _mm512_setzero_ps();
    for (int64_t s = 0; s < a->steps; s++) {
        __m512 even[TILE_ROWS], odd[TILE_ROWS];
        EACH(m, rows) even[m] = odd[m] = _mm512_setzero_ps();
        EACH(i, K_STEP / 2) {
            __m512i both = _mm512_loadu_si512(from);
            __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            __m512 second = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
            EACH(m, rows) {
                even[m] = _mm512_fmadd_ps(first, _mm512_set1_ps(x[m]), even[m]);
                odd[m] = _mm512_fmadd_ps(second, _mm512_set1_ps(x[TILE_ROWS + m]), odd[m]);
            }
            _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T0);
            from += 64, x += 2 * TILE_ROWS;
        }
        EACH(m, rows) sum[m] = _mm512_add_ps(sum[m], _mm512_add_ps(even[m], odd[m]));
    }
    EACH(m, rows) _mm512_storeu_ps(acc + m * GROUP, sum[m]);
}

TARGET static __attribute__((noinline)) void few_of_all(const uint8_t *from, const Acts *a, float *acc) {
    if (a->rows == 1)
        few_rows(1, from, a, acc);
    else if (a->rows == 2)
        few_rows(2, from, a, acc);
    else
        few_rows(4, from, a, acc);
}

TARGET static void few_narrow(const uint8_t *from, const Acts *a, float *acc) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | NEAR_ZERO_IS_ZERO);
    few_of_all(from, a, acc);
    _mm_setcsr(before);
}

const Backend packed_amx = {.quantize = packed_avx512_quantize,
                            .unpack = packed_avx512_unpack,
                            .dot = dot,
                            .direct = packed_vnni_direct,
                            .direct_rows = DIRECT_ROWS,
                            .widen = packed_avx512_widen,
                            .dot_wide = packed_avx512_dot_wide,
                            .dot_wide_two = packed_avx512_dot_wide_two,
                            .dot_narrow = dot_narrow,
                            .few_narrow = few_narrow,
                            .begin = begin,
                            .end = end};

#endif
