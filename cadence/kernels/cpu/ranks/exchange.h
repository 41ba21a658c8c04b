/* One rank's part of a piece sent to all others, and theirs received, over connections (stream sockets).
 *
 * Each part is a frame of three words and so many bytes. Sending and receiving go on side by side, so that ranks that
 * all send first cannot block each other; a rank that is ahead has the next piece after this one in its stream, which
 * is read no further than this piece's end. Lengths come from other machines: what was not asked for is an error. */
#ifndef CADENCE_EXCHANGE_H
#define CADENCE_EXCHANGE_H

#include "runtime/words.h"
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#ifndef MSG_MORE
#define MSG_MORE 0 /* a hint */
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#define EXCHANGE_SPIN_NS 20000  /* of looking before a rank sleeps */
#define EXCHANGE_SLICE_MS 50    /* a sleeper looks this often whether all was aborted */
#define EXCHANGE_MOST_RANKS 256

typedef struct {
    int64_t operation, bytes, sent; /* what was asked for, and how many bytes follow */
} Frame;

typedef struct {
    int64_t descriptor;
    int64_t num_sent, num_received; /* bytes of this piece, the frame's own among them */
    char *slot;                     /* where the other rank's part goes */
    Frame frame;                    /* of the other rank */
} Connection;

static inline void begin_exchange(Connection *c, char *slot) {
    c->num_sent = c->num_received = 0;
    c->slot = slot;
}

static inline int would_block(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/* -> bytes that went, 0 = none for now, -1 = the connection is lost */
static inline int64_t send_some(Connection *c, const Frame *own, const char *part) {
    int64_t in_frame = (int64_t)sizeof(Frame) - c->num_sent;
    const char *from = in_frame > 0 ? (const char *)own + c->num_sent : part - in_frame;
    int64_t count = in_frame > 0 ? in_frame : own->sent + in_frame;
    int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (in_frame > 0 && own->sent ? MSG_MORE : 0);
    int64_t sent = send((int)c->descriptor, from, (size_t)count, flags);
    if (sent <= 0) return sent < 0 && would_block() ? 0 : -1;
    c->num_sent += sent;
    return sent;
}

static inline int64_t receive_some(Connection *c) {
    int64_t in_frame = (int64_t)sizeof(Frame) - c->num_received;
    char *to = in_frame > 0 ? (char *)&c->frame + c->num_received : c->slot - in_frame;
    int64_t count = in_frame > 0 ? in_frame : c->frame.sent + in_frame;
    int64_t received = recv((int)c->descriptor, to, (size_t)count, MSG_DONTWAIT);
    if (received <= 0) return received < 0 && would_block() ? 0 : -1;
    c->num_received += received;
    return received;
}

static inline int is_sent(const Connection *c, const Frame *own) {
    return c->num_sent == (int64_t)sizeof(Frame) + own->sent;
}

static inline int is_received(const Connection *c) {
    return c->num_received >= (int64_t)sizeof(Frame) && c->num_received == (int64_t)sizeof(Frame) + c->frame.sent;
}

/* Whether the other rank asks for the same, as far as is known. */
static inline int is_same(const Connection *c, const Frame *own) {
    if (c->num_received < (int64_t)sizeof(Frame)) return 1;
    return c->frame.operation == own->operation && c->frame.bytes == own->bytes &&
           (c->frame.sent == own->bytes || c->frame.sent == 0);
}

/* -> whether it moved anything; *lost where the connection or its meaning is */
static inline int move_some(Connection *c, const Frame *own, const char *part, int *lost) {
    int64_t sent = is_sent(c, own) ? 0 : send_some(c, own, part);
    int64_t received = is_received(c) ? 0 : receive_some(c);
    *lost |= sent < 0 || received < 0 || !is_same(c, own);
    return sent > 0 || received > 0;
}

static inline void sleep_until_ready(Connection *all, int64_t num_ranks, int64_t rank, const Frame *own) {
    struct pollfd waiting[EXCHANGE_MOST_RANKS];
    int count = 0;
    for (int64_t r = 0; r < num_ranks; r++) {
        if (r == rank) continue;
        short events = (short)((is_sent(&all[r], own) ? 0 : POLLOUT) | (is_received(&all[r]) ? 0 : POLLIN));
        if (events) waiting[count++] = (struct pollfd){(int)all[r].descriptor, events, 0};
    }
    poll(waiting, (nfds_t)count, EXCHANGE_SLICE_MS);
}

/* The rank's own part lies in its slot. -> false where a connection is lost, or all was aborted */
static inline int exchange(Connection *all, int64_t num_ranks, int64_t rank, const Frame *own, Word *aborted) {
    const char *part = all[rank].slot;
    int64_t idle_since = word_clock_ns();
    for (int lost = 0, left = 1; left;) {
        int moved = 0;
        left = 0;
        for (int64_t r = 0; r < num_ranks; r++) {
            if (r == rank) continue;
            moved |= move_some(&all[r], own, part, &lost);
            left |= !is_sent(&all[r], own) || !is_received(&all[r]);
        }
        if (lost || atomic_load(aborted)) return 0;
        if (moved) idle_since = word_clock_ns();
        else if (left && word_clock_ns() - idle_since > EXCHANGE_SPIN_NS) sleep_until_ready(all, num_ranks, rank, own);
    }
    return 1;
}

#endif
