/* Drafts out of texts that were there before. */
#include "runtime/common.h"
#include "runtime/threads.h"

#define MOST_FOUND 64
#define MILLION 1000000
#define NO_TEXT (-1)
#define SCANNED 64 /* tokens that are looked at together */

/* Tokens [first, end) of a text; token p lies at tokens[p & mask]. */
typedef struct {
    const int32_t *tokens;
    int64_t first, end, mask;
} Text;

/* Where the last tokens of a row stood before: the places after the longest match, the latest first. */
typedef struct {
    const int32_t *known;
    int64_t length, depth;
    int64_t size; /* of the match */
    int64_t count, count_own;
    int64_t places[MOST_FOUND];
} Found;

static int is_complete(const Found *found) { return found->size == found->depth && found->count == MOST_FOUND; }

/* A match of fewer tokens changes nothing. */
static int64_t least_size(const Found *found) {
    int64_t size = found->count == MOST_FOUND ? found->size + 1 : found->size;
    return size > 1 ? size : 1;
}

/* Looks at a place, before which the last token stands. */
static void look_at(Found *found, const Text *text, int64_t place) {
    if (text->tokens[place & text->mask] == NO_TEXT) return;
    const int32_t *last = found->known + found->length - 1;
    int64_t most = place - text->first;
    if (most > found->length) most = found->length;
    if (most > found->depth) most = found->depth;
    int64_t size = 1;
    while (size < most && text->tokens[(place - 1 - size) & text->mask] == last[-size]) size++;
    if (size < least_size(found)) return;
    if (size > found->size) {
        found->size = size;
        found->count = 0;
    }
    found->places[found->count++] = place;
}

/* Looks at the places after tokens [0, count) where the last token stands, and `back` tokens before it the one that
   does so in the row, the latest first; whether there is one is seen for all at once. */
static void look_at_places(
    Found *found, const Text *text, const int32_t *tokens, int64_t count, int64_t back, int64_t at
) {
    int32_t last = found->known[found->length - 1], before = found->known[found->length - 1 - back], any = 0;
    for (int64_t i = 0; i < count; i++) any |= (tokens[i] == last) & (tokens[i - back] == before);
    for (int64_t i = count - 1; any && i >= 0; i--)
        if (tokens[i] == last && tokens[i - back] == before) look_at(found, text, at + i + 1);
}

/* Tokens [begin, end) of a text, which lie one after another. */
static void scan(Found *found, const Text *text, int64_t begin, int64_t end) {
    while (end > begin && !is_complete(found)) {
        int64_t from = end - SCANNED > begin ? end - SCANNED : begin, back = least_size(found) - 1;
        if (back >= found->length) return; /* the whole row stood there */
        if (from - back < begin) back = 0;
        look_at_places(found, text, text->tokens + (from & text->mask), end - from, back, from);
        end = from;
    }
}

/* All of a text, the end of the ring first. */
static void scan_text(Found *found, const Text *text) {
    int64_t end = text->end - 1; /* after the last token nothing stands */
    int64_t turn = end & ~text->mask;
    if (text->first < turn) {
        scan(found, text, turn, end);
        end = turn;
    }
    scan(found, text, text->first, end);
}

/* What stands i tokens after a place, where all before are as they are drafted. */
static int32_t token_after(const Found *found, const Text *corpus, int64_t index, int64_t i) {
    int64_t place = found->places[index];
    if (index < found->count_own) return found->known[place + i % (found->length - place)];
    return place + i < corpus->end ? corpus->tokens[(place + i) & corpus->mask] : NO_TEXT;
}

/* What most of the places go on with; only these are left of `alive` -> how many. */
static int64_t most_frequent(const Found *found, const Text *corpus, int64_t i, int64_t *alive, int32_t *token) {
    int32_t next[MOST_FOUND];
    int64_t best = 0;
    for (int64_t a = 0; a < found->count; a++) next[a] = alive[a] ? token_after(found, corpus, a, i) : NO_TEXT;
    for (int64_t a = 0; a < found->count; a++) {
        int64_t count = 0;
        for (int64_t b = a; b < found->count; b++) count += next[b] == next[a];
        if (next[a] == NO_TEXT || count <= best) continue; /* of one that was counted before, there are fewer now */
        best = count;
        *token = next[a];
    }
    for (int64_t a = 0; a < found->count; a++) alive[a] = best && next[a] == *token;
    return best;
}

/* -> drafts, at most `most` */
static int64_t draft(
    const struct suffix_propose *w, const Found *found, const Text *corpus, int32_t *drafts, int64_t most
) {
    int64_t alive[MOST_FOUND], limit = found->size * w->factor / MILLION, count = 0;
    if (limit < 1) limit = 1;
    if (limit > most) limit = most;
    for (int64_t a = 0; a < found->count; a++) alive[a] = 1;
    for (; count < limit; count++) {
        int32_t token = NO_TEXT;
        int64_t number = most_frequent(found, corpus, count, alive, &token);
        if (!number || number * MILLION < found->count * w->least_share) break;
        drafts[count] = token;
    }
    return count;
}

static void propose_rows(void *work, int64_t begin, int64_t end, int64_t thread) {
    const struct suffix_propose *w = work;
    const RowState *state = &w->state;
    Text corpus = {w->corpus, w->span[0], w->span[1], w->capacity - 1};
    for (int64_t r = begin; r < end; r++) {
        int64_t row = w->rows[r], column = row * state->column_stride;
        if (state->quiet[column] || w->line_start[r] == w->line_start[r + 1]) continue;
        int32_t *tokens = state->tokens + row * state->token_stride;
        int64_t length = state->num_computed[column] + 1;
        int64_t most = w->most[row * w->most_stride], room = state->max_len[column] - 1 - length;
        if (most > room) most = room;
        if (most < 1) continue;
        Text own = {tokens, 0, length, INT64_MAX};
        Found found = {.known = tokens, .length = length, .depth = w->depth};
        scan_text(&found, &own);
        int64_t size = found.size;
        found.count_own = found.count;
        scan_text(&found, &corpus);
        if (found.size > size) found.count_own = 0;
        state->num_drafts[column] = (int32_t)draft(w, &found, &corpus, tokens + length, most);
    }
}

EXPORT void call_suffix_propose(const void *words) {
    const struct suffix_propose *w = words;
    share(w->num_rows, 1, propose_rows, (void *)w);
}
