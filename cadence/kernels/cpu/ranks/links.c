/* Bytes from one process to another, in order: a ring in memory that the two share.
 *
 * Every message has a header with its length, so that two who do not mean the same notice. A writer goes on as long as
 * there is room, a reader as long as there is something; both move in pieces, so that a message may be longer than the
 * ring. Positions count bytes since the beginning and never return; each is written by one process alone.
 *
 * Between machines each end has such memory of its own, without a ring, and a connection (stream socket) to the other;
 * what the system holds of it is the ring then.
 *
 * A link that was given up (`aborted`) wakes both; every call from then on returns at once and moves nothing. Who called
 * looks at `aborted` before it uses what came. */
#include "ranks/exchange.h"
#include "runtime/common.h"
#include "runtime/words.h"

#define SPIN_NS 200000    /* of looking before a process sleeps */
#define SLICE_NS 50000000 /* a sleeper looks this often whether all was aborted just before it fell asleep */
#define APART 128         /* bytes: what the two write lies on different cache lines */
#define PAGE 4096

typedef struct {
    _Alignas(APART) Word aborted; /* 0 = no */
    int64_t capacity;             /* bytes of the ring */
    int64_t is_far, descriptor;   /* whether the other end is reached by a connection, and by which */
    _Alignas(APART) Word written; /* bytes, by the writer */
    _Alignas(APART) Word read;    /* bytes, by the reader */
    Word arrived;                 /* when the last message had come in full, nanoseconds of CLOCK_MONOTONIC */
    _Alignas(APART) Word sleepers;
    _Alignas(PAGE) char data[];
} Link;

EXPORT int64_t cadence_link_bytes(int64_t capacity) { return (int64_t)sizeof(Link) + capacity; }

/* By one process, of zeroed memory, before others use it. */
EXPORT void cadence_link_init(void *memory, int64_t capacity) { ((Link *)memory)->capacity = capacity; }

/* By the one end of this memory, before it is used. */
EXPORT void cadence_link_connect(void *memory, int64_t descriptor) {
    Link *l = memory;
    l->is_far = 1, l->descriptor = descriptor;
}

EXPORT void cadence_link_abort(void *memory) {
    Link *l = memory;
    atomic_store(&l->aborted, 1);
    wake_word(&l->written);
    wake_word(&l->read);
}

EXPORT int64_t cadence_link_aborted(void *memory) { return (int64_t)atomic_load(&((Link *)memory)->aborted); }

EXPORT int64_t cadence_link_arrived(void *memory) { return (int64_t)atomic_load(&((Link *)memory)->arrived); }

/* Waits until the other's word is no longer `seen`. -> it, or `seen` where all was aborted */
static uint64_t await_other(Link *l, Word *word, uint64_t seen) {
    uint64_t now;
    while ((now = atomic_load_explicit(word, memory_order_acquire)) == seen) {
        if (atomic_load(&l->aborted)) return seen;
        if (await_word(word, seen, SPIN_NS, SPIN_NS)) continue;
        atomic_fetch_add(&l->sleepers, 1); /* before the last look: who moves on looks for sleepers after it did */
        if (atomic_load(word) == seen && !atomic_load(&l->aborted)) sleep_on_word(word, seen, SLICE_NS);
        atomic_fetch_sub(&l->sleepers, 1);
    }
    return now;
}

static void move_on(Link *l, Word *word, uint64_t to) {
    atomic_store(word, to);
    if (atomic_load(&l->sleepers)) wake_word(word);
}

/* So many bytes over the connection, in one direction. -> false where it is lost, or all was aborted */
static int move_far(Link *l, char *at, int64_t bytes, short event) {
    for (int64_t idle_since = word_clock_ns(); bytes > 0;) {
        int64_t moved = event == POLLIN ? recv((int)l->descriptor, at, (size_t)bytes, MSG_DONTWAIT)
                                        : send((int)l->descriptor, at, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved > 0) {
            at += moved, bytes -= moved, idle_since = word_clock_ns();
            continue;
        }
        if (moved == 0 || !would_block()) cadence_link_abort(l);
        if (atomic_load(&l->aborted)) return 0;
        if (word_clock_ns() - idle_since < EXCHANGE_SPIN_NS) continue;
        struct pollfd waiting = {(int)l->descriptor, event, 0};
        poll(&waiting, 1, EXCHANGE_SLICE_MS);
    }
    return 1;
}

/* So many bytes at the end. -> false where all was aborted */
static int put(Link *l, const char *from, int64_t bytes) {
    if (l->is_far) return move_far(l, (char *)from, bytes, POLLOUT);
    uint64_t at = atomic_load_explicit(&l->written, memory_order_relaxed);
    uint64_t read = atomic_load_explicit(&l->read, memory_order_acquire), capacity = (uint64_t)l->capacity;
    while (bytes > 0) {
        if (at - read >= capacity) {
            uint64_t now = await_other(l, &l->read, read);
            if (now == read) return 0;
            read = now;
        }
        uint64_t place = at % capacity;
        int64_t count = min64(bytes, min64((int64_t)(capacity - (at - read)), (int64_t)(capacity - place)));
        memcpy(l->data + place, from, (size_t)count);
        at += (uint64_t)count, from += count, bytes -= count;
        move_on(l, &l->written, at);
    }
    return 1;
}

/* The next so many bytes. -> false where all was aborted */
static int get(Link *l, char *to, int64_t bytes) {
    if (l->is_far) return move_far(l, to, bytes, POLLIN);
    uint64_t at = atomic_load_explicit(&l->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&l->written, memory_order_acquire), capacity = (uint64_t)l->capacity;
    while (bytes > 0) {
        if (written == at) {
            uint64_t now = await_other(l, &l->written, written);
            if (now == written) return 0;
            written = now;
        }
        uint64_t place = at % capacity;
        int64_t count = min64(bytes, min64((int64_t)(written - at), (int64_t)(capacity - place)));
        memcpy(to, l->data + place, (size_t)count);
        at += (uint64_t)count, to += count, bytes -= count;
        move_on(l, &l->read, at);
    }
    return 1;
}

EXPORT void call_link_send(const void *words) {
    const struct link_send *c = words;
    Link *l = c->link;
    if (atomic_load(&l->aborted)) return;
    put(l, (const char *)&c->bytes, sizeof c->bytes) && put(l, c->x, c->bytes);
}

EXPORT void call_link_receive(const void *words) {
    const struct link_receive *c = words;
    Link *l = c->link;
    int64_t bytes;
    if (atomic_load(&l->aborted) || !get(l, (char *)&bytes, sizeof bytes)) return;
    if (bytes != c->bytes) return cadence_link_abort(l);
    get(l, c->out, bytes);
    atomic_store(&l->arrived, (uint64_t)word_clock_ns());
}
