/**
 * Which token wrote which stretch of the text.
 *
 * The text is the truth. Tokens may say more than the text shows (an end token, a stop string that was cut) or come
 * before it (a character of several tokens, text held back); a token is placed when the text reaches it.
 */
const FAR = 64; // characters of text without a token of its own that are passed over to find the next token's

export class TokenText {
  #decoder = new TextDecoder();
  #held = []; // tokens whose bytes end inside a character
  #queue = []; // pieces not placed yet: { text, tokens }
  #text = "";
  #cursor = 0;

  get text() {
    return this.#text;
  }

  addTokens(tokens) {
    for (const token of tokens) {
      this.#held.push(token);
      const text = token.bytes ? this.#decoder.decode(new Uint8Array(token.bytes), { stream: true }) : token.token;
      if (!text) continue;
      this.#queue.push({ text, tokens: this.#held });
      this.#held = [];
    }
  }

  addText(text) {
    this.#text += text;
  }

  /** The pieces that can be shown now, in order: { text, tokens }, with no tokens where none is known. */
  take() {
    const pieces = [];
    while (this.#queue.length && this.#place(pieces));
    if (!this.#queue.length) this.#emit(pieces, this.#text.length, []);
    return pieces;
  }

  /** What is left once nothing more comes. */
  finish() {
    const pieces = this.take();
    const ahead = this.#text.slice(this.#cursor);
    const next = this.#queue.shift();
    this.#queue = [];
    this.#emit(pieces, this.#text.length, next?.text.startsWith(ahead) ? next.tokens : []);
    return pieces;
  }

  /** True when the first piece was placed or given up, false when it waits for more text. */
  #place(pieces) {
    const { text, tokens } = this.#queue[0];
    const ahead = this.#text.slice(this.#cursor);
    const shapes = this.#cursor === 0 ? [text, text.trimStart()].filter(Boolean) : [text];
    const shape = shapes.find((candidate) => ahead.startsWith(candidate));
    if (shape === undefined && shapes.some((candidate) => candidate.startsWith(ahead))) return false;
    this.#queue.shift();
    if (shape !== undefined) {
      this.#emit(pieces, this.#cursor + shape.length, tokens);
      return true;
    }
    const found = ahead.slice(0, FAR + text.length).indexOf(text);
    if (found > 0) {
      this.#emit(pieces, this.#cursor + found, []);
      this.#emit(pieces, this.#cursor + text.length, tokens);
    }
    return true;
  }

  #emit(pieces, end, tokens) {
    if (end > this.#cursor) pieces.push({ text: this.#text.slice(this.#cursor, end), tokens });
    this.#cursor = end;
  }
}

/** The piece's probability: that of all its tokens together. */
export function probability(tokens) {
  return Math.exp(tokens.reduce((sum, token) => sum + (token.logprob ?? 0), 0));
}

const STEPS = [0.9, 0.7, 0.45, 0.2, 0.05];

/** 0 (near certain) to 5 (a surprise). */
export function surprise(value) {
  const step = STEPS.findIndex((bound) => value >= bound);
  return step < 0 ? STEPS.length : step;
}
