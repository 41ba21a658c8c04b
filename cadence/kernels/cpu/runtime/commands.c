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

/* The whole list, up to `times` times -> how often it was. */
EXPORT int64_t cadence_replay(Pool *pool, const Command *commands, int64_t count, Passes *passes, int64_t times) {
    cadence_enter(pool);
    passes->enough = 0;
    for (passes->now = 0; passes->now < times && !passes->enough; passes->now++)
        for (int64_t i = 0; i < count; i++) commands[i].run(commands[i].words);
    cadence_leave();
    int64_t made = passes->now;
    passes->now = 0; /* as calls outside a list find it */
    return made;
}
