/* Rows moving from one token to the next. Columns of counters share one stride, in elements. */
#include "runtime/common.h"
#include "runtime/passes.h"

#define NO_TOKEN (-1)
#define FAILED (-2)

typedef struct {
    int32_t *tokens, *num_computed, *min_len, *max_len, *quiet, *stops;
    int64_t token_stride, column_stride, num_stops;
} RowState;

typedef struct {
    int32_t *rows, *ids;
    int64_t *positions;
    int32_t *seq_lens;
} Inputs;

void cadence_rows_gather(const RowState *state, const Inputs *inputs, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t row = inputs->rows[i], column = row * state->column_stride;
        int64_t position = state->num_computed[column] - state->quiet[column];
        inputs->ids[i] = state->tokens[row * state->token_stride + position];
        inputs->positions[i] = position;
        inputs->seq_lens[i] = (int32_t)(position + 1);
    }
}

void cadence_rows_slots(const RowState *state, const Inputs *inputs, int64_t *slots, const int32_t *table,
                               int64_t table_stride, int64_t block_size, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t row = inputs->rows[i], position = inputs->positions[i];
        int64_t block = table[row * table_stride + position / block_size];
        slots[i] = state->quiet[row * state->column_stride] ? 0 : block * block_size + position % block_size;
    }
}

static int stops_at(const RowState *state, int64_t row, int32_t token) {
    for (int64_t i = 0; i < state->num_stops; i++)
        if (state->stops[row * state->num_stops + i] == token) return 1;
    return 0;
}

typedef struct {
    const int32_t *rows, *lengths, *tokens;
    const float *peaks;
} Sampled;

/* out [passes, count], out_stride elements from line to line: one is written. A row that ends is enough. */
void cadence_rows_commit(const RowState *state, const Sampled *sampled, int32_t *out, int64_t out_stride, int64_t count,
                         Passes *passes) {
    out += passes->now * out_stride;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = sampled->rows[i], column = row * state->column_stride;
        if (state->quiet[column]) {
            out[i] = NO_TOKEN;
            continue;
        }
        int failed = !isfinite(sampled->peaks[i]);
        int32_t token = failed ? 0 : sampled->tokens[i], length = sampled->lengths[i];
        int stopped = length + 1 >= state->min_len[column] && stops_at(state, row, token);
        state->tokens[row * state->token_stride + length] = token;
        state->num_computed[column] = length;
        state->quiet[column] = failed || stopped || length + 1 >= state->max_len[column];
        passes->enough |= state->quiet[column];
        out[i] = failed ? FAILED : token;
    }
}
