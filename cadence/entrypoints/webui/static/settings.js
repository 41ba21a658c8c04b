/** The knobs: kept for this tab, turned into fields of a request. An empty field is not sent: the server decides. */
import { byId, setText } from "./dom.js";
import { session } from "./storage.js";

const NUMBERS = { temperature: "temperature", top_p: "top p", top_k: "top k", max_tokens: "max tokens", seed: "seed" };
const KEPT = [...Object.keys(NUMBERS), "system", "prompt"];
const PREFIX = "cadence.setting.";
const TINTED = `${PREFIX}probabilities`;

export class Settings {
  #sheet = byId("more");

  constructor() {
    for (const id of KEPT) {
      const field = byId(id);
      field.value = session().getItem(PREFIX + id) ?? field.value;
      field.addEventListener("input", () => this.#keep(id));
    }
    byId("composer").addEventListener("submit", () => queueMicrotask(() => this.#keep("prompt")));
    this.#keepTint();
    this.#foldAway();
    this.#summarize();
  }

  /** The request's fields beside the conversation. */
  fields() {
    const numbers = Object.fromEntries(this.#set().map((id) => [id, Number(byId(id).value)]));
    const tokens = { logprobs: true, top_logprobs: 5, speculative: { return_drafted: true } };
    return { model: byId("model").value, ...numbers, ...(this.probabilities ? tokens : {}) };
  }

  get probabilities() {
    return byId("probabilities").checked;
  }

  /** The conversation's first messages: the system prompt, if there is one. */
  get opening() {
    const content = byId("system").value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  /** Opens the sheet at the key: only when the user asks for it. */
  enterKey() {
    this.#sheet.open = true;
    byId("key").focus();
  }

  get open() {
    return this.#sheet.open;
  }

  close() {
    this.#sheet.open = false;
  }

  #set() {
    return Object.keys(NUMBERS).filter((id) => byId(id).value !== "");
  }

  #keep(id) {
    session().setItem(PREFIX + id, byId(id).value);
    this.#summarize();
  }

  #keepTint() {
    const box = byId("probabilities");
    box.checked = session().getItem(TINTED) === "yes";
    box.addEventListener("change", () => session().setItem(TINTED, box.checked ? "yes" : "no"));
  }

  #foldAway() {
    document.addEventListener("pointerdown", (event) => {
      if (!this.#sheet.contains(event.target)) this.close();
    });
    byId("close-settings").addEventListener("click", () => {
      this.close();
      byId("prompt").focus();
    });
  }

  /** What is set, beside the fold that hides it. */
  #summarize() {
    const numbers = this.#set().map((id) => `${NUMBERS[id]} ${byId(id).value}`);
    const system = byId("system").value.trim() ? ["system prompt"] : [];
    setText(byId("set-note"), [...numbers, ...system].join(", "));
  }
}
