/* Sums and gathers of several processes, through memory that they share.
 *
 * Every rank calls the same operations in the same order; what is larger than a slot is done in pieces. Of each piece a
 * rank writes its part into its slot, says that it has arrived, waits until all have, and reads the others' slots. There
 * are two slots per rank, taken in turn: who writes the piece after next has seen all arrive at the next one, so all
 * have read this one. That is one wait per piece.
 *
 * Between machines each rank has such memory of its own, and connections to the others: it sends them its slot, and what
 * they send comes into theirs (`exchange.h`). All the rest is the same, so sums have the same bits.
 *
 * A rank that was given up (`aborted`) wakes all; every operation from then on returns at once and computes nothing. So
 * does one in which ranks do not ask for the same. Who called looks at `aborted` before it uses results. */
#include "ranks/collectives.h"
#include "runtime/common.h"
#include "runtime/threads.h"
#include "runtime/words.h"

#define SPIN_NS 2000000   /* of looking before a rank sleeps: others compute the same amount, so they are near */
#define SLICE_NS 50000000 /* a sleeper looks this often whether all was aborted just before it fell asleep */
#define PAGE 4096

static int64_t slots_start(int64_t num_ranks) {
    return round_up((int64_t)sizeof(Shared) + num_ranks * (int64_t)sizeof(RankState), PAGE);
}

/* Bytes of shared memory. */
EXPORT int64_t cadence_collectives_bytes(int64_t num_ranks, int64_t slot_bytes) {
    return slots_start(num_ranks) + 2 * num_ranks * slot_bytes;
}

/* By one process, of zeroed memory, before others use it. slot_bytes: a multiple of 64. */
EXPORT void cadence_collectives_init(void *memory, int64_t num_ranks, int64_t slot_bytes) {
    Shared *s = memory;
    s->num_ranks = num_ranks, s->slot_bytes = slot_bytes;
}

/* Wakes all; they compute nothing any more. */
EXPORT void cadence_collectives_abort(void *memory) {
    Shared *s = memory;
    atomic_store(&s->aborted, 1);
    for (int64_t r = 0; r < s->num_ranks; r++) wake_word(&s->ranks[r].arrived);
}

EXPORT int64_t cadence_collectives_aborted(void *memory) { return (int64_t)atomic_load(&((Shared *)memory)->aborted); }

/* By the one rank of this memory, before it computes. descriptors [num_ranks]: of connections to the others */
EXPORT void cadence_collectives_connect(void *memory, Connection *connections) {
    ((Shared *)memory)->connections = connections;
}

char *slot_of(Shared *s, int64_t rank, uint64_t piece) {
    return (char *)s + slots_start(s->num_ranks) + (2 * rank + (int64_t)(piece & 1)) * s->slot_bytes;
}

/* -> false where all was aborted */
static int await_rank(Shared *s, int64_t rank, uint64_t piece) {
    RankState *r = &s->ranks[rank];
    uint64_t seen;
    while ((seen = atomic_load_explicit(&r->arrived, memory_order_acquire)) <= piece) {
        if (atomic_load(&s->aborted)) return 0;
        if (await_word(&r->arrived, seen, SPIN_NS, SPIN_NS)) continue;
        atomic_fetch_add(&r->sleepers, 1); /* before the last look: who arrives looks for sleepers after it said so */
        if (atomic_load(&r->arrived) == seen && !atomic_load(&s->aborted))
            sleep_on_word(&r->arrived, seen, SLICE_NS);
        atomic_fetch_sub(&r->sleepers, 1);
    }
    return !atomic_load(&s->aborted);
}

/* Over connections: what is in the rank's slot goes to all others, and theirs come. -> the piece's number */
static int64_t meet_far(Shared *s, int64_t rank, enum operation operation, int64_t bytes) {
    uint64_t piece = atomic_fetch_add(&s->ranks[rank].arrived, 1);
    Frame frame = {operation, bytes};
    for (int64_t r = 0; r < s->num_ranks; r++) begin_exchange(&s->connections[r], slot_of(s, r, piece));
    if (exchange(s->connections, s->num_ranks, rank, &frame, &s->aborted)) return (int64_t)piece;
    atomic_store(&s->aborted, 1);
    return -1;
}

int64_t meet(Shared *s, int64_t rank, enum operation operation, int64_t bytes) {
    if (s->connections) return meet_far(s, rank, operation, bytes);
    RankState *own = &s->ranks[rank];
    uint64_t piece = atomic_load_explicit(&own->arrived, memory_order_relaxed);
    int64_t *asked = own->asked[piece & 1];
    asked[0] = operation, asked[1] = bytes;
    atomic_store(&own->arrived, piece + 1);
    if (atomic_load(&own->sleepers)) wake_word(&own->arrived);
    for (int64_t r = 0; r < s->num_ranks; r++) {
        if (!await_rank(s, r, piece)) return -1;
        int64_t *others = s->ranks[r].asked[piece & 1];
        if (others[0] == operation && others[1] == bytes) continue;
        cadence_collectives_abort(s);
        return -1;
    }
    return (int64_t)piece;
}

char *own_slot(Shared *s, int64_t rank) {
    return slot_of(s, rank, atomic_load_explicit(&s->ranks[rank].arrived, memory_order_relaxed));
}

/* ---- sums ---- */

typedef struct {
    Shared *shared;
    char *out;
    uint64_t piece;
    int64_t dtype;
} Sum;

INLINE void sum_range(Sum *w, int64_t begin, int64_t end, int dtype) {
    for (int64_t i = begin; i < end; i += VL) {
        int64_t n = min64(VL, end - i);
        vf total = load_upto(slot_of(w->shared, 0, w->piece), i, dtype, n);
        for (int64_t r = 1; r < w->shared->num_ranks; r++)
            total += load_upto(slot_of(w->shared, r, w->piece), i, dtype, n);
        store_upto(w->out, i, dtype, n, total);
    }
}

static void sum_part(void *work, int64_t begin, int64_t end, int64_t thread) {
    Sum *w = work;
    if (w->dtype == F32) sum_range(w, begin, end, F32);
    else if (w->dtype == BF16) sum_range(w, begin, end, BF16);
    else sum_range(w, begin, end, F16);
}

EXPORT void call_all_reduce(const void *words) {
    const struct all_reduce *c = words;
    Shared *s = c->shared;
    int64_t size = element_size((int)c->dtype), most = s->slot_bytes / size;
    for (int64_t start = 0; start < c->count; start += most) {
        int64_t count = min64(most, c->count - start);
        memcpy(own_slot(s, c->rank), (const char *)c->x + start * size, (size_t)(count * size));
        int64_t piece = meet(s, c->rank, SUM, count * size);
        if (piece < 0) return;
        Sum sum = {s, (char *)c->out + start * size, (uint64_t)piece, c->dtype};
        share_evenly(count, ROW_ELEMENTS, sum_part, &sum);
    }
}

/* ---- gathers ---- */

/* Of each row the bytes [begin, begin + bytes), of so many rows that a slot holds them. -> false where aborted */
static int gather_columns(const struct all_gather *c, int64_t begin, int64_t bytes) {
    Shared *s = c->shared;
    int64_t most = s->slot_bytes / bytes, line = c->out_bytes;
    for (int64_t start = 0; start < c->rows; start += most) {
        int64_t rows = min64(most, c->rows - start);
        char *slot = own_slot(s, c->rank);
        for (int64_t i = 0; i < rows; i++)
            memcpy(slot + i * bytes, c->x + (start + i) * c->row_bytes + begin, (size_t)bytes);
        int64_t piece = meet(s, c->rank, GATHER, rows * bytes);
        if (piece < 0) return 0;
        for (int64_t r = 0; r < s->num_ranks; r++) {
            int own = r == c->rank; /* still in this core's cache */
            const char *from = own ? c->x + start * c->row_bytes + begin : slot_of(s, r, (uint64_t)piece);
            char *to = c->out + start * line + min64(r * c->row_bytes, line - c->row_bytes) + begin;
            for (int64_t i = 0; i < rows; i++)
                memcpy(to + i * line, from + i * (own ? c->row_bytes : bytes), (size_t)bytes);
        }
    }
    return 1;
}

EXPORT void call_all_gather(const void *words) {
    const struct all_gather *c = words;
    int64_t most = ((Shared *)c->shared)->slot_bytes;
    for (int64_t begin = 0; begin < c->row_bytes; begin += most)
        if (!gather_columns(c, begin, min64(most, c->row_bytes - begin))) return;
}

/* Of each line the bytes [begin, begin + bytes). Lines of which another rank has the token hold nothing of use in this
 * rank's slot, and are not read. -> false where aborted */
static int pick_columns(const struct all_pick *c, int64_t begin, int64_t bytes) {
    Shared *s = c->shared;
    int64_t most = s->slot_bytes / bytes;
    for (int64_t start = 0; start < c->rows; start += most) {
        int64_t rows = min64(most, c->rows - start), first = start * c->row_bytes + begin;
        char *slot = own_slot(s, c->rank);
        for (int64_t i = 0; i < rows; i++) memcpy(slot + i * bytes, c->x + first + i * c->row_bytes, (size_t)bytes);
        int64_t piece = meet(s, c->rank, PICK, rows * bytes);
        if (piece < 0) return 0;
        for (int64_t i = 0; i < rows; i++) {
            const char *from = slot_of(s, min64(c->ids[start + i] / c->each, s->num_ranks - 1), (uint64_t)piece);
            memcpy(c->out + first + i * c->row_bytes, from + i * bytes, (size_t)bytes);
        }
    }
    return 1;
}

EXPORT void call_all_pick(const void *words) {
    const struct all_pick *c = words;
    int64_t most = ((Shared *)c->shared)->slot_bytes;
    for (int64_t begin = 0; begin < c->row_bytes; begin += most)
        if (!pick_columns(c, begin, min64(most, c->row_bytes - begin))) return;
}

EXPORT void call_own_ids(const void *words) {
    const struct own_ids *c = words;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t id = c->ids[i] - c->first;
        c->out[i] = id >= 0 && id < c->each ? (int32_t)id : 0;
    }
}
