/* How work reaches the threads of a pool. A caller opens a *region*: it writes down the job, then adds the region's
 * number and seats to `state`. A thread that sees free seats joins by adding one, takes chunks until none are left, and
 * leaves. The caller takes chunks too, closes the region, and waits for those who joined; who never came is not waited
 * for. Threads with nothing to do look for a region for a while, then sleep.
 *
 * Each thread has a part of the items and takes its chunks one after another, as memory likes to be read; then it helps
 * with the parts of others. */
#include "runtime/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/common.h"

#define YIELD_NS 20000  /* of looking, after which a CPU that others want is given to them */
#define SLEEP_NS 200000 /* of looking, after which a thread sleeps: longer than from call to call of a list */
#define LOOKS 32        /* between two looks at the clock */
#define STACK (2 << 20)
#define LINE 128 /* bytes: what different threads write lies on different cache lines */
#define MOST_THREADS 1024

/* state: number of the region in the upper half, its seats (0 = closed), how many have joined. */
#define REGION ((uint64_t)1 << 32)
#define SEAT ((uint64_t)1 << 16)
#define JOINED (SEAT - 1)

typedef struct {
    Pool *pool;
    pthread_t thread;
    int64_t number;
} Worker;

typedef struct {
    _Alignas(LINE) _Atomic int64_t next; /* first item that no thread has taken */
    int64_t end;
} Part;

struct Pool {
    _Alignas(LINE) _Atomic uint64_t state;
    _Alignas(LINE) Body *body; /* the job: written while the region is closed */
    void *work;
    int64_t chunk, num_parts;
    Part *parts; /* [threads] */
    _Alignas(LINE) atomic_int taken; /* a caller has the pool */
    atomic_int sleepers;             /* changed under the lock */
    atomic_int closing;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int64_t threads, started; /* started: workers, of threads - 1 at most; -1 = not yet */
    Worker *workers;          /* [threads] */
    Pool *next_pool;
};

static _Thread_local Pool *current;
static Pool *pools; /* all that are open, for the child of a fork */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

INLINE void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Looking for something that has yet to happen. */
typedef struct {
    int64_t looks, since;
} Patience;

/* Between two looks -> for how long there was nothing to see, now and then; 0 = not measured. */
static int64_t be_patient(Patience *p) {
    pause_cpu();
    if (++p->looks % LOOKS) return 0;
    int64_t now = now_ns();
    if (!p->since) p->since = now;
    if (now - p->since > YIELD_NS) sched_yield();
    return now - p->since;
}

/* ---- workers ---- */

/* Whether a thread that last joined region `seen` finds a free seat. */
INLINE int has_seat(uint64_t state, uint32_t seen) {
    return (state & JOINED) < (state / SEAT & JOINED) && (uint32_t)(state / REGION) != seen;
}

static void take_chunks(Pool *p, int64_t thread) {
    for (int64_t i = 0; i < p->num_parts; i++) {
        Part *part = &p->parts[(thread + i) % p->num_parts];
        while (atomic_load_explicit(&part->next, memory_order_relaxed) < part->end) {
            int64_t begin = atomic_fetch_add_explicit(&part->next, p->chunk, memory_order_relaxed);
            if (begin < part->end) p->body(p->work, begin, min64(begin + p->chunk, part->end), thread);
        }
    }
}

/* A sleeper says so before it looks a last time; a caller opens its region before it asks for sleepers. */
static void sleep_until_seat(Pool *p, uint32_t seen) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!has_seat(atomic_load(&p->state), seen) && !atomic_load(&p->closing))
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void wake_sleepers(Pool *p) {
    if (!atomic_load(&p->sleepers)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* -> false where the pool closes */
static int await_seat(Pool *p, uint32_t seen) {
    Patience patience = {0};
    while (!has_seat(atomic_load_explicit(&p->state, memory_order_relaxed), seen)) {
        if (atomic_load_explicit(&p->closing, memory_order_relaxed)) return 0;
        if (be_patient(&patience) > SLEEP_NS) {
            sleep_until_seat(p, seen);
            patience = (Patience){0};
        }
    }
    return 1;
}

static void *run_worker(void *arg) {
    Worker *w = arg;
    Pool *p = w->pool;
    uint32_t seen = 0;
    while (await_seat(p, seen)) {
        uint64_t state = atomic_fetch_add_explicit(&p->state, 1, memory_order_acquire);
        if (has_seat(state, seen)) take_chunks(p, w->number);
        seen = (uint32_t)(state / REGION);
        atomic_fetch_sub_explicit(&p->state, 1, memory_order_release);
    }
    return NULL;
}

/* Signals are for the threads of the program. */
static void start_workers(Pool *p) {
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (p->started = 0; p->started < p->threads - 1; p->started++) {
        Worker *w = &p->workers[p->started];
        *w = (Worker){.pool = p, .number = p->started + 1};
        if (pthread_create(&w->thread, &attributes, run_worker, w)) break; /* fewer will do */
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- callers ---- */

int64_t threads_count(void) { return current ? current->threads : 1; }

static void cut_into_parts(Pool *p, int64_t items, int64_t count) {
    p->num_parts = count;
    for (int64_t i = 0; i < count; i++) {
        atomic_store_explicit(&p->parts[i].next, items * i / count, memory_order_relaxed);
        p->parts[i].end = items * (i + 1) / count;
    }
}

/* The job is done by up to `seats` workers and the caller. */
static void run_region(Pool *p, int64_t seats) {
    atomic_fetch_add(&p->state, REGION + (uint64_t)seats * SEAT);
    wake_sleepers(p);
    take_chunks(p, 0);
    atomic_fetch_sub_explicit(&p->state, (uint64_t)seats * SEAT, memory_order_relaxed);
    Patience patience = {0};
    while (atomic_load_explicit(&p->state, memory_order_acquire) & JOINED) be_patient(&patience);
}

/* -> false where another caller has the pool */
static int run_shared(Pool *p, int64_t items, int64_t chunk, Body *body, void *work) {
    if (atomic_exchange_explicit(&p->taken, 1, memory_order_acquire)) return 0;
    if (p->started < 0) start_workers(p);
    p->body = body, p->work = work, p->chunk = max64(chunk, 1);
    int64_t seats = min64(p->started, (items - 1) / p->chunk);
    cut_into_parts(p, items, seats + 1);
    run_region(p, seats);
    atomic_store_explicit(&p->taken, 0, memory_order_release);
    return 1;
}

void share(int64_t items, int64_t chunk, Body *body, void *work) {
    Pool *p = current;
    if (items <= 0) return;
    current = NULL; /* for what the body may share out in its turn */
    if (!p || p->threads == 1 || items <= chunk || !run_shared(p, items, chunk, body, work)) body(work, 0, items, 0);
    current = p;
}

void share_evenly(int64_t items, int64_t least, Body *body, void *work) {
    int64_t threads = threads_count();
    share(items, max64((items + threads - 1) / threads, least), body, work);
}

EXPORT void cadence_enter(Pool *pool) { current = pool; }

EXPORT void cadence_leave(void) { current = NULL; }

/* ---- memory ---- */

/* Before each buffer of a thread, the one before it. */
typedef struct Buffer {
    _Alignas(64) struct Buffer *before;
} Buffer;

static pthread_key_t buffers; /* the thread's last */

static void free_buffers(void *last) {
    for (Buffer *b = last, *before; b; b = before) before = b->before, free(b);
}

static void make_key(void) { pthread_key_create(&buffers, free_buffers); }

void *thread_memory(void *old, int64_t bytes) {
    static pthread_once_t key_once = PTHREAD_ONCE_INIT;
    pthread_once(&key_once, make_key);
    Buffer *last = pthread_getspecific(buffers), **at = &last;
    if (old) {
        while (*at != (Buffer *)old - 1) at = &(*at)->before;
        *at = (*at)->before;
        free((Buffer *)old - 1);
    }
    Buffer *b = aligned_alloc(64, sizeof(Buffer) + (size_t)round_up(bytes, 64));
    if (b) b->before = last;
    pthread_setspecific(buffers, b ? b : last);
    return b ? b + 1 : NULL;
}

/* ---- life ---- */

static void reset(Pool *p) {
    atomic_store(&p->state, atomic_load(&p->state) / REGION * REGION);
    atomic_store(&p->taken, 0);
    atomic_store(&p->sleepers, 0);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->started = -1;
}

static void before_fork(void) { pthread_mutex_lock(&pools_lock); }

static void after_fork(void) { pthread_mutex_unlock(&pools_lock); }

/* The workers stayed with the parent, where one may have been anywhere: they are started anew when needed. */
static void in_child(void) {
    for (Pool *p = pools; p; p = p->next_pool) reset(p);
    pthread_mutex_unlock(&pools_lock);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

/* threads: the caller's own included. Workers start with the first work. NULL = no memory. */
EXPORT Pool *cadence_pool_open(int64_t threads) {
    if (threads < 1 || threads > MOST_THREADS) return NULL;
    Pool *p = aligned_alloc(LINE, (size_t)round_up(sizeof(Pool), LINE));
    Part *parts = aligned_alloc(LINE, (size_t)threads * sizeof(Part));
    Worker *workers = calloc((size_t)threads, sizeof(Worker));
    if (!p || !parts || !workers) return free(p), free(parts), free(workers), NULL;
    memset(p, 0, sizeof(Pool));
    p->threads = threads, p->parts = parts, p->workers = workers;
    reset(p);
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pools_lock);
    p->next_pool = pools;
    pools = p;
    pthread_mutex_unlock(&pools_lock);
    return p;
}

/* No thread may be using it. */
EXPORT void cadence_pool_close(Pool *p) {
    pthread_mutex_lock(&pools_lock);
    Pool **at = &pools;
    while (*at != p) at = &(*at)->next_pool;
    *at = p->next_pool;
    pthread_mutex_unlock(&pools_lock);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->closing, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int64_t i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p->workers);
    free(p->parts);
    free(p);
}
