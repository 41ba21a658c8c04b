/**
 * An answer as read text, while it grows. Blocks that are over are built once and left alone; the last one is built
 * anew while it is short, and merely appended to when it is long or code: a drawing costs about as much as what is new.
 */
import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import { blocks, build, closes, openFence, render } from "./markdown.js";

const REBUILT = 8000; // characters of an unfinished block up to which it is built anew

export class ReadingView {
  #node;
  #settled = 0; // characters of the text in blocks that are over
  #shown = 0; // characters of the text that are drawn
  #draft = []; // nodes of the block that may still grow
  #tail = null; // the text node at its end that new text is appended to
  #mark = ""; // the fence of the code that the tail is in
  #opening = []; // the first lines of the block that the tail is in

  constructor(node) {
    this.#node = node;
  }

  /** `text` is all there is so far: what it was before, and more. */
  draw(text) {
    if (this.#tail && this.#goesOn(text)) this.#tail.appendData(text.slice(this.#shown));
    else this.#rebuild(text);
    this.#shown = text.length;
  }

  /** Once nothing more comes: the last block is built for good. */
  finish(text) {
    this.#settle(text);
    this.#place(render(text.slice(this.#settled)));
    this.#shown = text.length;
  }

  #rebuild(text) {
    this.#settle(text);
    const rest = text.slice(this.#settled);
    const lines = rest.split("\n");
    const found = blocks(lines);
    const fence = found.length === 1 ? openFence(lines.slice(found[0].from)) : null;
    if (fence) this.#openCode(lines.slice(found[0].from + 1), fence);
    else if (rest.length > REBUILT && this.#draft.length) this.#openText(text, lines.slice(found.at(-1).from));
    else this.#place(render(rest));
  }

  /** Builds the blocks that further lines can no longer change: all but the last of those in whole lines. */
  #settle(text) {
    const end = text.lastIndexOf("\n");
    if (end < this.#settled) return;
    const lines = text.slice(this.#settled, end).split("\n");
    const found = blocks(lines);
    if (found.length < 2) return;
    this.#place([]);
    this.#node.append(...found.slice(0, -1).map((block) => build(block, lines)));
    this.#settled += lines.slice(0, found.at(-1).from).reduce((sum, line) => sum + line.length + 1, 0);
  }

  /** Whether the tail's block goes on, by the lines that are new or have grown. Mistakes last until `finish`. */
  #goesOn(text) {
    const from = text.lastIndexOf("\n", this.#shown - 1) + 1;
    const lines = text.slice(from).split("\n");
    if (this.#mark) return !lines.some((line) => closes(line, this.#mark));
    return blocks([...this.#opening, ...lines.slice(0, -1)]).length < 2;
  }

  #openCode(lines, { mark, language }) {
    const box = codeBlock(lines.join("\n"), language);
    this.#place([box]);
    if (!lines.length) return; // its first line may still grow
    this.#mark = mark;
    this.#tail = box.querySelector("code").lastChild;
  }

  /** What comes next in a long block is shown as it is, until the block is over. */
  #openText(text, lines) {
    if (this.#draft.at(-1).tagName !== "P") this.#draft.push(this.#node.appendChild(element("p")));
    this.#tail = this.#draft.at(-1).appendChild(document.createTextNode(text.slice(this.#shown)));
    this.#opening = lines.slice(0, 2);
  }

  #place(nodes) {
    this.#draft.forEach((node) => node.remove());
    this.#draft = nodes;
    this.#tail = null;
    this.#mark = "";
    this.#node.append(...nodes);
  }
}
