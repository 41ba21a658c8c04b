/** The KV cache as a field of small squares: one block each, or several where there are too many to draw. */
import { prepare } from "./canvas.js";

const FREE = 0;
const CACHED = 1;
const FIRST_OWNER = 2;
const SIZES = [13, 11, 9, 7, 6, 5, 4, 3, 2]; // of a square with its gap, largest that fits wins
const HEIGHT = 190; // most it takes up, in pixels

export class BlockMap {
  #canvas;
  #palette;
  #owners = []; // by block id: "" free, null cached, or a request's id
  #layout = { columns: 1, size: 13, each: 1 };
  #lit = ""; // id of the request that stands out

  constructor(canvas, palette, onPoint) {
    this.#canvas = canvas;
    this.#palette = palette;
    canvas.addEventListener("pointermove", (event) => onPoint(this.#at(event)));
    canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  update(blocks, running) {
    this.#owners = unpack(blocks.runs, running);
    this.draw();
  }

  light(id) {
    if (id === this.#lit) return;
    this.#lit = id;
    this.draw();
  }

  draw() {
    const { size, each, columns } = (this.#layout = arrange(this.#owners.length, this.#canvas.clientWidth));
    const squares = Math.ceil(this.#owners.length / each);
    const area = prepare(this.#canvas, Math.max(1, Math.ceil(squares / columns)) * size);
    if (!area) return;
    const gap = size > 7 ? 2 : size > 3 ? 1 : 0;
    for (let square = 0; square < squares; square += 1) {
      const owner = this.#owner(square, each);
      area.pen.fillStyle = this.#colour(owner);
      area.pen.globalAlpha = this.#lit && owner !== this.#lit ? 0.25 : 1;
      const [x, y] = [(square % columns) * size, Math.floor(square / columns) * size];
      area.pen.fillRect(x, y, size - gap, size - gap);
    }
  }

  /** A square of several blocks shows the first that is held, else the first that is cached. */
  #owner(square, each) {
    const owners = each === 1 ? [this.#owners[square]] : this.#owners.slice(square * each, (square + 1) * each);
    return owners.find(Boolean) ?? (owners.includes(null) ? null : "");
  }

  #colour(owner) {
    if (owner === "") return this.#palette.theme("--free");
    return owner === null ? this.#palette.theme("--cached") : this.#palette.request(owner);
  }

  #at(event) {
    const { columns, size, each } = this.#layout;
    const [column, row] = [Math.floor(event.offsetX / size), Math.floor(event.offsetY / size)];
    const square = row * columns + column;
    const first = square * each;
    if (column >= columns || first >= this.#owners.length || first < 0) return null;
    return { first, last: Math.min(first + each, this.#owners.length) - 1, owner: this.#owner(square, each) };
  }
}

function unpack(runs, running) {
  const owners = [];
  for (let at = 0; at < runs.length; at += 2) {
    const owner = runs[at];
    const name = owner === FREE ? "" : owner === CACHED ? null : (running[owner - FIRST_OWNER]?.request_id ?? "?");
    for (let count = runs[at + 1]; count > 0; count -= 1) owners.push(name);
  }
  return owners;
}

function arrange(count, width) {
  const fits = (size) => Math.floor(width / size) * Math.floor(HEIGHT / size);
  const size = SIZES.find((candidate) => fits(candidate) >= count) ?? SIZES.at(-1);
  return { size, columns: Math.max(1, Math.floor(width / size)), each: Math.max(1, Math.ceil(count / Math.max(1, fits(size)))) };
}
