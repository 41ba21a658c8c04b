/** What the last minute looked like: totals since the start become rates and series. */
export const SPAN = 60; // seconds
export const STEPS = 120; // steps kept
const WINDOW = 1.5; // seconds over which tokens are averaged

export class History {
  #totals = []; // { time, tokens }
  #last = null;
  #drafts = []; // { time, drafts }: totals of the last minute
  rates = []; // { time, value }, tokens per second
  firsts = []; // { time, value }, mean seconds to first token of the requests that began since the point before
  steps = []; // seconds, oldest first

  add(state) {
    const last = this.#last;
    if (last && (state.generated_tokens < last.generated_tokens || state.steps.count < last.steps.count)) this.#restart();
    this.#rate(state);
    this.#firstToken(state);
    this.#steps(state);
    this.#draftTotals(state);
    this.#last = state;
    for (const series of [this.rates, this.firsts]) {
      while (series.length && series[0].time < state.time - SPAN - 1) series.shift();
    }
  }

  get now() {
    return this.#last?.time ?? 0;
  }

  /** Drafts by position: those of the last minute, or, where there were none, of all time. */
  get drafts() {
    const [begin, end] = [this.#drafts[0]?.drafts, this.#drafts.at(-1)?.drafts];
    if (!end?.forwards) return null;
    const recent = end.forwards > begin.forwards;
    const since = (totals, before) => totals.map((total, place) => total - (recent ? before[place] ?? 0 : 0));
    return { recent, drafted: since(end.drafted, begin.drafted), accepted: since(end.accepted, begin.accepted) };
  }

  get rate() {
    return this.rates.at(-1)?.value ?? 0;
  }

  /** A new engine for the same page: its totals begin at zero again. */
  #restart() {
    this.#totals = [];
    this.#drafts = [];
    this.#last = null;
  }

  #rate({ time, generated_tokens: tokens }) {
    this.#totals.push({ time, tokens });
    while (this.#totals.length > 2 && this.#totals[1].time <= time - WINDOW) this.#totals.shift();
    const begin = this.#totals[0];
    if (time > begin.time) this.rates.push({ time, value: (tokens - begin.tokens) / (time - begin.time) });
  }

  #firstToken({ time, first_token: first }) {
    const begin = this.#last?.first_token ?? first;
    const count = first.count - begin.count;
    if (count > 0) this.firsts.push({ time, value: (first.sum - begin.sum) / count });
  }

  #draftTotals({ time, drafts }) {
    this.#drafts.push({ time, drafts });
    while (this.#drafts[0].time < time - SPAN) this.#drafts.shift();
  }

  #steps({ steps }) {
    const fresh = this.#last ? steps.count - this.#last.steps.count : steps.seconds.length;
    if (fresh > 0) this.steps = [...this.steps, ...steps.seconds.slice(-fresh)].slice(-STEPS);
  }
}

export function quantile(values, share) {
  if (!values.length) return NaN;
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
