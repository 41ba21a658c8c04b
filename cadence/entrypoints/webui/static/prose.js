/** A stretch of an answer, growing: as read text, or as tokens tinted by their probability where these are known. */
import { element } from "./dom.js";
import { ReadingView } from "./reading.js";
import { TokenText, probability, surprise } from "./tokens.js";

export class Prose {
  #source = new TokenText();
  #pieces = [];
  #drawn = 0; // pieces that are on the page, in the view of tokens
  #reading = null; // the view of read text
  #wantsTokens;
  #over = false;

  constructor(wantsTokens) {
    this.#wantsTokens = wantsTokens;
    this.node = element("div", "body");
    this.show(wantsTokens);
  }

  get text() {
    return this.#source.text;
  }

  /** Text that was kept: over, and without its tokens. */
  static of(text) {
    const prose = new Prose(false);
    prose.add(text, []);
    prose.finish();
    return prose;
  }

  add(text, tokens) {
    this.#source.addTokens(tokens);
    this.#source.addText(text);
    this.#pieces.push(...this.#source.take());
  }

  finish() {
    this.#pieces.push(...this.#source.finish());
    this.#over = true;
    if (this.#asTokens === this.#showsTokens) this.draw();
    else this.show(this.#wantsTokens);
  }

  show(wantsTokens) {
    this.#wantsTokens = wantsTokens;
    this.node.replaceChildren();
    this.node.classList.toggle("tokens", this.#asTokens);
    this.node.tabIndex = this.#asTokens ? 0 : -1;
    this.#drawn = 0;
    this.#reading = this.#asTokens ? null : new ReadingView(this.node);
    this.draw();
  }

  /** Brings the page up to date. */
  draw() {
    if (this.#reading) return this.#over ? this.#reading.finish(this.text) : this.#reading.draw(this.text);
    this.node.append(...this.#pieces.slice(this.#drawn).map(span));
    this.#drawn = this.#pieces.length;
  }

  get #showsTokens() {
    return this.#reading === null;
  }

  /** Once the text is over and no token of it is known, it is read. */
  get #asTokens() {
    return this.#wantsTokens && (!this.#over || this.#pieces.some((piece) => piece.tokens.length));
  }
}

function span({ text, tokens }) {
  if (!tokens.length) return document.createTextNode(text);
  const drafted = tokens.some((token) => token.drafted) ? " drafted" : "";
  const node = element("span", `token p${surprise(probability(tokens))}${drafted}`, text);
  node.tokens = tokens;
  return node;
}
