/** Texts as numbered dots on a plane. */
import { prepare } from "./canvas.js";

const HEIGHT = 260;
const MARGIN = 26;
const RADIUS = 5;
const NEAR = 18; // pixels from a dot that still point at it
const PER_CHARACTER = 20; // pixels of the map for each character of a label

export class TextMap {
  #canvas;
  #palette;
  #texts = [];
  #places = []; // [x, y] from -1 to 1
  #dots = []; // [x, y] in pixels, as drawn
  #lit = [];

  /** onPoint is called with the number of the dot that is pointed at, or -1. */
  constructor(canvas, palette, onPoint) {
    this.#canvas = canvas;
    this.#palette = palette;
    canvas.addEventListener("pointermove", (event) => onPoint(this.#at(event)));
    canvas.addEventListener("pointerleave", () => onPoint(-1));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  update(texts, places) {
    this.#texts = texts;
    this.#places = places;
    this.#lit = [];
    this.draw();
  }

  light(numbers) {
    this.#lit = numbers;
    this.draw();
  }

  draw() {
    const area = prepare(this.#canvas, HEIGHT);
    if (!area) return;
    const { pen, width } = area;
    const scale = [width / 2 - MARGIN, HEIGHT / 2 - MARGIN];
    this.#dots = this.#places.map(([x, y]) => [width / 2 + x * scale[0], HEIGHT / 2 + y * scale[1]]);
    pen.font = `12px ${this.#palette.theme("--sans")}`;
    pen.textBaseline = "middle";
    this.#dots.forEach(([x, y], number) => {
      const lit = this.#lit.includes(number);
      pen.fillStyle = this.#palette.theme(lit ? "--bad" : "--accent");
      pen.beginPath();
      pen.arc(x, y, lit ? RADIUS + 2 : RADIUS, 0, 2 * Math.PI);
      pen.fill();
      const right = x > width / 2; // labels stay inside
      pen.textAlign = right ? "right" : "left";
      pen.fillStyle = this.#palette.theme("--ink");
      pen.fillText(`${number + 1} ${short(this.#texts[number], width / PER_CHARACTER)}`, x + (right ? -10 : 10), y);
    });
  }

  #at(event) {
    const far = this.#dots.map(([x, y]) => Math.hypot(x - event.offsetX, y - event.offsetY));
    const nearest = far.indexOf(Math.min(...far));
    return far[nearest] <= NEAR ? nearest : -1;
  }
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
