/* Packed weights back to floats: wanted rows only (an embedding), or all of them. Products and sums are rounded one by
 * one, in the order the formats prescribe: no madd here. */
#include "packed/packed.h"
#include "runtime/threads.h"

#define WORTH_SHARING 16384 /* elements a thread takes at once */
#define PIECE 256           /* elements turned into floats at once; fills whole blocks */

INLINE float half_at(const uint8_t *p, int64_t index) {
    uint16_t h;
    memcpy(&h, p + index * 2, 2);
    return half_to_float(h);
}

/* A quant of a quad of 5 bits, and of 6; from: its byte of the first part. */
INLINE int five_bits(const uint8_t *from, int quad) {
    if (quad < 5) return from[quad * 64] >> 3;
    int low = quad < 7 ? from[(quad - 2) * 64] >> 1 & 3 : (from[192] & 1) << 1 | (from[256] & 1);
    return (from[(quad - 5) * 64] & 7) << 2 | low;
}

INLINE int six_bits(const uint8_t *from, int quad) {
    return quad < 3 ? from[quad * 64] >> 2 : (from[0] & 3) << 4 | (from[64] & 3) << 2 | (from[128] & 3);
}

/* Quant i of a step for row r of its group, or what the code there stands for. */
INLINE int quant_at(int64_t kind, const int8_t *table, const uint8_t *from, int r, int i) {
    const Format *f = &formats[kind];
    int quad = i / 4, lane = r * 4 + i % 4;
    if (lies_in_bytes(kind)) return (int8_t)from[quad * 64 + lane];
    from += lane;
    if (kind == P_Q2_K) return from[quad / 4 * 64] >> (quad % 4 * 2) & 3;
    int q = (from[quad % 4 * 64] >> (quad / 4 * 4)) & 15;
    if (f->table && has_planes(kind)) return UNIT * table[q] + code_tables[f->table + 1][q];
    if (f->table) return table[q];
    if (f->bits == 5) q = five_bits(from, quad);
    if (f->bits == 6) q = six_bits(from + quad / 4 * 192, quad % 4);
    return (q ^ inverted_bit(kind)) - f->zero;
}

/* value = scale * quant, then + shift or - minimum. */
typedef struct {
    float scale[2], shift[2];
} Scales;

INLINE Scales scales_at(int64_t kind, const uint8_t *block, int r, int step) {
    float d = half_at(block, r);
    if (has_small_scales(kind)) {
        const int halves = formats[kind].halves;
        const uint8_t *s = block + 32 + step * halves * GROUP + r;
        return (Scales){{(float)(s[0] - 128) * d, (float)(s[(halves - 1) * GROUP] - 128) * d}, {0.0f}};
    }
    if (kind == P_MXFP4) return (Scales){{exponent_to_float(block[r]), exponent_to_float(block[r])}, {0.0f}};
    if (kind == P_Q2_K) {
        const uint8_t *s = block + 64 + step * 2 * GROUP + r;
        const float m = half_at(block + 32, r);
        return (Scales){{(float)(s[0] & 15) * d, (float)(s[GROUP] & 15) * d},
                        {-((float)(s[0] >> 4) * m), -((float)(s[GROUP] >> 4) * m)}};
    }
    if (formats[kind].block == 256) {
        float scale = (float)block[64 + step * GROUP + r] * d;
        const float shift = -((float)block[64 + (8 + step) * GROUP + r] * half_at(block + 32, r));
        return (Scales){{scale, scale}, {shift, shift}};
    }
    if (kind == P_Q8_F || kind == P_T4_F || has_planes(kind)) {
        Scales s = {{0.0f, 0.0f}, {0.0f, 0.0f}};
        memcpy(&s.scale[0], block + r * 4, 4);
        memcpy(&s.scale[1], block + ((formats[kind].halves - 1) * GROUP + r) * 4, 4);
        return s;
    }
    float shift = formats[kind].shift ? half_at(block + 32, r) : 0.0f;
    if (has_zeros(kind)) shift *= d;
    return (Scales){{d, d}, {shift, shift}};
}

static void quantized_row(int64_t kind, const uint8_t *group, int r, int64_t k, float *out) {
    const Format *f = &formats[kind];
    int64_t steps = f->block / K_STEP, block_bytes = f->header + steps * f->step_bytes;
    for (int64_t at = 0; at < k; at += K_STEP) {
        const uint8_t *block = group + at / f->block * block_bytes;
        int64_t step = at / K_STEP % steps;
        const int8_t *table = f->table ? table_of(kind, block) : NULL;
        Scales s = scales_at(kind, block, r, (int)step);
        for (int i = 0; i < min64(K_STEP, k - at); i++) {
            float value = (float)quant_at(kind, table, block + f->header + step * f->step_bytes, r, i) * s.scale[i / 16];
            out[at + i] = f->shift || kind == P_Q2_K ? value + s.shift[i / 16] : value;
        }
    }
}

/* scale: of row r where the kind is P_HALF. */
static void float_row(int64_t kind, const uint8_t *group, int r, float scale, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++) {
        if (kind == P_F32) {
            memcpy(out + i, group + (i * GROUP + r) * 4, 4);
        } else if (kind == P_HALF || kind == P_F16) {
            out[i] = half_at(group, i * GROUP + r) * scale;
        } else {
            uint16_t h;
            memcpy(&h, group + (i / 2 * GROUP + r) * 4 + i % 2 * 2, 2);
            out[i] = bfloat_to_float(h);
        }
    }
}

static void float8_row(const uint8_t *group, int r, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++) {
        const uint8_t *run = group + group_bytes(P_F8, i / F8_RUN * F8_RUN);
        float scale;
        memcpy(&scale, run + r * 4, 4);
        out[i] = half_to_float(float8_to_half(run[GROUP * 4 + i % F8_RUN * GROUP + r])) * scale;
    }
}

/* Element i of ids, int32 or int64. */
INLINE int64_t id_at(const void *ids, int64_t bytes, int64_t i) {
    return bytes == 4 ? ((const int32_t *)ids)[i] : ((const int64_t *)ids)[i];
}

typedef struct {
    const struct packed_rows *w;
    int64_t group_size;
} Lookup;

/* Elements [at, at + count) of row i of the result; `at` a multiple of PIECE. */
static void look_up(const Lookup *l, int64_t i, int64_t at, int64_t count) {
    const struct packed_rows *w = l->w;
    int64_t id = id_at(w->ids, w->id_bytes, i), kind = w->weight.kind, to = i * w->k + at;
    int r = (int)(id % GROUP);
    const uint8_t *whole = w->weight.data + id / GROUP * l->group_size, *group = whole + group_bytes(kind, at);
    float piece[PIECE], *row = w->dtype == F32 ? (float *)w->out + to : piece, scale = 1.0f;
    if (kind == P_HALF) memcpy(&scale, whole + l->group_size - (GROUP - r) * 4, 4);
    if (kind == P_F8)
        float8_row(group, r, count, row);
    else if (is_float_kind(kind))
        float_row(kind, group, r, scale, count, row);
    else
        quantized_row(kind, group, r, count, row);
    if (w->dtype != F32)
        for (int64_t j = 0; j < count; j++) ((uint16_t *)w->out)[to + j] = float_to_bfloat(piece[j]);
}

static void look_up_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Lookup *l = work;
    for (int64_t i = begin; i < end; i++)
        for (int64_t at = 0; at < l->w->k; at += PIECE) look_up(l, i, at, min64(PIECE, l->w->k - at));
}

EXPORT int64_t cadence_packed_rows(const struct packed_rows *w) {
    const Segment *s = &w->weight;
    if (!packed_sizes_fit(s->data, s->kind, s->rows, w->k, s->bytes)) return PACKED_BAD_SIZE;
    for (int64_t i = 0; i < w->count; i++)
        if (id_at(w->ids, w->id_bytes, i) < 0 || id_at(w->ids, w->id_bytes, i) >= s->rows) return PACKED_BAD_ROW;
    Lookup work = {w, group_size(s->kind, w->k)};
    share(w->count, WORTH_SHARING / w->k + 1, look_up_rows, &work);
    return PACKED_OK;
}

EXPORT void call_packed_rows(const void *words) {
    if (cadence_packed_rows(words)) abort(); /* a row that is not there: better no answer than a wrong one */
}
