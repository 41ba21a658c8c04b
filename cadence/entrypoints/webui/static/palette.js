/** Colours: those of the style sheet, and one for each request that it keeps while it lives. */
const HUES = [196, 26, 142, 318, 48, 262, 168, 356, 92, 228, 292, 12];

export class Palette {
  #slots = new Map(); // request id -> slot
  #theme = new Map(); // name of a custom property -> value

  constructor(onChange) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#theme.clear();
      onChange();
    });
  }

  /** Gives each of these requests a slot; those that are gone give theirs back. */
  settle(ids) {
    const living = new Set(ids);
    for (const id of this.#slots.keys()) if (!living.has(id)) this.#slots.delete(id);
    const taken = new Set(this.#slots.values());
    let slot = 0;
    for (const id of living) {
      if (this.#slots.has(id)) continue;
      while (taken.has(slot)) slot += 1;
      taken.add(slot);
      this.#slots.set(id, slot);
    }
  }

  request(id) {
    const slot = this.#slots.get(id);
    if (slot === undefined) return this.theme("--held");
    const hue = slot < HUES.length ? HUES[slot] : (slot * 137.5) % 360;
    return `hsl(${hue} ${this.theme("--request-tone")})`;
  }

  theme(name) {
    if (!this.#theme.has(name)) {
      this.#theme.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return this.#theme.get(name);
  }
}
