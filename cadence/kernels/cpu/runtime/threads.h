/* The threads of the library. A pool shares out the work of one kernel at a time; its owner opens it with a number of
 * threads, the caller's own among them, and names it in every call (commands.c). */
#ifndef CADENCE_THREADS_H
#define CADENCE_THREADS_H

#include <stdint.h>

typedef struct Pool Pool;

/* Items [begin, end) of a kernel's work. No two threads of one `share` have the same number, and every number is below
 * threads_count(). */
typedef void Body(void *work, int64_t begin, int64_t end, int64_t thread);

/* Threads that a `share` from here may use. */
int64_t threads_count(void);

/* Items [0, items) in chunks, taken as threads come free, a thread's mostly one after another; returns when all are
 * done, and what they wrote can be read. No more items than a chunk: the caller does them in one call of the body. So
 * it does all of them where there is no pool, where another caller is using it, and inside a body. Which thread takes
 * which chunk, and how chunks are cut, must not show in the results. */
void share(int64_t items, int64_t chunk, Body *body, void *work);

/* The same in one run of items per thread, at least `least` items each. */
void share_evenly(int64_t items, int64_t least, Body *body, void *work);

/* The same for rows that are treated each by itself: at least as many as have ROW_ELEMENTS elements, `width` to a row. */
#define ROW_ELEMENTS 8192 /* that are worth a thread */
static inline void share_rows(int64_t rows, int64_t width, Body *body, void *work) {
    share_evenly(rows, ROW_ELEMENTS / (width > 1 ? width : 1) + 1, body, work);
}

/* What the calling thread does until cadence_leave may use the pool (NULL = none). */
void cadence_enter(Pool *pool);
void cadence_leave(void);

#endif
