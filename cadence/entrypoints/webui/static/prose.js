/** A stretch of an answer, growing: as tokens tinted by their probability, or as read text. */
import { element } from "./dom.js";
import { render } from "./markdown.js";
import { TokenText, probability, surprise } from "./tokens.js";

const REDRAW_MS = 80;

export class Prose {
  #source = new TokenText();
  #pieces = [];
  #asTokens;
  #timer = 0;

  constructor(asTokens) {
    this.#asTokens = asTokens;
    this.node = element("div", "body");
    this.node.tabIndex = 0;
    this.#look();
  }

  get text() {
    return this.#source.text;
  }

  add(text, tokens) {
    this.#source.addTokens(tokens);
    this.#source.addText(text);
    this.#append(this.#source.take());
  }

  finish() {
    this.#append(this.#source.finish());
    if (!this.#asTokens) this.#redraw();
  }

  show(asTokens) {
    this.#asTokens = asTokens;
    this.#look();
    this.#redraw();
  }

  #look() {
    this.node.classList.toggle("tokens", this.#asTokens);
  }

  #append(pieces) {
    this.#pieces.push(...pieces);
    if (this.#asTokens) this.node.append(...pieces.map(span));
    else if (pieces.length) this.#timer ||= setTimeout(() => this.#redraw(), REDRAW_MS);
  }

  #redraw() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.node.replaceChildren(...(this.#asTokens ? this.#pieces.map(span) : render(this.text)));
  }
}

function span({ text, tokens }) {
  if (!tokens.length) return document.createTextNode(text);
  const node = element("span", `token p${surprise(probability(tokens))}`, text);
  node.tokens = tokens;
  return node;
}
