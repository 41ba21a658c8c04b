/** Small charts, drawn by hand: a line or dots over the last minute, bars over the last steps, columns of shares. */
import { prepare } from "./canvas.js";

const HEIGHT = 112;
const LEFT = 44;
const BOTTOM = 16;
const TOP = 6;

export class Chart {
  #canvas;
  #palette;
  #format;

  /** `format` turns a value into its label. */
  constructor(canvas, palette, format) {
    this.#canvas = canvas;
    this.#palette = palette;
    this.#format = format;
  }

  line(points, now, span) {
    this.#overTime(points, now, span, (pen, place, area) => {
      if (!points.length) return;
      pen.beginPath();
      points.forEach((point) => pen.lineTo(...place(point)));
      pen.stroke();
      pen.lineTo(place(points.at(-1))[0], area.floor);
      pen.lineTo(place(points[0])[0], area.floor);
      pen.globalAlpha = 0.13;
      pen.fill();
    });
  }

  dots(points, now, span) {
    this.#overTime(points, now, span, (pen, place) => {
      for (const point of points) {
        pen.beginPath();
        pen.arc(...place(point), 2.6, 0, 2 * Math.PI);
        pen.fill();
      }
    });
  }

  bars(values, slots) {
    const area = this.#frame(values, `last ${slots} steps`, "now");
    if (!area) return;
    const width = (area.right - LEFT) / slots;
    area.pen.fillStyle = this.#palette.theme("--accent");
    area.pen.globalAlpha = 0.75;
    values.forEach((value, index) => {
      const height = Math.max(1, area.scale(value));
      const x = LEFT + (slots - values.length + index) * width;
      area.pen.fillRect(x, area.floor - height, Math.max(1, width - 1), height);
    });
  }

  /** Values from 0 to 1, one column each, with the words under the first and the last. */
  columns(shares, begin, end) {
    const area = this.#frame([1], begin, end);
    if (!area) return;
    const width = (area.right - LEFT) / shares.length;
    area.pen.fillStyle = this.#palette.theme("--accent");
    area.pen.globalAlpha = 0.75;
    shares.forEach((share, index) => {
      const height = Math.max(1, area.scale(share));
      area.pen.fillRect(LEFT + (index + 0.15) * width, area.floor - height, 0.7 * width, height);
    });
  }

  #overTime(points, now, span, draw) {
    const area = this.#frame(points.map((point) => point.value), `${span} s ago`, "now");
    if (!area) return;
    const { pen, floor, right } = area;
    const place = ({ time, value }) => [LEFT + (1 - (now - time) / span) * (right - LEFT), floor - area.scale(value)];
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, right - LEFT + 4, HEIGHT);
    pen.clip();
    pen.strokeStyle = pen.fillStyle = this.#palette.theme("--accent");
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    draw(pen, place, area);
    pen.restore();
  }

  #frame(values, begin, end) {
    const area = prepare(this.#canvas, HEIGHT);
    if (!area) return null;
    const { pen, width } = area;
    const [top, floor, right] = [ceiling(Math.max(0, ...values)), HEIGHT - BOTTOM, width - 4];
    const scale = (value) => (Math.min(value, top) / top) * (floor - TOP);
    pen.font = `10.5px ${this.#palette.theme("--sans")}`;
    pen.fillStyle = this.#palette.theme("--soft");
    pen.strokeStyle = this.#palette.theme("--line");
    pen.lineWidth = 1;
    for (const share of values.length ? [0, 0.5, 1] : [0]) {
      const y = Math.round(floor - scale(top * share)) + 0.5;
      stroke(pen, LEFT, right, y);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(this.#format(top * share), LEFT - 6, y + (share === 1 ? 2 : 0));
    }
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    pen.fillText(begin, LEFT, HEIGHT - 3);
    pen.textAlign = "right";
    pen.fillText(end, right, HEIGHT - 3);
    return { pen, floor, right, scale };
  }
}

function stroke(pen, left, right, y) {
  pen.beginPath();
  pen.moveTo(left, y);
  pen.lineTo(right, y);
  pen.stroke();
}

/** The next round number: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}
