/* Which experts a token takes, and the share of each. */
#include "maps/row_maps.h"
#include "runtime/powers.h"

#define MOST_EXPERTS 1024 /* as in interface/expert_ops.py */
#define AT_ONCE 8         /* experts: sums that do not wait for each other */

/* logits [experts] of one row; each is a sum of its own, in one order. */
INLINE void route_logits(float *logits, const void *x, const struct route *r, const int dtype, const int wtype) {
    for (int64_t e = 0; e < r->experts; e += AT_ONCE) {
        const void *w[AT_ONCE];
        vf sums[AT_ONCE];
        EACH(j, AT_ONCE) w[j] = crow_of(r->weight, min64(e + j, r->experts - 1) * r->width, wtype);
        EACH(j, AT_ONCE) sums[j] = splat(0.0f);
        int64_t i = 0;
        for (; i + VL <= r->width; i += VL) {
            vf v = load(x, i, dtype);
            EACH(j, AT_ONCE) sums[j] = madd(sums[j], v, load(w[j], i, wtype));
        }
        if (i < r->width) {
            vf v = load_part(x, i, dtype, r->width - i);
            EACH(j, AT_ONCE) sums[j] = madd(sums[j], v, load_part(w[j], i, wtype, r->width - i));
        }
        EACH(j, AT_ONCE) if (e + j < r->experts) logits[e + j] = sum1(sums[j]);
    }
}

/* As it is stored in a type, in float32. */
INLINE float rounded_to(float x, int dtype) {
    _Alignas(64) char held[VL * 4];
    store(held, 0, dtype, splat(x));
    return load(held, 0, dtype)[0];
}

/* Softmax in place. */
static void soften(float *logits, int64_t count) {
    float most = -INFINITY, total = 0.0f;
    for (int64_t e = 0; e < count; e++) most = logits[e] > most ? logits[e] : most;
    for (int64_t e = 0; e < count; e++) total += logits[e] = expf(logits[e] - most);
    for (int64_t e = 0; e < count; e++) logits[e] /= total;
}

/* shares: with sigmoids, the logits. Of NaN, the first ones: whatever a row holds, its ids are those of experts. */
static void take_highest(const struct route *r, const float *shares, int32_t *ids, float *taken) {
    uint8_t is_taken[MOST_EXPERTS] = {0};
    float total = 0.0f;
    for (int64_t k = 0; k < r->top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < r->experts; e++)
            if (!is_taken[e] && (best < 0 || shares[e] > shares[best])) best = e;
        is_taken[best] = 1, ids[k] = (int32_t)best;
        taken[k] = r->sigmoid ? 1.0f / (1.0f + expf(-shares[best])) : shares[best];
        total += taken[k];
    }
    for (int64_t k = 0; k < r->top_k; k++) {
        if (r->renormalise) taken[k] /= total;
        if (r->rounded) taken[k] = rounded_to(taken[k], (int)r->dtype);
    }
}

static void route_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct route *r = work;
    float logits[MOST_EXPERTS];
    for (int64_t row = begin; row < end; row++) {
        const void *x = crow_of(r->x, row * r->x_stride, (int)r->dtype);
        if (r->weight_dtype == F32) {
            WITH_DTYPE(r->dtype, route_logits(logits, x, r, DTYPE, F32);)
        } else if (r->weight_dtype == BF16) {
            WITH_DTYPE(r->dtype, route_logits(logits, x, r, DTYPE, BF16);)
        } else {
            WITH_DTYPE(r->dtype, route_logits(logits, x, r, DTYPE, F16);)
        }
        for (int64_t e = 0; e < r->experts; e++) logits[e] = rounded_to(logits[e], (int)r->dtype);
        if (!r->sigmoid) soften(logits, r->experts);
        take_highest(r, logits, r->ids + row * r->top_k, r->shares + row * r->top_k);
    }
}

EXPORT void call_route(const void *words) {
    const struct route *r = words;
    if (r->experts > MOST_EXPERTS || r->top_k > r->experts) abort(); /* Python has looked */
    share_rows(r->rows, r->width * r->experts, route_rows, (void *)r);
}
