/** The table of running and waiting requests. Rows are kept while their request lives. */
import { byId, element, setText } from "./dom.js";

export class RequestTable {
  #body = byId("requests");
  #palette;
  #rows = new Map(); // request id -> row

  constructor(palette, onPoint) {
    this.#palette = palette;
    this.#body.addEventListener("pointerover", (event) => onPoint(event.target.closest("tr")?.dataset.id ?? ""));
    this.#body.addEventListener("pointerleave", () => onPoint(""));
  }

  update(state, mine) {
    const living = [
      ...state.running.map((request) => [request, "running"]),
      ...state.waiting.map((request) => [request, "waiting"]),
    ];
    const ids = new Set(living.map(([request]) => request.request_id));
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.#rows.delete(id);
    }
    living.forEach(([request, mood], index) => this.#place(this.#row(request, mood, mine), index));
    const hidden = state.num_running + state.num_waiting - living.length;
    const note = byId("no-requests");
    note.hidden = living.length > 0 && hidden === 0;
    setText(note, hidden ? `and ${hidden} more` : "No request is running or waiting.");
  }

  #place(row, index) {
    if (this.#body.children[index] !== row) this.#body.insertBefore(row, this.#body.children[index] ?? null);
  }

  #row(request, mood, mine) {
    const id = request.request_id;
    if (!this.#rows.has(id)) this.#rows.set(id, blank(id));
    const row = this.#rows.get(id);
    const [name, state, prompt, output, computed, preempted] = row.children;
    const total = request.prompt_tokens + request.output_tokens;
    const share = total ? Math.min(1, request.computed_tokens / total) : 0;
    name.firstChild.style.background = mood === "running" ? this.#palette.request(id) : "transparent";
    const own = Boolean(mine) && id.includes(mine);
    row.classList.toggle("mine", own);
    setText(state, own ? `${mood}, yours` : mood);
    setText(prompt, String(request.prompt_tokens));
    setText(output, String(request.output_tokens));
    computed.firstChild.value = share;
    computed.firstChild.textContent = `${Math.round(share * 100)} %`;
    computed.title = `${request.computed_tokens} of ${total} tokens`;
    setText(preempted, String(request.num_preemptions));
    return row;
  }
}

function blank(id) {
  const name = element("td", "name", element("i", "dot"), element("span", "", id));
  name.title = id;
  const bar = element("progress");
  bar.max = 1;
  const numbers = () => element("td", "number");
  const row = element("tr", "", name, element("td", "soft"), numbers(), numbers(), element("td", "", bar), numbers());
  row.dataset.id = id;
  return row;
}
