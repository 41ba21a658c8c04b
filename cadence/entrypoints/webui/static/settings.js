/** The knobs: kept for this tab, turned into fields of a request. An empty field is not sent: the server decides. */
import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const KEPT = [...NUMBERS, "system"];
const PREFIX = "cadence.setting.";

export class Settings {
  constructor() {
    for (const id of KEPT) {
      const field = byId(id);
      field.value = sessionStorage.getItem(PREFIX + id) ?? field.value;
      field.addEventListener("input", () => sessionStorage.setItem(PREFIX + id, field.value));
    }
  }

  /** The request's fields beside the conversation. */
  fields() {
    const set = NUMBERS.filter((id) => byId(id).value !== "");
    const numbers = Object.fromEntries(set.map((id) => [id, Number(byId(id).value)]));
    const probabilities = this.probabilities ? { logprobs: true, top_logprobs: 5 } : {};
    return { model: byId("model").value, ...numbers, ...probabilities };
  }

  get probabilities() {
    return byId("probabilities").checked;
  }

  /** The conversation's first messages: the system prompt, if there is one. */
  get opening() {
    const content = byId("system").value.trim();
    return content ? [{ role: "system", content }] : [];
  }
}
