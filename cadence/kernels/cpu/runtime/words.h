/* Words of memory that several processes share; words.c has what Python calls. */
#ifndef CADENCE_WORDS_H
#define CADENCE_WORDS_H

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef _Atomic uint64_t Word;

#define WORD_YIELD_NS 5000 /* of looking, after which a CPU that others want is given to them */
#define WORD_LOOKS 32      /* between two looks at the clock */
#define WORD_NAP_NS 100000 /* between two looks, where there is no futex */

static inline int64_t word_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void word_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static inline uint32_t *word_lower_half(Word *word) {
    return (uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* Threads that sleep on the word look again. */
static inline void wake_word(Word *word) {
#if defined(__linux__)
    syscall(SYS_futex, word_lower_half(word), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
#endif
}

static inline void sleep_on_word(Word *word, uint64_t seen, int64_t ns) {
#if defined(__linux__)
    struct timespec t = {ns / 1000000000LL, ns % 1000000000LL};
    syscall(SYS_futex, word_lower_half(word), FUTEX_WAIT, (uint32_t)seen, &t, NULL, 0);
#else
    struct timespec t = {0, ns < WORD_NAP_NS ? ns : WORD_NAP_NS};
    nanosleep(&t, NULL);
#endif
}

/* -> whether the word is another than `seen`, within so many nanoseconds; a waiter that is woken without a change
 * returns too, so that it may look at something else. */
static inline int await_word(Word *word, uint64_t seen, int64_t spin_ns, int64_t timeout_ns) {
    int64_t start = word_clock_ns(), passed = 0;
    for (int64_t looks = 1; passed < spin_ns && passed < timeout_ns; looks++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return 1;
        word_pause();
        if (looks % WORD_LOOKS) continue;
        passed = word_clock_ns() - start;
        if (passed > WORD_YIELD_NS) sched_yield();
    }
    if (atomic_load_explicit(word, memory_order_acquire) != seen) return 1;
    if (passed < timeout_ns) sleep_on_word(word, seen, timeout_ns - passed);
    return atomic_load_explicit(word, memory_order_acquire) != seen;
}

#endif
