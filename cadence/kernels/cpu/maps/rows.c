/* Rows moving from one token to the next. */
#include "maps/row_maps.h"

#define NO_TOKEN (-1)
#define FAILED (-2)
#define NO_DRAFT (-3)

/* Tokens of a run of `count` with `lines` lines that are known or drafts; the rest of it is padding. */
static int64_t real_tokens(const RowState *state, int64_t column, int64_t count, int64_t lines) {
    int64_t room = lines > 0 ? lines - 1 : 0, drafts = state->num_drafts[column];
    return count - room + (drafts < room ? drafts : room);
}

static void gather_lines(const struct rows_gather *w, int64_t r, int64_t first, int64_t real) {
    int64_t end = w->line_start[r + 1], length = w->seq_lens[r];
    for (int64_t line = w->line_start[r]; line < end; line++) {
        int64_t before = length + 1 - (end - line);
        w->line_at[line] = w->query_start[r + 1] - (end - line);
        w->line_rows[line] = w->rows[r];
        w->line_lengths[line] = (int32_t)(before < first + real ? before : first + real);
    }
}

EXPORT void call_rows_gather(const void *words) {
    const struct rows_gather *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride;
        int64_t begin = w->query_start[r], count = w->query_start[r + 1] - begin;
        int64_t real = real_tokens(state, column, count, w->line_start[r + 1] - w->line_start[r]);
        int64_t first = state->num_computed[column] - state->quiet[column];
        const int32_t *known = state->tokens + row * state->token_stride + first;
        for (int64_t i = 0; i < count; i++) {
            w->ids[begin + i] = i < real ? known[i] : 0;
            w->positions[begin + i] = i < real ? first + i : 0;
        }
        w->seq_lens[r] = (int32_t)(first + count);
        gather_lines(w, r, first, real);
    }
    for (int64_t i = w->query_start[w->num_rows]; i < w->num_tokens; i++) {
        w->ids[i] = 0;
        w->positions[i] = 0;
    }
}

EXPORT void call_rows_slots(const void *words) {
    const struct rows_slots *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride;
        int64_t begin = w->query_start[r], count = w->query_start[r + 1] - begin;
        int64_t real = real_tokens(state, column, count, w->line_start[r + 1] - w->line_start[r]);
        if (state->quiet[column]) real = 0;
        const int32_t *table = w->table + row * w->table_stride;
        for (int64_t i = 0; i < count; i++) {
            int64_t position = w->positions[begin + i];
            int64_t slot = table[position / w->block_size] * w->block_size + position % w->block_size;
            w->slots[begin + i] = i < real ? slot : 0;
        }
    }
    for (int64_t i = w->query_start[w->num_rows]; i < w->num_tokens; i++) w->slots[i] = 0;
}

static int stops_at(const RowState *state, int64_t row, int32_t token) {
    for (int64_t i = 0; i < state->num_stops; i++)
        if (state->stops[row * state->num_stops + i] == token) return 1;
    return 0;
}

/* A row takes the tokens chosen at its lines, while drafts are what was chosen in their place -> how many. */
static int64_t take_lines(const struct rows_commit *w, int64_t row, int64_t first, int64_t lines, int64_t position) {
    const RowState *state = &w->state;
    int64_t column = row * state->column_stride, drafts = state->num_drafts[column];
    if (drafts > lines - 1) drafts = lines - 1;
    int32_t *tokens = state->tokens + row * state->token_stride + position;
    for (int64_t i = drafts + 1; i < lines; i++) w->out[first + i] = NO_DRAFT;
    int64_t taken = 0;
    for (int going = 1; going; taken++) {
        int64_t length = position + taken + 1;
        int failed = !isfinite(w->peaks[first + taken]);
        int32_t token = failed ? 0 : w->chosen[first + taken];
        int stopped = length >= state->min_len[column] && stops_at(state, row, token);
        going = taken < drafts && tokens[taken] == token;
        tokens[taken] = token;
        w->out[first + taken] = failed ? FAILED : token;
        if (failed || stopped || length >= state->max_len[column]) {
            state->quiet[column] = 1;
            going = 0;
        }
    }
    for (int64_t i = taken; i <= drafts; i++) w->out[first + i] = NO_TOKEN;
    return taken;
}

EXPORT void call_rows_commit(const void *words) {
    const struct rows_commit *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride;
        int64_t line = w->line_start[r], lines = w->line_start[r + 1] - line;
        if (state->quiet[column]) {
            for (int64_t i = 0; i < lines; i++) w->out[line + i] = i ? NO_DRAFT : NO_TOKEN;
            continue;
        }
        int64_t length = w->seq_lens[r];
        if (lines) {
            int64_t position = length + 1 - lines;
            length = position + take_lines(w, row, line, lines, position) - 1;
        }
        state->num_computed[column] = (int32_t)length;
        state->num_drafts[column] = 0;
    }
}

EXPORT void call_rows_turn(const void *words) {
    const struct rows_turn *w = words;
    const RowState *state = &w->state;
    int32_t *again = w->control, *done = w->control + 1, most = w->control[2], quiet = 0, drafts = 0;
    if (*done < most) memcpy(w->log + *done * w->log_stride, w->out, (size_t)w->num_lines * sizeof *w->out);
    *done += 1;
    for (int64_t r = 0; r < w->num_rows; r++) {
        quiet += state->quiet[w->rows[r] * state->column_stride];
        drafts |= state->num_drafts[w->rows[r] * state->column_stride];
    }
    *again = *done < most && quiet == w->control[3] && !drafts;
}

EXPORT void call_rows_find_state_runs(const void *words) {
    const struct rows_find_state_runs *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t column = w->rows[r] * state->column_stride, line = w->rows[r] < w->last ? w->rows[r] : w->last;
        int64_t room = w->line_start[r + 1] - w->line_start[r] - 1;
        if (room < 0) room = 0;
        int32_t certain = w->query_start[r + 1] - w->query_start[r] - (int32_t)room, drafts = state->num_drafts[column];
        int32_t computed = state->num_computed[column], *taken = w->taken + line * w->taken_stride;
        int moves = line < w->last && !state->quiet[column];
        w->lines[r] = (int32_t)line;
        w->replayed[r] = moves && computed > *taken ? computed - *taken : 0;
        w->certain[r] = moves ? certain : 0;
        w->kept[r] = !moves ? 0 : drafts < room ? drafts : (int32_t)room;
        if (moves) *taken = computed + certain;
    }
}

EXPORT void call_rows_find_draft_runs(const void *words) {
    const struct rows_find_draft_runs *w = words;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], line = row < w->last ? row : w->last;
        int32_t *taken = w->taken + line * w->taken_stride, computed = w->computed[row * w->computed_stride];
        int moves = line < w->last;
        w->lines[r] = (int32_t)line;
        w->replayed[r] = w->kept[r] = 0;
        w->certain[r] = !moves ? 0 : w->tries ? 1 : computed - *taken;
        if (moves && !w->tries) *taken = computed;
    }
}

EXPORT void call_rows_forget_drafts(const void *words) {
    const struct rows_forget_drafts *w = words;
    for (int64_t r = 0; r < w->num_rows; r++)
        if (w->rows[r] < w->last)
            w->computed[w->rows[r] * w->computed_stride] = w->taken[w->rows[r] * w->taken_stride];
}

static void copy_lines(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct rows_copy_lines *w = work;
    for (int64_t item = begin; item < end; item++) {
        int64_t layer = item / w->num_lines, line = w->lines[item % w->num_lines];
        memcpy(w->target + layer * w->target_layer + line * w->target_line,
               w->source + layer * w->source_layer + line * w->source_line, (size_t)w->line_bytes);
    }
}

/* A line that is named twice is the dummy's, in which nothing is. */
EXPORT void call_rows_copy_lines(const void *words) {
    const struct rows_copy_lines *w = words;
    share_rows(w->num_layers * w->num_lines, w->line_bytes / 4, copy_lines, (void *)w);
}

/* Where the last tokens [length - n, length) stood before -> the end of the longest match, of these the latest; 0 if
   there is none. */
static int64_t find_match(const int32_t *tokens, int64_t length, int64_t shortest, int64_t longest) {
    int64_t found = 0, best = shortest - 1;
    for (int64_t end = length - 1; end > best && best < longest; end--) {
        if (tokens[end - 1] != tokens[length - 1]) continue;
        int64_t n = 1;
        while (n < longest && n < end && tokens[end - 1 - n] == tokens[length - 1 - n]) n++;
        if (n > best) {
            best = n;
            found = end;
        }
    }
    return found;
}

EXPORT void call_rows_propose(const void *words) {
    const struct rows_propose *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride;
        if (state->quiet[column] || w->line_start[r] == w->line_start[r + 1]) continue;
        int32_t *tokens = state->tokens + row * state->token_stride;
        int64_t length = state->num_computed[column] + 1;
        int64_t count = w->most[row * w->most_stride], room = state->max_len[column] - 1 - length;
        if (count > room) count = room;
        int64_t match = count > 0 ? find_match(tokens, length, w->shortest, w->longest) : 0;
        if (!match) continue;
        for (int64_t i = 0; i < count; i++) tokens[length + i] = tokens[match + i]; /* also of what it has just written */
        state->num_drafts[column] = (int32_t)count;
    }
}

EXPORT void call_rows_drafts(const void *words) {
    const struct rows_drafts *w = words;
    const RowState *state = &w->state;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride, first = state->num_computed[column] + 1;
        const int32_t *tokens = state->tokens + row * state->token_stride;
        int32_t *out = w->out + r * (1 + w->most);
        out[0] = state->num_drafts[column];
        for (int64_t i = 0; i < w->most; i++) {
            int64_t place = first + i < w->num_tokens ? first + i : w->num_tokens - 1;
            out[1 + i] = tokens[place];
        }
    }
}

EXPORT void call_rows_begin_drafts(const void *words) {
    const struct rows_begin_drafts *w = words;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], newest = w->num_computed[row * w->column_stride];
        int64_t begin = w->query_start[r], count = w->query_start[r + 1] - begin;
        int64_t line = w->line_start[r], has_line = line < w->line_start[r + 1];
        int64_t limit = newest + (has_line && !w->ahead); /* positions that it should have */
        int idle = w->quiet[row * w->column_stride] || limit > w->max_len;
        int32_t *computed = w->computed + row * w->computed_stride;
        int64_t start = idle ? 0 : *computed < newest ? *computed : newest;
        int64_t real = idle ? 0 : limit - start < count ? limit - start : count;
        const int32_t *known = w->tokens + row * w->token_stride + start + w->ahead;
        for (int64_t i = 0; i < count; i++) {
            int32_t id = i < real ? known[i] : 0;
            w->ids[begin + i] = id < w->num_ids ? id : (int32_t)w->num_ids - 1;
            w->positions[begin + i] = i < real ? start + i : 0;
        }
        w->seq_lens[r] = (int32_t)(start + count);
        w->num_real[r] = (int32_t)real;
        if (!idle) *computed = (int32_t)(start + real);
        if (has_line) {
            w->line_at[line] = begin + (real > 0 ? real - 1 : 0);
            w->line_rows[line] = (int32_t)row;
            w->line_lengths[line] = (int32_t)newest + 1;
            w->line_seq_lens[line] = (int32_t)(start + real > 0 ? start + real : 1);
        }
    }
    for (int64_t i = w->query_start[w->num_rows]; i < w->num_tokens; i++) {
        w->ids[i] = 0;
        w->positions[i] = 0;
    }
}

static int takes_draft(const struct rows_take_draft *w, int64_t r, int64_t newest) {
    int64_t row = w->rows[r], column = row * w->column_stride;
    if (w->quiet[column] || w->num_drafts[column] != w->draft || !isfinite(w->peaks[r])) return 0;
    if (!w->draft && w->computed[row * w->computed_stride] != newest + 1 - w->ahead) return 0;
    return w->draft < w->most[row * w->most_stride] && newest + 1 + w->draft < w->max_len[column] - 1 &&
           newest + 1 + w->draft - w->ahead < w->longest;
}

EXPORT void call_rows_take_draft(const void *words) {
    const struct rows_take_draft *w = words;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t row = w->rows[r], column = row * w->column_stride, newest = w->num_computed[column];
        int64_t place = newest + 1 + w->draft, position = place - w->ahead;
        int taken = takes_draft(w, r, newest);
        int32_t token = w->chosen[r];
        if (taken) {
            w->tokens[row * w->token_stride + place] = token;
            w->num_drafts[column] = (int32_t)w->draft + 1;
        }
        if (!w->ids) continue;
        if (taken && !w->ahead) w->computed[row * w->computed_stride] = (int32_t)position + 1;
        w->ids[r] = !taken ? 0 : token < w->num_ids ? token : (int32_t)w->num_ids - 1;
        w->positions[r] = taken ? position : 0;
        w->seq_lens[r] = taken ? (int32_t)position + 1 : 1;
        w->line_lengths[r] = (int32_t)place + 1;
        w->num_real[r] = taken;
    }
}

EXPORT void call_rows_draft_slots(const void *words) {
    const struct rows_draft_slots *w = words;
    for (int64_t r = 0; r < w->num_rows; r++) {
        const int32_t *table = w->table + w->rows[r] * w->table_stride;
        int64_t begin = w->query_start[r], count = w->query_start[r + 1] - begin;
        for (int64_t i = 0; i < count; i++) {
            int64_t position = w->positions[begin + i];
            int64_t slot = table[position / w->block_size] * w->block_size + position % w->block_size;
            w->slots[begin + i] = i < w->num_real[r] ? slot : 0;
        }
    }
    for (int64_t i = w->query_start[w->num_rows]; i < w->num_tokens; i++) w->slots[i] = 0;
}

EXPORT void call_rows_keep_states(const void *words) {
    const struct rows_keep_states *w = words;
    for (int64_t r = 0; r < w->num_rows; r++) {
        int64_t place = w->rows[r] * w->room + w->positions[r] % w->room;
        memcpy(w->kept + place * w->row_bytes, w->x + r * w->x_stride, (size_t)w->row_bytes);
    }
}

EXPORT void call_rows_kept_states(const void *words) {
    const struct rows_kept_states *w = words;
    for (int64_t r = 0; r < w->num_rows; r++)
        for (int64_t i = w->query_start[r]; i < w->query_start[r + 1]; i++) {
            int64_t place = w->rows[r] * w->room + w->positions[i] % w->room;
            memcpy(w->out + i * w->row_bytes, w->kept + place * w->row_bytes, (size_t)w->row_bytes);
        }
}
