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

EXPORT void cadence_replay(Pool *pool, const Command *commands, int64_t count) {
    cadence_enter(pool);
    for (int64_t i = 0; i < count; i++) commands[i].run(commands[i].words);
    cadence_leave();
}
