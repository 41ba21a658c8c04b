/** The model picker: which models there are, where each of them is, and which one is asked. */
import { getJson } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { session } from "./storage.js";

const KEPT = "cadence.model";
const EVERY_MS = 1500;
const WORDS = { unloaded: "not in memory", unloading: "leaving memory", loading: "loading", sleeping: "asleep", failed: "failed" };

export class Models {
  #cards = [];
  #onChoice;
  #timer = 0;

  /** `onChoice` hears of the card of the model that is asked from now on, and of what changes about it. */
  constructor(onChoice) {
    this.#onChoice = onChoice;
    byId("model").addEventListener("change", () => {
      session().setItem(KEPT, byId("model").value);
      this.#tell();
    });
    document.addEventListener("visibilitychange", () => this.#watch());
  }

  /** As the server lists them. */
  show(cards) {
    const select = byId("model");
    const chosen = select.value || session().getItem(KEPT);
    if (cards.map((card) => card.id).join("\n") !== this.#cards.map((card) => card.id).join("\n")) {
      select.replaceChildren(...cards.map((card) => Object.assign(element("option"), { value: card.id })));
      if (cards.some((card) => card.id === chosen)) select.value = chosen;
      select.disabled = cards.length < 2;
    }
    this.#cards = cards;
    cards.forEach((card, number) => setText(select.options[number], label(card)));
    this.#tell();
    this.#watch();
  }

  get chosen() {
    return this.#cards.find((card) => card.id === byId("model").value);
  }

  /** Where the engine of the model that is asked tells of itself. */
  get enginePath() {
    return this.chosen?.state ? `engine/state?model=${encodeURIComponent(this.chosen.id)}` : "engine/state";
  }

  /** Why that engine has nothing to tell; "" where it has. */
  get absence() {
    const words = WORDS[this.chosen?.state];
    return words ? `${this.chosen.id}: ${words}` : "";
  }

  #tell() {
    if (this.chosen) this.#onChoice(this.chosen);
  }

  /** Models come and go where there are several: their states are asked for while anyone looks. */
  #watch() {
    clearTimeout(this.#timer);
    if (!this.#cards.some((card) => card.state) || document.visibilityState !== "visible") return;
    this.#timer = setTimeout(async () => {
      const cards = await getJson("v1/models").then((list) => list.data).catch(() => this.#cards);
      this.show(cards);
    }, EVERY_MS);
  }
}

function label({ id, state }) {
  return WORDS[state] ? `${id} · ${WORDS[state]}` : id;
}
