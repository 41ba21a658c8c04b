/** A few texts, how similar every two of them are, and where they lie. */
import { postJson } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { Palette } from "./palette.js";
import { places, range, similarities } from "./similarity.js";
import { TextMap } from "./textmap.js";

const MOST = 32; // texts

export class EmbedView {
  #askForKey;
  #map;
  #texts = [];
  #asked = null; // aborts the request under way

  constructor(askForKey) {
    this.#askForKey = askForKey;
    const palette = new Palette(() => this.#map.draw());
    this.#map = new TextMap(byId("embed-map"), palette, (number) => this.#point(number));
    byId("embed-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#embed();
    });
    byId("embed-heat").addEventListener("pointerover", (event) => this.#pointCell(event.target));
    byId("embed-heat").addEventListener("pointerleave", () => this.#map.light([]));
  }

  async #embed() {
    this.#asked?.abort();
    const lines = byId("embed-texts").value.split("\n").map((line) => line.trim()).filter(Boolean);
    const texts = lines.slice(0, MOST);
    if (!texts.length) return this.#fail("Write a text on each line.");
    const asked = (this.#asked = new AbortController());
    const began = performance.now();
    setText(byId("embed-note"), "Embedding…");
    try {
      const answer = await postJson("v1/embeddings", { model: byId("model").value, input: texts }, asked.signal);
      const left = lines.length - texts.length;
      this.#show(texts, answer, performance.now() - began, left);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 401) this.#askForKey();
      this.#fail(error.message);
    }
  }

  #show(texts, answer, milliseconds, left) {
    this.#texts = texts;
    const vectors = answer.data.map((one) => one.embedding);
    const rows = similarities(vectors);
    const [least, most] = range(rows);
    byId("embed-error").hidden = true;
    byId("embed-pictures").hidden = false;
    const size = `${texts.length} texts · ${answer.usage.prompt_tokens} tokens · ${vectors[0].length} dimensions`;
    setText(byId("embed-note"), `${size} · ${Math.round(milliseconds)} ms${left ? ` · ${left} more lines left out` : ""}`);
    setText(byId("embed-range"), texts.length > 1 ? `${shown(least)} to ${shown(most)}` : "");
    byId("embed-heat").replaceChildren(head(texts), body(texts, rows, least, most));
    this.#map.update(texts, places(rows));
  }

  #fail(message) {
    setText(byId("embed-note"), "");
    setText(byId("embed-error"), message);
    byId("embed-error").hidden = false;
    byId("embed-pictures").hidden = true;
  }

  #point(number) {
    setText(byId("embed-point"), number < 0 ? "Point at a dot to read its text." : `${number + 1} ${this.#texts[number]}`);
    this.#map.light(number < 0 ? [] : [number]);
    for (const cell of byId("embed-heat").querySelectorAll("td")) {
      cell.classList.toggle("lit", number >= 0 && pairOf(cell).includes(number));
    }
  }

  #pointCell(target) {
    if (target.tagName === "TD") this.#map.light(pairOf(target));
  }
}

function head(texts) {
  const numbers = texts.map((_, number) => heading("col", String(number + 1)));
  return element("thead", "", element("tr", "", element("td"), ...numbers));
}

function body(texts, rows, least, most) {
  const lines = rows.map((row, number) => {
    const cells = row.map((value, other) => cell(value, number, other, share(value, least, most)));
    return element("tr", "", heading("row", `${number + 1} ${texts[number]}`), ...cells);
  });
  return element("tbody", "", ...lines);
}

function heading(scope, text) {
  const node = element("th", "", text);
  node.scope = scope;
  node.title = text;
  return node;
}

function cell(value, number, other, depth) {
  const node = element("td", "", shown(value));
  node.style.setProperty("--share", depth.toFixed(3));
  node.dataset.pair = `${number} ${other}`;
  return node;
}

const pairOf = (node) => (node.dataset.pair ?? "").split(" ").filter(Boolean).map(Number);

/** Without the sign of a zero. */
const shown = (value) => (Math.round(value * 100) / 100 || 0).toFixed(2);

/** 0 for the least similar two, 1 for the most similar, and for a text and itself. */
function share(value, least, most) {
  return most > least ? Math.min(1, Math.max(0, (value - least) / (most - least))) : 1;
}
