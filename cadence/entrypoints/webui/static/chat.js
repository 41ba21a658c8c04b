/** The conversation: turns of a question and an answer, one of them at most being written. */
import { ServerError, streamChat } from "./api.js";
import { Answer } from "./answer.js";
import { button, byId, element } from "./dom.js";

export class Chat {
  #settings;
  #onRefused;
  #turns = []; // { question, node, answer }
  #running = null; // AbortController of the answer being written
  #log = byId("messages");

  /** `onRefused` is called when the server wants a key. */
  constructor(settings, onRefused) {
    this.#settings = settings;
    this.#onRefused = onRefused;
    byId("composer").addEventListener("submit", (event) => this.#submit(event));
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.#clear());
    byId("probabilities").addEventListener("change", () => this.#restyle());
    byId("prompt").addEventListener("keydown", (event) => this.#typed(event));
    byId("prompt").addEventListener("input", () => this.#fit());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.stop());
  }

  /** The id of the request being answered; "" when none is. */
  get requestId() {
    return this.#running ? this.#turns.at(-1).answer.requestId : "";
  }

  stop() {
    this.#running?.abort();
  }

  #typed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  }

  #submit(event) {
    event.preventDefault();
    const field = byId("prompt");
    const question = field.value.trim();
    if (!question || this.#running) return;
    field.value = "";
    this.#fit();
    byId("empty").hidden = true;
    const node = element("article", "message question", element("h3", "", "You"), element("div", "body", question));
    this.#log.append(node);
    this.#turns.push({ question, node, answer: null });
    this.#write();
  }

  async #write() {
    const turn = this.#turns.at(-1);
    const messages = this.#messages();
    this.#turns.forEach((earlier) => earlier.answer?.actions.replaceChildren());
    turn.answer?.node.remove();
    const answer = new Answer(byId("model").value || "Answer", this.#settings.probabilities);
    turn.answer = answer;
    this.#log.append(answer.node);
    this.#scroll(true);
    const control = new AbortController();
    this.#setRunning(control);
    try {
      await this.#read(answer, messages, control.signal);
      answer.finish();
    } catch (error) {
      this.#explain(answer, error);
    }
    if (this.#running === control) this.#setRunning(null);
    answer.actions.append(button(answer.text ? "Regenerate" : "Try again", () => this.#again(turn)));
    this.#scroll(this.#atEnd());
  }

  async #read(answer, messages, signal) {
    for await (const chunk of streamChat({ ...this.#settings.fields(), messages }, signal)) {
      const follow = this.#atEnd();
      answer.take(chunk);
      this.#scroll(follow);
    }
  }

  /** The conversation so far. A turn that brought no answer is left out: the model never saw it. */
  #messages() {
    const earlier = this.#turns.slice(0, -1).filter((turn) => turn.answer?.text);
    const said = earlier.flatMap((turn) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.answer.text },
    ]);
    return [...this.#settings.opening, ...said, { role: "user", content: this.#turns.at(-1).question }];
  }

  #explain(answer, error) {
    if (error.name === "AbortError") return answer.finish("stopped");
    if (!(error instanceof ServerError)) console.error(error);
    answer.fail(error.message);
    if (error.status === 401) this.#onRefused();
  }

  #again(turn) {
    if (!this.#running && turn === this.#turns.at(-1)) this.#write();
  }

  #clear() {
    this.stop();
    this.#setRunning(null);
    this.#turns.forEach((turn) => [turn.node, turn.answer.node].forEach((node) => node.remove()));
    this.#turns = [];
    byId("empty").hidden = false;
    byId("prompt").focus();
  }

  #setRunning(control) {
    this.#running = control;
    byId("stop").hidden = !control;
    byId("send").hidden = Boolean(control);
  }

  #restyle() {
    const asTokens = this.#settings.probabilities;
    this.#turns.forEach((turn) => turn.answer.show(asTokens));
  }

  #atEnd() {
    return this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 60;
  }

  #scroll(follow) {
    if (follow) this.#log.scrollTop = this.#log.scrollHeight;
  }

  #fit() {
    const field = byId("prompt");
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
    field.style.overflowY = field.scrollHeight > 200 ? "auto" : "hidden";
  }
}
