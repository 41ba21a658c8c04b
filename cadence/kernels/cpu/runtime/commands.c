/* Commands: calls of kernels under one signature, so that they can be listed and made again without Python. */
#include "runtime/common.h"
#include "runtime/threads.h"

typedef struct {
    void (*run)(const void *);
    int64_t words[COMMAND_WORDS];
} Command;

EXPORT void cadence_call(Pool *pool, void (*run)(const void *), const void *words) {
    cadence_enter(pool);
    run(words);
    cadence_leave();
}

/* Once, and again as long as `again` is set then: one of the commands may do so. */
EXPORT void cadence_replay(Pool *pool, const Command *commands, int64_t count, const int32_t *again) {
    cadence_enter(pool);
    do {
        for (int64_t i = 0; i < count; i++) commands[i].run(commands[i].words);
    } while (*again);
    cadence_leave();
}
