/* The commands of the library: the one table of what Python and C say to each other.
 *
 * A command NAME is a function call_NAME(const void *words); its words are a `struct NAME`. Every field is one word of 64
 * bits: a pointer, an int64_t, or a Float in its lower half; a field that is a struct of this file stands for the fields
 * of that one. table.py reads this file: one type a line, no field twice in a command. Strides are in elements.
 *
 * What Python passes for a word follows from its type and name: a tensor for a pointer, an address for one to a struct of
 * this file or to an Area, a float for a Float, a torch.dtype for `dtype` and what ends in _dtype, else a number. */
#ifndef CADENCE_COMMANDS_H
#define CADENCE_COMMANDS_H

#include <stdint.h>

#define COMMAND_WORDS 29 /* at most */

typedef float Float __attribute__((aligned(8)));
typedef void Area; /* memory of several processes */

/* Types of elements; I8 in KV caches alone. */
enum dtype { F32, BF16, F16, I8, E4M3, E5M2, I4 }; /* from I8 on: of caches alone */

/* What a packed weight is made of: types of GGUF, and
 *   HALF  bfloat16 numbers, held as float16 times a power of two per row
 *   Q4_Z  as Q4_1 with a zero point, a whole number, instead of a shift; Q8_Z: as Q8_0 with one
 *   Q8_F  as Q8_0 with scales in float32
 *   T4_F  codes of 4 bits with their table, and scales in float32 per 16 columns
 *   F8    float8 E4M3, with scales in float32 per row and up to 128 columns
 *   NF4   codes of bitsandbytes' nf4, with scales in float32 per 64 columns; FP4: the same of its fp4 */
enum kind { P_F32, P_BF16, P_Q8_0, P_Q4_0, P_Q4_1, P_Q5_0, P_Q5_1, P_Q4_K, P_Q5_K, P_Q6_K, P_HALF, P_Q4_Z, P_Q8_F, P_F16,
            P_IQ4_NL, P_IQ4_XS, P_MXFP4, P_T4_F, P_F8, P_NF4, P_FP4, P_Q2_K, P_Q8_Z };

enum activation { RELU, SILU, GELU, GELU_TANH };

/* ---- packed ---- */

typedef struct {
    const uint8_t *data;
    int64_t kind, rows, bytes;
} Segment;

/* y [m, sum of rows] = x [m, k] times the rows of all segments, one after another. */
struct packed_linear {
    void *y;
    const void *x;
    const float *bias; /* [sum of rows] or NULL */
    const Segment *segments;
    int64_t num_segments, m, k, x_stride, y_stride;
    int64_t x_dtype, y_dtype; /* F32 or BF16 */
    int64_t isa;              /* index into isas */
};

/* out [count, k] = rows ids [count] of a packed weight. */
struct packed_rows {
    void *out;
    Segment weight;
    const void *ids;
    int64_t id_bytes, count, k, dtype;
};

/* The matrices of one expert: gate and up [2 * width, hidden], down [hidden, width]. */
typedef struct {
    const Segment *gate_up;
    int64_t num_gate_up;
    const Segment *down;
    int64_t num_down;
} Expert;

/* y [tokens, hidden] = the sum of shares [tokens, top_k] * expert(x) over those of ids [tokens, top_k] that are among
 * experts [first, first + count), in their order. */
struct packed_experts {
    void *y;
    const void *x;
    const int32_t *ids;
    const float *shares;
    const Expert *experts;
    int64_t first, count, tokens, top_k, hidden, width, x_stride;
    int64_t dtype; /* of x and y: F32 or BF16 */
    int64_t gelu, isa;
};

/* ---- attention ---- */

/* k, v [tokens, heads, dim] -> caches [blocks, heads, block_size] of rows. Strides of caches from I8 on are in bytes. */
struct write_kv {
    const char *k, *v;
    char *k_cache, *v_cache;
    const int64_t *slots;
    int64_t tokens, heads, dim, block_size;
    int64_t k_token, k_head, v_token, v_head, k_block, v_block; /* strides */
    int64_t dtype, cache_dtype;
    Float k_scale, v_scale; /* of all rows of float8; 0: each has its own */
};

struct attention {
    void *out;
    const void *q;
    const char *k_cache, *v_cache;
    const int32_t *rows, *query_start, *seq_lens, *table;
    const float *bias;     /* [num_heads, 2 * reach - 1], or NULL */
    int64_t reach;         /* as in DistanceBias of interface/attention_batch.py */
    int64_t before, after; /* keys around its own that a query sees, at most ... */
    int64_t chunk;         /* ... and none before the beginning of its chunk of so many; 0: there are none */
    int64_t table_stride, q_token, q_head, k_block, v_block; /* as in write_kv */
    int64_t num_seqs, num_heads, num_kv_heads, dim, block_size;
    int64_t dtype, cache_dtype;
    int64_t isa; /* index into isas */
    Float scale, softcap;
};

/* ---- maps: rows of `width` elements; what has no stride is contiguous ---- */

/* Row r of x lies at r / inner * outer_stride + r % inner * inner_stride. */
struct rms_norm {
    void *out;
    const void *x, *weight;
    int64_t rows, width, inner, outer_stride, inner_stride;
    Float eps;
    int64_t dtype, weight_dtype;
};

/* total = x + residual, out = rms_norm(total). */
struct add_rms_norm {
    void *out, *total;
    const void *x, *residual, *weight;
    int64_t rows, width;
    Float eps;
    int64_t dtype, weight_dtype;
};

struct layer_norm {
    char *out, *total;
    const char *x, *residual;  /* residual NULL: total is x */
    const void *weight, *bias; /* [heads, width] or NULL */
    int64_t rows, width, heads, x_stride; /* rows of one token lie side by side, tokens x_stride apart */
    Float eps;
    int64_t dtype, weight_dtype;
};

/* x [rows, 2 * width] = (gate, up) -> out [rows, width]. */
struct gate_mul {
    void *out;
    const void *x;
    int64_t rows, width, x_stride, dtype, gelu;
};

/* ids, shares [rows, top_k]: the highest of softmax(x [rows, width] times weight [experts, width]). */
struct route {
    int32_t *ids;
    float *shares;
    const void *x, *weight;
    int64_t rows, width, experts, top_k, x_stride, renormalise, rounded, sigmoid, dtype, weight_dtype;
};

/* Of tokens with one route each: out = x times the share of its row; ones [rows] = 1, the shares of what comes out. */
struct weigh_inputs {
    char *out;
    float *ones;
    const char *x;
    const float *shares;
    int64_t rows, width, x_stride, dtype;
};

/* cos_sin [max_len, 2 * half]. */
struct rope {
    void *q, *k;
    const int64_t *positions;
    const float *cos_sin;
    int64_t tokens, q_heads, q_token, q_head, k_heads, k_token, k_head, half, dtype;
};

/* out [segments, width + 1]: sums of the rows of each segment; the last column counts rows that are lost. lost [rows] is
 * written on the way. */
struct token_sums {
    int64_t *out;
    int32_t *lost;
    const char *x;
    const int64_t *segment; /* [rows] */
    int64_t rows, width, x_stride, segments, dtype;
};

struct activate {
    char *out;
    const char *x;
    int64_t rows, width, x_stride, kind, dtype;
};

struct scale {
    char *out;
    const char *x;
    int64_t rows, width, x_stride;
    Float factor;
    int64_t dtype, out_dtype;
};

/* Row r of out is row r of x times factors[at[r]]. */
struct scale_rows {
    char *out;
    const char *x;
    const float *factors;
    const int64_t *at;
    int64_t rows, width, x_stride, dtype;
};

/* out [rows, width]: column i is column order[i] of x. */
struct pick_columns {
    char *out;
    const char *x;
    const int32_t *order; /* [width] */
    int64_t rows, width, x_stride, dtype;
};

/* out is float32. */
struct softcap {
    char *out;
    const char *x;
    int64_t rows, width, x_stride;
    Float cap;
    int64_t dtype;
};

struct clip {
    char *out;
    const char *x;
    int64_t rows, width, x_stride;
    Float cap;
    int64_t dtype;
};

struct add {
    char *out;
    const char *x, *y;
    int64_t rows, width, dtype;
};

/* Every row of x, and y [width]. */
struct add_bias {
    char *out;
    const char *x, *y;
    int64_t rows, width, dtype, y_dtype;
};

/* out = x + table[ids + offset], rows that must exist. */
struct add_rows {
    char *out;
    const char *x, *table;
    const int64_t *ids;
    int64_t rows, width, offset, dtype, table_dtype;
};

/* Row r of out is row at[r] of x, which must exist; strides in bytes. */
struct pick {
    char *out;
    const char *x;
    const int64_t *at;
    int64_t rows, row_bytes, x_stride;
};

/* Line l of logits, in place: -inf where its mask, line mask_of_line[l] of masks, has no bit; -1: it has no mask. */
struct token_mask {
    char *logits;
    const int32_t *masks, *mask_of_line;
    int64_t lines, vocab, logits_stride, mask_stride, dtype;
};

/* Logits of lines, in place, -inf where their rules say so: pairs [num_pairs] and first_pairs [num_first] of a line and a
 * token, times [lines, 4], as interface/speech_lines.py has them. */
struct speech_rules {
    float *logits;
    const int64_t *pairs, *first_pairs, *times, *rows, *lengths, *prompt_lens;
    const int32_t *tokens; /* [rows, token_stride] */
    int64_t lines, vocab, logits_stride, token_stride, num_pairs, num_first;
};

/* out [rows, vocab]. */
struct gumbel {
    float *out;
    const int64_t *seeds, *positions;
    int64_t seed_stride, position_stride, rows, vocab;
};

/* The highest of logits [lines, vocab] / temperature, plus noise where random, and its token id. */
struct draw {
    int32_t *tokens;
    float *peaks;
    const void *logits, *rows, *positions;
    const float *temperatures;
    const int64_t *seeds;
    const int32_t *random, *ids; /* ids [vocab]: of each column; NULL: its number */
    int64_t lines, vocab, logits_stride, temperature_stride, seed_stride, random_stride;
    int64_t dtype, row_bytes, position_bytes;
};

/* ---- adapters: entries [slots][slot_words / ENTRY_WORDS] of interface/lora_ops.py; slots [lines], below 0: none ---- */

/* Parts of y [lines, starts[parts]] += scale * x a^T b, and what else their entries say. inner [lines, parts * max_rank]
 * is theirs to write. */
struct lora_add {
    void *y;
    const float *x;     /* [lines, width]; NULL: a [ids, rank] is looked up */
    const int32_t *ids; /* [lines], where x is NULL */
    const int32_t *slots, *starts;
    const int64_t *entries;
    float *inner;
    int64_t lines, width, parts, first, num_slots, slot_words, max_rank;
    int64_t x_stride, y_stride, y_dtype;
    Float scale;
};

/* y [lines, width] = rows ids of the saved matrix, times scale. */
struct lora_saved_rows {
    void *y;
    const int32_t *ids, *slots;
    const int64_t *entries;
    int64_t lines, width, first, num_slots, slot_words, y_stride, y_dtype;
    Float scale;
};

/* y [lines, vocabulary] = x [lines, width] times the saved matrix. */
struct lora_saved_logits {
    void *y;
    const float *x;
    const int32_t *slots;
    const int64_t *entries;
    int64_t lines, width, vocabulary, first, num_slots, slot_words, x_stride, y_stride, y_dtype;
};

struct lora_token_slots {
    int32_t *out;
    const int32_t *row_slots, *rows, *query_start;
    int64_t row_stride, num_rows, num_tokens;
};

/* Where tokens stand, by the segments [num_rows, most, 5] of their rows -> out [num_tokens, 2 * half] of cos_sin. */
struct rope_turns {
    float *out;
    const float *cos_sin; /* [length, 2 * half] */
    const int32_t *axis_of, *segments, *counts, *rows, *query_start;
    const int64_t *positions;
    int64_t segment_stride, count_stride, num_rows, num_tokens, length, half;
};

/* ---- layers that keep a state, as interface/state_ops.py has them: what comes out is contiguous ---- */

typedef struct {
    const int32_t *rows, *query_start, *replayed, *certain, *kept;
    int64_t num_runs;
} Runs;

/* inputs: lines of `channels`, inputs_row elements to a row. The weight of a channel and a tap is anywhere. */
struct state_conv {
    void *out;
    const char *x, *weight, *bias; /* bias [channels] or NULL */
    char *inputs;
    Runs runs;
    int64_t channels, taps, x_stride, inputs_row, weight_channel, weight_tap, silu;
    int64_t dtype, weight_dtype, bias_dtype;
};

/* kept_inputs: x, dt and b of tokens; state_row and kept_row: elements from row to row. */
struct state_scan {
    void *out;
    const char *x, *dt, *b, *c;
    const float *a, *d, *dt_bias;
    float *state;
    char *kept_inputs;
    Runs runs;
    int64_t channels, width;
    int64_t x_stride, dt_stride, b_stride, c_stride, state_row, kept_row, dtype;
};

/* kept_inputs: x, dt and b of tokens. */
struct state_head_scan {
    void *out;
    const char *x, *dt, *b, *c;
    const float *a, *d, *dt_bias;
    float *state;
    char *kept_inputs;
    Runs runs;
    int64_t heads, size, groups, width; /* a state is [width, size] */
    int64_t x_stride, dt_stride, b_stride, c_stride, state_row, kept_row, dtype;
    Float limit_low, limit_high;
};

/* kept_inputs: v, k, decay and beta of tokens. */
struct state_delta {
    void *out;
    const char *q, *k, *v, *decay, *beta;
    const float *a, *dt_bias;
    float *state;
    char *kept_inputs;
    Runs runs;
    int64_t key_heads, heads, key, value; /* a state is [key, value] */
    int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, state_row, kept_row, dtype;
};

/* Rows of x and of the gate are strided; weight_step: elements from a group's weights to the next one's, 0 = all share. */
struct gated_norm {
    char *out;
    const char *x, *gate, *weight;
    int64_t rows, groups, width, x_stride, gate_stride, weight_step, norm_first; /* width: of a group */
    Float eps;
    int64_t dtype, weight_dtype;
};

/* By the gate as it is, by silu of it, or by its sigmoid; one_gate: of a row, else of each entry. */
struct gate {
    char *out;
    const char *x, *gate;
    int64_t rows, width, x_stride, gate_stride, silu, sigmoid, one_gate, dtype;
};

/* ---- rows from token to token ---- */

/* Columns of counters share one stride. */
typedef struct {
    int32_t *tokens, *num_computed, *min_len, *max_len, *quiet, *num_drafts, *stops;
    int64_t token_stride, column_stride, num_stops;
} RowState;

struct rows_gather {
    RowState state;
    const int32_t *rows, *query_start, *line_start;
    int32_t *ids;
    int64_t *positions;
    int32_t *seq_lens;
    int64_t *line_at;
    int32_t *line_rows, *line_lengths;
    int64_t num_rows, num_tokens;
};

struct rows_slots {
    RowState state;
    const int32_t *rows, *query_start, *line_start, *table;
    const int64_t *positions;
    int64_t *slots;
    int64_t table_stride, block_size, num_rows, num_tokens;
};

/* out [num_rows, 1 + most]: how many drafts, and these. num_tokens: that a row has room for */
struct rows_drafts {
    RowState state;
    const int32_t *rows;
    int32_t *out;
    int64_t num_rows, num_tokens, most;
};

struct rows_commit {
    RowState state;
    const int32_t *rows, *seq_lens, *line_start, *chosen;
    const float *peaks;
    int32_t *out;
    int64_t num_rows;
};

struct rows_turn {
    RowState state;
    const int32_t *rows, *out;
    int32_t *log, *control;
    int64_t log_stride, num_rows, num_lines;
};

/* What is to become of rows' states: `taken` has lines [0, last], of which the last is shared and stays as it is. */
struct rows_find_state_runs {
    RowState state;
    const int32_t *rows, *query_start, *line_start;
    int32_t *taken, *lines, *replayed, *certain, *kept;
    int64_t taken_stride, last, num_rows;
};

/* The same of a model that drafts; where it tries, the token of each row is all there is. */
struct rows_find_draft_runs {
    const int32_t *computed, *rows;
    int32_t *taken, *lines, *replayed, *certain, *kept;
    int64_t computed_stride, taken_stride, last, num_rows, tries;
};

struct rows_forget_drafts {
    int32_t *computed;
    const int32_t *taken, *rows;
    int64_t computed_stride, taken_stride, last, num_rows;
};

struct rows_copy_lines {
    char *target;
    const char *source;
    const int32_t *lines;
    int64_t line_bytes, source_layer, source_line, target_layer, target_line, num_lines, num_layers;
};

struct rows_propose {
    RowState state;
    const int32_t *rows, *line_start, *most;
    int64_t most_stride, num_rows, shortest, longest;
};

/* What a model that drafts computes after a forward of its target. */
struct rows_begin_drafts {
    const int32_t *tokens, *num_computed, *quiet;
    int32_t *computed;
    const int32_t *rows, *query_start, *line_start;
    int32_t *ids;
    int64_t *positions;
    int32_t *seq_lens;
    int64_t *line_at;
    int32_t *line_rows, *line_lengths, *line_seq_lens, *num_real;
    int64_t token_stride, column_stride, computed_stride, num_rows, num_tokens, ahead, max_len, num_ids;
};

struct rows_take_draft {
    int32_t *tokens;
    const int32_t *num_computed, *max_len, *quiet;
    int32_t *num_drafts, *computed;
    const int32_t *most, *rows, *chosen;
    const float *peaks;
    int32_t *ids; /* NULL: this draft is the last */
    int64_t *positions;
    int32_t *seq_lens, *line_lengths, *num_real;
    int64_t token_stride, column_stride, computed_stride, most_stride, num_rows, draft, ahead, longest, num_ids;
};

struct rows_draft_slots {
    const int32_t *rows, *query_start, *num_real, *table;
    const int64_t *positions;
    int64_t *slots;
    int64_t table_stride, block_size, num_rows, num_tokens;
};

/* Rows of one token each: x of it goes to place `position` modulo `room` of its row's in `kept`. */
struct rows_keep_states {
    char *kept;
    const char *x;
    const int32_t *rows;
    const int64_t *positions;
    int64_t num_rows, room, row_bytes, x_stride;
};

/* The other way: of every token of runs. */
struct rows_kept_states {
    char *out;
    const char *kept;
    const int32_t *rows, *query_start;
    const int64_t *positions;
    int64_t num_rows, room, row_bytes;
};

/* Drafts out of the row and of the texts [span[0], span[1]) of a corpus: a ring of `capacity` tokens, a power of two. */
struct suffix_propose {
    RowState state;
    const int32_t *rows, *line_start, *most, *corpus;
    const int64_t *span;
    int64_t most_stride, num_rows, capacity, depth, factor, least_share;
};

/* ---- ranks: what several processes compute together, in memory that they share (ranks/collectives.c) ---- */

/* out [count] = the sum of all ranks' x [count], in the order of ranks, in float32. */
struct all_reduce {
    void *out;
    const void *x;
    Area *shared;
    int64_t rank, count, dtype;
};

/* out [rows, out_bytes] = x [rows, row_bytes] of all ranks; those of rank r begin at min(r * row_bytes, out_bytes -
 * row_bytes), and are the same where two have the same place. */
struct all_gather {
    char *out;
    const char *x;
    Area *shared;
    int64_t rank, rows, row_bytes, out_bytes;
};

/* out [rows, row_bytes] = of line t, x [t] of the rank that has ids[t]: ids[t] / each. */
struct all_pick {
    char *out;
    const char *x;
    const int32_t *ids;
    Area *shared;
    int64_t rank, rows, row_bytes, each;
};

/* out [count] = ids [count] - first, of those in [first, first + each); 0 of others. */
struct own_ids {
    int32_t *out;
    const int32_t *ids;
    int64_t count, first, each;
};

/* As packed_experts, where ranks have tokens of their own and share `total` experts, each rank some whole ones, the
 * first ranks more: every rank's tokens come to all, and what the experts of others make of this rank's comes back. Ranks
 * may have different numbers of tokens, which they tell each other. */
struct shared_experts {
    void *y;
    const void *x;
    const int32_t *ids;
    const float *shares;
    const Expert *experts;
    Area *shared;
    int64_t rank, total, first, count, tokens, top_k, hidden, width, x_stride;
    int64_t dtype; /* of x and y: F32 or BF16 */
    int64_t gelu, isa;
};

/* Bytes to another process, and from another (ranks/links.c). */
struct link_send {
    const char *x;
    Area *link;
    int64_t bytes;
};

struct link_receive {
    char *out;
    Area *link;
    int64_t bytes;
};

#endif
