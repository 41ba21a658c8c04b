/** The live view: asks the engine how it is, twice a second while anyone looks, and draws the answer. */
import { getJson } from "./api.js";
import { BlockMap } from "./blockmap.js";
import { Chart } from "./chart.js";
import { byId, element, setText } from "./dom.js";
import { percent, plain, seconds } from "./format.js";
import { History, SPAN, STEPS, quantile } from "./history.js";
import { Palette } from "./palette.js";
import { RequestTable } from "./requests.js";

const EVERY_MS = 500;
const AFTER_FAILURE_MS = 2500;
const PATIENCE_MS = 10000;

export class EngineView {
  #palette = new Palette(() => this.#draw());
  #history = new History();
  #state = null;
  #timer = 0;
  #asking = false;
  #seen = null; // when the server last answered
  #mine;
  #models;
  #followed = ""; // the model, and the load of it, that the figures are of
  #map = new BlockMap(byId("blocks"), this.#palette, (block) => this.#point(block));
  #table = new RequestTable(this.#palette, (id) => this.#map.light(id));
  #rate = new Chart(byId("chart-rate"), this.#palette, plain);
  #first = new Chart(byId("chart-first"), this.#palette, seconds);
  #step = new Chart(byId("chart-step"), this.#palette, seconds);
  #kept = new Chart(byId("chart-drafts"), this.#palette, percent);

  /** `mine` tells the id of this page's own request, `models` which engine is looked at. */
  constructor(mine, models) {
    this.#mine = mine;
    this.#models = models;
    legend();
    document.addEventListener("visibilitychange", () => this.ask());
    new ResizeObserver(() => this.#draw()).observe(byId("engine"));
  }

  /** Of another model, or another load of it, the figures begin anew. */
  follow({ id, loads }) {
    const followed = `${id} ${loads?.count ?? ""}`;
    if (this.#followed && this.#followed !== followed) {
      this.#history = new History();
      this.ask();
    }
    this.#followed = followed;
  }

  /** Asks now, and again and again while the page is visible. */
  async ask() {
    clearTimeout(this.#timer);
    if (document.visibilityState !== "visible" || this.#asking) return;
    this.#asking = true;
    let pause = EVERY_MS;
    try {
      if (this.#models.absence) this.#miss(this.#models.absence);
      else this.#take(await getJson(this.#models.enginePath, AbortSignal.timeout(PATIENCE_MS)));
    } catch (error) {
      status(error.status === 401 ? "Needs an API key" : error.message, "bad");
      this.#setStale(true);
      pause = AFTER_FAILURE_MS;
    }
    this.#asking = false;
    this.#timer = setTimeout(() => this.ask(), pause);
  }

  /** The model's engine is not there. */
  #miss(absence) {
    status(absence, "wait");
    this.#setStale(true);
  }

  #take(state) {
    this.#state = state;
    this.#seen = new Date();
    this.#setStale(false);
    this.#history.add(state);
    this.#palette.settle(state.running.map((request) => request.request_id));
    const busy = state.num_running + state.num_waiting > 0;
    status(busy ? "Working" : "Idle", busy ? "busy" : "good");
    this.#draw();
  }

  /** Figures of a server that does not answer are shown as what they are: old. */
  #setStale(stale) {
    byId("engine").classList.toggle("stale", stale);
    const since = this.#seen ? `No answer since ${this.#seen.toLocaleTimeString()}; these figures are old.` : "No answer yet.";
    setText(byId("stale-note"), stale ? since : "");
  }

  #draw() {
    const state = this.#state;
    if (!state) return;
    this.#tiles(state);
    this.#engines(state.engines);
    this.#states(state.states, state.blocks);
    this.#map.update(state.blocks, state.running);
    this.#table.update(state, this.#mine());
    this.#charts();
  }

  #tiles({ num_running: running, num_waiting: waiting, blocks, kv_usage: usage, prefix, preemptions }) {
    const hits = prefix.queries ? `${Math.round((100 * prefix.hits) / prefix.queries)} %` : "–";
    setText(byId("tile-rate"), plain(this.#history.rate));
    setText(byId("tile-running"), String(running));
    setText(byId("tile-waiting"), String(waiting));
    setText(byId("tile-kv"), noBlocks(blocks) ? "–" : `${(100 * usage).toFixed(usage < 0.1 ? 1 : 0)} %`);
    setText(byId("tile-prefix"), hits);
    setText(byId("tile-preemptions"), String(preemptions));
    const map = noBlocks(blocks) ? "no KV blocks: no layer has attention" : `${blocks.count} blocks of ${blocks.size} tokens: ${blocks.held} held, ${blocks.cached} cached, ${blocks.free} free`;
    setText(byId("engine-note"), map);
    byId("blocks").setAttribute("aria-label", map);
  }

  /** A line of each engine, where there are several. */
  #engines(engines) {
    const line = ({ num_running: running, num_waiting: waiting, kv_usage: usage }, number) =>
      `Engine ${number}: ${running} running, ${waiting} waiting, ${(100 * usage).toFixed(0)} % of its KV blocks`;
    byId("engines-note").hidden = engines.length < 2;
    setText(byId("engines-note"), engines.map(line).join(" · "));
  }

  /** What layers keep of requests beside keys, or in their place: then there are no blocks. */
  #states(states, blocks) {
    byId("states-note").hidden = !states;
    byId("block-map").hidden = noBlocks(blocks);
    if (!states) return;
    const { rows, running, slots, used, restored } = states;
    const kept = slots ? ` · ${used} of ${slots} snapshots kept, ${restored} requests went on from one` : "";
    setText(byId("states-note"), `States: ${running} of ${rows} in use${kept}`);
  }

  #charts() {
    const { rates, firsts, steps, now } = this.#history;
    this.#rate.line(rates, now, SPAN);
    this.#first.dots(firsts, now, SPAN);
    this.#step.bars(steps, STEPS);
    setText(byId("now-rate"), plain(this.#history.rate));
    setText(byId("now-first"), firsts.length ? seconds(firsts.at(-1).value) : "");
    const spread = `median ${seconds(quantile(steps, 0.5))}, 99th percentile ${seconds(quantile(steps, 0.99))}`;
    setText(byId("now-step"), steps.length ? spread : "");
    this.#drafts(this.#history.drafts);
    byId("chart-rate").setAttribute("aria-label", `Tokens per second: now ${plain(this.#history.rate)}`);
    byId("chart-step").setAttribute("aria-label", `Step time: ${steps.length ? spread : "no steps yet"}`);
  }

  /** What share of the drafts at each place was kept; nothing where the engine makes none. */
  #drafts(drafts) {
    byId("drafts").hidden = !drafts;
    if (!drafts) return;
    const { drafted, accepted, recent } = drafts;
    const shares = drafted.map((count, place) => (count ? accepted[place] / count : 0));
    const sum = (counts) => counts.reduce((total, count) => total + count, 0);
    const all = `${percent(sum(accepted) / Math.max(1, sum(drafted)))} of ${sum(drafted)} drafts, ${recent ? "last minute" : "since the start"}`;
    this.#kept.columns(shares, "first draft", shares.length > 1 ? `draft ${shares.length}` : "");
    setText(byId("now-drafts"), all);
    byId("chart-drafts").setAttribute("aria-label", `Drafts kept, by position: ${shares.map(percent).join(", ")}`);
  }

  #point(block) {
    if (!block) {
      this.#map.light("");
      return setText(byId("block-note"), "Point at a block to see who holds it.");
    }
    const name = block.first === block.last ? `Block ${block.first}` : `Blocks ${block.first} to ${block.last}`;
    const fate = { "": "free" }[block.owner] ?? (block.owner === null ? "cached, free to take" : `held by ${block.owner}`);
    setText(byId("block-note"), `${name}: ${fate}`);
    this.#map.light(block.owner ?? "");
  }
}

/** But the one that no request holds. */
function noBlocks(blocks) {
  return blocks.count < 2;
}

function legend() {
  const entry = (property, label) => {
    const swatch = element("i", "swatch");
    swatch.style.background = `var(${property})`;
    return element("span", "", swatch, label);
  };
  byId("legend").append(entry("--held", "held, a colour per request"), entry("--cached", "cached"), entry("--free", "free"));
}

function status(text, mood) {
  const node = byId("status");
  setText(node, text);
  node.dataset.mood = mood;
}
