/* Rows moving from one token to the next. */
#include "runtime/common.h"

#define NO_TOKEN (-1)
#define FAILED (-2)

EXPORT void call_rows_gather(const void *words) {
    const struct rows_gather *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride;
        int64_t begin = w->query_start[r], count = w->query_start[r + 1] - begin;
        int64_t first = state->num_computed[column] - state->quiet[column];
        const int32_t *known = state->tokens + row * state->token_stride + first;
        for (int64_t i = 0; i < count; i++) {
            w->ids[begin + i] = known[i];
            w->positions[begin + i] = first + i;
        }
        w->seq_lens[r] = (int32_t)(first + count);
        int64_t end = w->line_start[r + 1];
        for (int64_t line = w->line_start[r]; line < end; line++) {
            w->line_at[line] = w->query_start[r + 1] - (end - line);
            w->line_rows[line] = (int32_t)row;
            w->line_lengths[line] = (int32_t)(first + count + 1 - (end - line));
        }
    }
    for (int64_t i = w->query_start[w->num_rows]; i < w->num_tokens; i++) {
        w->ids[i] = 0;
        w->positions[i] = 0;
    }
}

EXPORT void call_rows_slots(const void *words) {
    const struct rows_slots *w = words;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], quiet = w->quiet[row * w->column_stride];
        const int32_t *table = w->table + row * w->table_stride;
        for (int64_t i = w->query_start[r]; i < w->query_start[r + 1]; i++) {
            int64_t position = w->positions[i];
            w->slots[i] = quiet ? 0 : table[position / w->block_size] * w->block_size + position % w->block_size;
        }
    }
    for (int64_t i = w->query_start[w->num_rows]; i < w->num_tokens; i++) w->slots[i] = 0;
}

static int stops_at(const RowState *state, int64_t row, int32_t token) {
    for (int64_t i = 0; i < state->num_stops; i++)
        if (state->stops[row * state->num_stops + i] == token) return 1;
    return 0;
}

EXPORT void call_rows_commit(const void *words) {
    const struct rows_commit *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride, line = w->line_start[r];
        int has_line = line < w->line_start[r + 1];
        if (state->quiet[column]) {
            if (has_line) w->out[line] = NO_TOKEN;
            continue;
        }
        int32_t length = w->seq_lens[r];
        state->num_computed[column] = length;
        if (!has_line) continue;
        int failed = !isfinite(w->peaks[line]);
        int32_t token = failed ? 0 : w->chosen[line];
        int stopped = length + 1 >= state->min_len[column] && stops_at(state, row, token);
        state->tokens[row * state->token_stride + length] = token;
        state->quiet[column] = failed || stopped || length + 1 >= state->max_len[column];
        w->out[line] = failed ? FAILED : token;
    }
}
