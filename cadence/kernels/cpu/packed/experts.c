/* Experts with packed weights: tokens are sorted by their experts, and each expert multiplies those it has.
 *
 * A product gives a row the same bits whatever rows come with it, and what a token's experts give is added in the order
 * of its routes: so a token's result depends on that token alone. */
#include "packed/experts.h"
#include "maps/row_maps.h"
#include "packed/packed.h"
#include "runtime/threads.h"

int64_t cadence_packed_linear(const PackedJob *job);
void call_gate_mul(const void *words);

/* The next `bytes` of the work memory; from address 0 on, they are only counted. */
static char *take_bytes(uintptr_t *at, int64_t bytes) {
    char *found = (char *)*at;
    *at += (uintptr_t)round_up(bytes, 64);
    return found;
}

/* Lays out the work memory from `at` on -> where it ends. */
static uintptr_t lay_out(Sorted *s, const struct packed_experts *job, uintptr_t at) {
    int64_t pairs = job->tokens * job->top_k, size = element_size((int)job->dtype);
    s->job = job;
    s->starts = (int64_t *)take_bytes(&at, (job->count + 1) * 8);
    s->places = (int64_t *)take_bytes(&at, pairs * 8);
    s->pairs = (int64_t *)take_bytes(&at, pairs * 8);
    s->x = take_bytes(&at, pairs * job->hidden * size);
    s->inner = take_bytes(&at, pairs * 2 * job->width * size);
    s->gated = take_bytes(&at, pairs * job->width * size);
    s->out = take_bytes(&at, pairs * job->hidden * size);
    return at;
}

/* Pairs in the order of experts, those of one in the order of tokens. */
static void sort_pairs(Sorted *s) {
    const struct packed_experts *job = s->job;
    int64_t pairs = job->tokens * job->top_k, sum = 0;
    memset(s->starts, 0, (size_t)(job->count + 1) * 8);
    for (int64_t p = 0; p < pairs; p++) {
        int64_t expert = job->ids[p] - job->first;
        s->places[p] = expert >= 0 && expert < job->count ? s->starts[expert]++ : -1;
    }
    for (int64_t e = 0; e <= job->count; e++) {
        int64_t own = s->starts[e];
        s->starts[e] = sum;
        sum += own;
    }
    for (int64_t p = 0; p < pairs; p++) {
        if (s->places[p] < 0) continue;
        s->places[p] += s->starts[job->ids[p] - job->first];
        s->pairs[s->places[p]] = p;
    }
}

static void gather_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Sorted *s = work;
    const struct packed_experts *job = s->job;
    int64_t size = element_size((int)job->dtype), bytes = job->hidden * size;
    for (int64_t i = begin; i < end; i++)
        memcpy(s->x + i * bytes, (const char *)job->x + s->pairs[i] / job->top_k * job->x_stride * size, (size_t)bytes);
}

/* y = what each expert makes of its pairs in x: by its gate and up, or by its down. */
static void multiply(const Sorted *s, int down, char *y, const char *x, int64_t rows, int64_t k) {
    const struct packed_experts *job = s->job;
    int64_t size = element_size((int)job->dtype);
    for (int64_t e = 0; e < job->count; e++) {
        const Expert *expert = &job->experts[e];
        int64_t start = s->starts[e], count = s->starts[e + 1] - start;
        if (count == 0) continue;
        PackedJob product = {
            .y = y + start * rows * size, .x = x + start * k * size, .bias = NULL,
            .segments = down ? expert->down : expert->gate_up,
            .num_segments = down ? expert->num_down : expert->num_gate_up,
            .m = count, .k = k, .x_stride = k, .y_stride = rows,
            .x_dtype = job->dtype, .y_dtype = job->dtype, .isa = job->isa,
        };
        if (cadence_packed_linear(&product)) abort(); /* no memory: better no answer than a wrong one */
    }
}

static void add_routes(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Sorted *s = work;
    const struct packed_experts *job = s->job;
    for (int64_t t = begin; t < end; t++) {
        void *y = row_of(job->y, t * job->hidden, (int)job->dtype);
        for (int64_t i = 0; i < job->hidden; i += VL) {
            vf total = splat(0.0f);
            for (int64_t k = 0; k < job->top_k; k++) {
                int64_t place = s->places[t * job->top_k + k];
                if (place < 0) continue;
                const void *out = crow_of(s->out, place * job->hidden, (int)job->dtype);
                vf found = load_upto(out, i, (int)job->dtype, job->hidden - i);
                total = madd(total, splat(job->shares[t * job->top_k + k]), found);
            }
            store_upto(y, i, (int)job->dtype, job->hidden - i, total);
        }
    }
}

void find_outputs(Sorted *s, const struct packed_experts *job) {
    int64_t bytes = (int64_t)lay_out(s, job, 0);
    char *work = (char *)thread_buffer(bytes / 4 + 1);
    if (!work) abort();
    lay_out(s, job, (uintptr_t)work);
    sort_pairs(s);
    int64_t own = s->starts[job->count];
    share_rows(own, job->hidden, gather_rows, s);
    multiply(s, 0, s->inner, s->x, 2 * job->width, job->hidden);
    struct gate_mul gate = {
        .out = s->gated, .x = s->inner, .rows = own, .width = job->width,
        .x_stride = 2 * job->width, .dtype = job->dtype, .gelu = job->gelu,
    };
    call_gate_mul(&gate);
    multiply(s, 1, s->out, s->gated, job->hidden, job->width);
}

void add_outputs(Sorted *s) { share_rows(s->job->tokens, s->job->hidden * s->job->top_k, add_routes, s); }

EXPORT void call_packed_experts(const void *words) {
    Sorted sorted;
    find_outputs(&sorted, words);
    add_outputs(&sorted);
}
