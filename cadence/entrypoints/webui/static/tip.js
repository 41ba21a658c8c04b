/** The card beside a token: how likely it was, and what else the model thought of. */
import { byId, element } from "./dom.js";

const VISIBLE = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };

export class TokenTip {
  #card = byId("tip");
  #shown = null;

  /** Spans carry their tokens in `span.tokens`; pointer and arrow keys move over those inside `root`. */
  watch(root) {
    root.addEventListener("pointerover", (event) => this.#point(event.target.closest?.(".token")));
    root.addEventListener("pointerleave", () => this.hide());
    root.addEventListener("scroll", () => this.hide(), true);
    root.addEventListener("focusout", () => this.hide());
    root.addEventListener("keydown", (event) => this.#walk(event));
  }

  hide() {
    this.#shown?.classList.remove("pointed");
    this.#shown = null;
    this.#card.hidden = true;
  }

  #point(span) {
    if (!span?.tokens?.length) return this.hide();
    if (span !== this.#shown) this.#show(span);
  }

  #walk(event) {
    const body = event.target.closest?.(".body");
    if (!body || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const spans = [...body.querySelectorAll(".token")];
    const step = event.key === "ArrowRight" ? 1 : -1;
    const at = spans.indexOf(this.#shown);
    const next = spans[at < 0 ? (step > 0 ? 0 : spans.length - 1) : at + step];
    if (next) this.#show(next);
    event.preventDefault();
  }

  #show(span) {
    this.hide();
    this.#shown = span;
    span.classList.add("pointed");
    this.#card.replaceChildren(...span.tokens.map(entry));
    this.#card.hidden = false;
    this.#place(span.getClientRects()[0] ?? span.getBoundingClientRect());
  }

  #place(box) {
    const { width, height } = this.#card.getBoundingClientRect();
    const below = box.bottom + 8;
    const top = below + height < innerHeight ? below : Math.max(8, box.top - height - 8);
    const left = Math.min(Math.max(8, box.left), innerWidth - width - 8);
    this.#card.style.top = `${top}px`;
    this.#card.style.left = `${left}px`;
  }
}

function entry(token) {
  const rows = alternatives(token).map((other) => row(other, other.token === token.token));
  const note = token.drafted ? [element("p", "drafted", "drafted, and kept")] : [];
  const chosen = element("p", "chosen", readable(token.token), element("b", "", percent(token)));
  return element("div", "entry", chosen, ...note, ...rows);
}

function alternatives(token) {
  const others = token.top_logprobs ?? [];
  const listed = others.some((other) => other.token === token.token);
  return (listed ? others : [...others, token]).toSorted((a, b) => b.logprob - a.logprob);
}

function row(token, chosen) {
  const fill = element("i");
  fill.style.width = `${Math.max(1, Math.exp(token.logprob) * 100)}%`;
  const text = element("span", "text", readable(token.token));
  return element("div", chosen ? "row is-chosen" : "row", text, element("span", "track", fill), element("span", "share", percent(token)));
}

function percent({ logprob }) {
  const value = Math.exp(logprob) * 100;
  return value >= 99.95 ? "100 %" : value < 0.05 ? "< 0.1 %" : `${value.toFixed(1)} %`;
}

function readable(text) {
  const shown = text.replace(/[\n\t\r]|^ +| +$/g, (found) => [...found].map((char) => VISIBLE[char]).join(""));
  return shown || "(nothing)";
}
