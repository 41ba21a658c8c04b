/* Words of memory that several processes share: loads, stores, and waiting for a change. A waiter looks for a while, then
 * sleeps until a store wakes it. The lower half of a word is what it sleeps on: a word must not come back to the same
 * lower half while a thread falls asleep. */
#include "runtime/words.h"

#include "runtime/common.h"

EXPORT uint64_t cadence_word_load(const Word *word) { return atomic_load_explicit(word, memory_order_acquire); }

/* What was written before is seen by who sees the value. */
EXPORT void cadence_word_store(Word *word, uint64_t value) {
    atomic_store(word, value);
    wake_word(word);
}

/* -> whether the word is another than `seen`, within so many nanoseconds */
EXPORT int64_t cadence_word_wait(Word *word, uint64_t seen, int64_t spin_ns, int64_t timeout_ns) {
    return await_word(word, seen, spin_ns, timeout_ns);
}

/* Threads that wait for the word return. */
EXPORT void cadence_word_wake(Word *word) { wake_word(word); }
