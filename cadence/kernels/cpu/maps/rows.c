/* Rows moving from one token to the next. */
#include "runtime/common.h"

#define NO_TOKEN (-1)
#define FAILED (-2)

EXPORT void call_rows_gather(const void *words) {
    const struct rows_gather *w = words;
    const RowState *state = &w->state;
    const Inputs *inputs = &w->inputs;
    for (int64_t i = 0; i < w->count; i++) {
        int64_t row = inputs->rows[i], column = row * state->column_stride;
        int64_t position = state->num_computed[column] - state->quiet[column];
        inputs->ids[i] = state->tokens[row * state->token_stride + position];
        inputs->positions[i] = position;
        inputs->seq_lens[i] = (int32_t)(position + 1);
    }
}

EXPORT void call_rows_slots(const void *words) {
    const struct rows_slots *w = words;
    const RowState *state = &w->state;
    const Inputs *inputs = &w->inputs;
    for (int64_t i = 0; i < w->count; i++) {
        int64_t row = inputs->rows[i], position = inputs->positions[i];
        int64_t block = w->table[row * w->table_stride + position / w->block_size];
        w->slots[i] = state->quiet[row * state->column_stride] ? 0 : block * w->block_size + position % w->block_size;
    }
}

static int stops_at(const RowState *state, int64_t row, int32_t token) {
    for (int64_t i = 0; i < state->num_stops; i++)
        if (state->stops[row * state->num_stops + i] == token) return 1;
    return 0;
}

EXPORT void call_rows_commit(const void *words) {
    const struct rows_commit *w = words;
    const RowState *state = &w->state;
    int32_t *out = w->out + w->passes->now * w->out_stride;
    for (int64_t i = 0; i < w->count; i++) {
        int64_t row = w->rows[i], column = row * state->column_stride;
        if (state->quiet[column]) {
            out[i] = NO_TOKEN;
            continue;
        }
        int failed = !isfinite(w->peaks[i]);
        int32_t token = failed ? 0 : w->sampled[i], length = w->lengths[i];
        int stopped = length + 1 >= state->min_len[column] && stops_at(state, row, token);
        state->tokens[row * state->token_stride + length] = token;
        state->num_computed[column] = length;
        state->quiet[column] = failed || stopped || length + 1 >= state->max_len[column];
        w->passes->enough |= state->quiet[column];
        out[i] = failed ? FAILED : token;
    }
}
