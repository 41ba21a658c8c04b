/* Runs of tokens as a whole. */
#include "states/states.h"

int64_t tokens_of(const Runs *runs) {
    int64_t tokens = 0;
    for (int64_t r = 0; r < runs->num_runs; r++) tokens += (int64_t)runs->replayed[r] + runs->certain[r] + runs->kept[r];
    return tokens;
}

static void keep_runs(void *work, int64_t begin, int64_t end, int64_t thread) {
    const Inputs *in = work;
    const int64_t size = element_size(in->dtype), width = line_width(in);
    for (int64_t r = begin; r < end; r++) {
        Run run = run_of(in->runs, r);
        for (int64_t at = 0; at < run.kept; at++) {
            char *line = in->kept + (run.row * in->kept_row + at * width) * size;
            for (int i = 0; i < in->num_inputs; i++) {
                memcpy(line, input_of(in, &run, i, run.replayed + run.certain + at), (size_t)(in->inputs[i].width * size));
                line += in->inputs[i].width * size;
            }
        }
    }
}

void keep_inputs(const Inputs *in) {
    int64_t kept = 0;
    for (int64_t r = 0; r < in->runs->num_runs; r++) kept += in->runs->kept[r];
    if (kept) share_rows(in->runs->num_runs, line_width(in), keep_runs, (void *)in);
}

static void copy_lines(Place to, Place from, int64_t lines, int64_t lanes) {
    for (int64_t i = 0; i < lines; i++)
        memcpy(to.at + i * to.stride, from.at + i * from.stride, (size_t)lanes * 4);
}

void walk(Walker *walker, void *tile, const Run *run, Place table, Place own, int64_t lines, int64_t lanes) {
    const int whole = lanes == own.stride;
    int64_t certain = run->replayed + run->certain, all = certain + run->kept;
    Place from = whole ? table : own;
    if (!all) return;
    uint64_t mode = flush_small_numbers();
    if (!whole) {
        memset(own.at, 0, (size_t)(lines * own.stride) * 4);
        copy_lines(own, table, lines, lanes);
    }
    for (int64_t at = 0, count; at < certain; at += count) {
        count = min64(STRIP, certain - at);
        Place to = whole && at + count == certain ? table : own;
        walker(tile, run, at, count, from, to);
        from = to;
    }
    if (!whole && certain) copy_lines(table, own, lines, lanes);
    for (int64_t at = certain, count; at < all; at += count) {
        count = min64(STRIP, all - at);
        walker(tile, run, at, count, from, own);
        from = own;
    }
    set_float_mode(mode);
}
