/* Every kernel under one signature, an array of words, so that calls can be listed and made again without Python. */
#include "runtime/common.h"
#include "runtime/passes.h"
#include "runtime/threads.h"

#define P(i) ((void *)words[i])
#define CALL(name) EXPORT void name(const int64_t *words)

typedef struct {
    void (*run)(const int64_t *);
    int64_t words[24]; /* Calls.WORDS */
} Command;

static float as_float(int64_t word) {
    union {
        int32_t bits;
        float value;
    } both = {.bits = (int32_t)word};
    return both.value;
}

void cadence_rms_norm(void *, const void *, const void *, int64_t, int64_t, const int64_t *, float, int, int);
void cadence_add_rms_norm(void *, void *, const void *, const void *, const void *, int64_t, int64_t, float, int, int);
void cadence_gate_mul(void *, const void *, int64_t, int64_t, int64_t, int, int);
void cadence_rope(void *, void *, const int64_t *, const float *, int64_t, const int64_t *, const int64_t *, int64_t,
                  int);
void cadence_write_kv(const char *, const char *, char *, char *, const int64_t *, int64_t, int64_t, int64_t, int64_t,
                      const int64_t *);
void cadence_attention(void *const *, const int64_t *, float, float);
void cadence_gumbel(float *, const int64_t *, int64_t, const int64_t *, int64_t, int64_t, int64_t);
void cadence_draw(void *const *, const int64_t *);
void cadence_rows_gather(const void *, const void *, int64_t);
void cadence_rows_slots(const void *, const void *, int64_t *, const int32_t *, int64_t, int64_t, int64_t);
void cadence_rows_commit(const void *, const void *, int32_t *, int64_t, int64_t, Passes *);

CALL(call_rms_norm) {
    cadence_rms_norm(P(0), P(1), P(2), words[3], words[4], words + 5, as_float(words[8]), (int)words[9],
                     (int)words[10]);
}
CALL(call_add_rms_norm) {
    cadence_add_rms_norm(P(0), P(1), P(2), P(3), P(4), words[5], words[6], as_float(words[7]), (int)words[8],
                         (int)words[9]);
}
CALL(call_gate_mul) { cadence_gate_mul(P(0), P(1), words[2], words[3], words[4], (int)words[5], (int)words[6]); }
CALL(call_rope) {
    cadence_rope(P(0), P(1), P(2), P(3), words[4], words + 5, words + 8, words[11], (int)words[12]);
}
CALL(call_write_kv) {
    cadence_write_kv(P(0), P(1), P(2), P(3), P(4), words[5], words[6], words[7], words[8], words + 9);
}
CALL(call_attention) {
    cadence_attention((void *const *)words, words + 8, as_float(words[20]), as_float(words[21]));
}
CALL(call_gumbel) { cadence_gumbel(P(0), P(1), words[2], P(3), words[4], words[5], words[6]); }
CALL(call_draw) { cadence_draw((void *const *)words, words + 8); }

/* Words 0 to 8 are a RowState. */
CALL(call_rows_gather) { cadence_rows_gather(words, words + 9, words[13]); }
CALL(call_rows_slots) {
    cadence_rows_slots(words, words + 9, P(13), P(14), words[15], words[16], words[17]);
}
CALL(call_rows_commit) { cadence_rows_commit(words, words + 9, P(13), words[14], words[15], P(16)); }

EXPORT void cadence_call(Pool *pool, void (*run)(const int64_t *), const int64_t *words) {
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
