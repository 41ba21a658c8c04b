/* Experts that ranks with tokens of their own share.
 *
 * The lines of all ranks (a token with its routes) are gathered, in the order of ranks; each rank finds what its experts
 * make of each; and of every pair of a token and one of its routes the rank that has the expert shows the result, which
 * the token's rank takes. That one adds up in the order of routes, as it would alone: so a token's bits are the same
 * however many ranks there are. */
#include "packed/experts.h"
#include "ranks/collectives.h"

#define HEAD 64 /* bytes before the lines of a piece: how many lines the rank has in all */

typedef struct {
    const struct shared_experts *job;
    int64_t *starts; /* [ranks + 1]: lines before those of each rank */
    char *x;         /* [lines][hidden] */
    int32_t *ids;    /* [lines][top_k] */
    float *shares;   /* [lines][top_k] */
    char *found;     /* [tokens][top_k][hidden]: of this rank's own */
    int64_t *places; /* [tokens * top_k]: 0, 1, 2, ... */
} Lines;

static int64_t bytes_of_x(const struct shared_experts *job) { return job->hidden * element_size((int)job->dtype); }

/* The next `bytes` of the work memory; from address 0 on, they are only counted. */
static char *take_some(uintptr_t *at, int64_t bytes) {
    char *found = (char *)*at;
    *at += (uintptr_t)round_up(bytes, 64);
    return found;
}

static uintptr_t lay_out(Lines *g, int64_t num_ranks, int64_t lines, uintptr_t at) {
    const struct shared_experts *job = g->job;
    int64_t own = job->tokens * job->top_k;
    g->starts = (int64_t *)take_some(&at, (num_ranks + 1) * 8);
    g->x = take_some(&at, lines * bytes_of_x(job));
    g->ids = (int32_t *)take_some(&at, lines * job->top_k * 4);
    g->shares = (float *)take_some(&at, lines * job->top_k * 4);
    g->found = take_some(&at, own * bytes_of_x(job));
    g->places = (int64_t *)take_some(&at, own * 8);
    return at;
}

/* Makes room for the lines of all ranks, which have told their numbers in this piece. */
static void make_room(Lines *g, Shared *s, uint64_t piece) {
    int64_t lines = 0;
    for (int64_t r = 0; r < s->num_ranks; r++) lines += *(int64_t *)slot_of(s, r, piece);
    int64_t bytes = (int64_t)lay_out(g, s->num_ranks, lines, 0);
    char *work = (char *)thread_buffer(bytes / 4 + 1);
    if (!work) abort();
    lay_out(g, s->num_ranks, lines, (uintptr_t)work);
    g->starts[0] = 0;
    for (int64_t r = 0; r < s->num_ranks; r++) g->starts[r + 1] = g->starts[r] + *(int64_t *)slot_of(s, r, piece);
}

/* Lines [from, from + count) of this rank, into its slot. */
static void show_lines(const struct shared_experts *job, char *slot, int64_t from, int64_t count) {
    int64_t size = element_size((int)job->dtype), row = bytes_of_x(job), routes = job->top_k * 4;
    *(int64_t *)slot = job->tokens;
    char *to = slot + HEAD;
    for (int64_t t = from; t < from + count; t++) {
        memcpy(to, (const char *)job->x + t * job->x_stride * size, (size_t)row);
        memcpy(to + row, job->ids + t * job->top_k, (size_t)routes);
        memcpy(to + row + routes, job->shares + t * job->top_k, (size_t)routes);
        to += row + 2 * routes;
    }
}

/* `count` lines of another rank's slot, to be lines [to, to + count) of all. */
static void take_lines(Lines *g, const char *slot, int64_t to, int64_t count) {
    int64_t row = bytes_of_x(g->job), top_k = g->job->top_k, routes = top_k * 4;
    const char *from = slot + HEAD;
    for (int64_t t = to; t < to + count; t++, from += row + 2 * routes) {
        memcpy(g->x + t * row, from, (size_t)row);
        memcpy(g->ids + t * top_k, from + row, (size_t)routes);
        memcpy(g->shares + t * top_k, from + row + routes, (size_t)routes);
    }
}

INLINE int64_t between(int64_t low, int64_t x, int64_t high) { return max64(low, min64(x, high)); }

/* -> false where all was aborted */
static int gather_lines(Lines *g) {
    const struct shared_experts *job = g->job;
    Shared *s = job->shared;
    int64_t line = bytes_of_x(job) + 8 * job->top_k, most = (s->slot_bytes - HEAD) / line, left = 1;
    if (most < 1) abort(); /* Python has looked */
    for (int64_t from = 0; left; from += most) {
        show_lines(job, own_slot(s, job->rank), from, between(0, job->tokens - from, most));
        int64_t piece = meet(s, job->rank, LINES, s->slot_bytes);
        if (piece < 0) return 0;
        if (from == 0) make_room(g, s, (uint64_t)piece);
        left = 0;
        for (int64_t r = 0; r < s->num_ranks; r++) {
            int64_t of_rank = g->starts[r + 1] - g->starts[r];
            take_lines(g, slot_of(s, r, (uint64_t)piece), g->starts[r] + from, between(0, of_rank - from, most));
            left |= of_rank > from + most;
        }
    }
    return 1;
}

/* The rank that has an expert, as `part_of` of models/layers/rank_share.py deals them out. */
static int64_t owner_of(int64_t expert, int64_t total, int64_t num_ranks) {
    int64_t each = total / num_ranks, more = total % num_ranks, of_more = more * (each + 1);
    return expert < of_more ? expert / (each + 1) : more + (expert - of_more) / each;
}

/* What experts of all ranks make of this rank's tokens, into `found`. -> false where all was aborted */
static int return_pairs(Lines *g, const Sorted *sorted) {
    const struct shared_experts *job = g->job;
    Shared *s = job->shared;
    int64_t row = bytes_of_x(job), most = s->slot_bytes / row, pairs = g->starts[s->num_ranks] * job->top_k;
    int64_t begin = g->starts[job->rank] * job->top_k, end = begin + job->tokens * job->top_k;
    for (int64_t from = 0; from < pairs; from += most) {
        int64_t to = min64(from + most, pairs);
        char *slot = own_slot(s, job->rank);
        for (int64_t p = from; p < to; p++)
            if (sorted->places[p] >= 0)
                memcpy(slot + (p - from) * row, sorted->out + sorted->places[p] * row, (size_t)row);
        int64_t piece = meet(s, job->rank, PAIRS, s->slot_bytes);
        if (piece < 0) return 0;
        for (int64_t p = max64(from, begin); p < min64(to, end); p++) {
            const char *shown = slot_of(s, owner_of(g->ids[p], job->total, s->num_ranks), (uint64_t)piece);
            memcpy(g->found + (p - begin) * row, shown + (p - from) * row, (size_t)row);
        }
    }
    return 1;
}

EXPORT void call_shared_experts(const void *words) {
    const struct shared_experts *job = words;
    Shared *s = job->shared;
    Lines lines = {.job = job};
    if (!gather_lines(&lines)) return;
    struct packed_experts all = {
        .x = lines.x, .ids = lines.ids, .shares = lines.shares, .experts = job->experts,
        .first = job->first, .count = job->count, .tokens = lines.starts[s->num_ranks], .top_k = job->top_k,
        .hidden = job->hidden, .width = job->width, .x_stride = job->hidden,
        .dtype = job->dtype, .gelu = job->gelu, .isa = job->isa,
    };
    Sorted sorted;
    find_outputs(&sorted, &all);
    if (!return_pairs(&lines, &sorted)) return;
    struct packed_experts own = all;
    own.y = job->y, own.shares = job->shares, own.tokens = job->tokens;
    for (int64_t p = 0; p < job->tokens * job->top_k; p++) lines.places[p] = p;
    Sorted back = {.job = &own, .places = lines.places, .out = lines.found};
    add_outputs(&back);
}
