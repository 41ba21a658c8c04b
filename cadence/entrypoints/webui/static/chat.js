/** The conversation: turns of a question and an answer, one of them at most being written. */
import { ServerError, streamChat } from "./api.js";
import { Answer } from "./answer.js";
import { copyButton } from "./copy.js";
import { button, byId, element } from "./dom.js";
import { forget, keep, kept } from "./keep.js";
import { contentOf, image, Pictures } from "./pictures.js";

const DRAW_MS = 40; // between two drawings, or
const DRAW_SHARE = 8; // this many times as long as the last one took
const KEEP_MS = 2000;
const LEAVE_MS = 1000;
const MOST_PIECES = 1024; // of an answer without max_tokens; more could be refused where less of the context is left

export class Chat {
  #settings;
  #onRefused;
  #pictures = new Pictures();
  #turns = []; // { question, pictures, node, answer }
  #running = null; // AbortController of the answer being written
  #log = byId("messages");
  #drawing = 0; // timer; 0 while nothing waits to be drawn
  #fresh = false; // something came since the last drawing
  #keeping = 0; // timer
  #leaving = 0; // timer; set while the page is being left, which breaks off the answer being written

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
    for (const event of ["beforeunload", "pagehide"]) addEventListener(event, () => this.#leave());
    this.#restore();
  }

  /** The id of the request being answered; "" when none is. */
  get requestId() {
    return this.#running ? this.#turns.at(-1).answer.requestId : "";
  }

  /** Whether the model sees. */
  set sees(sees) {
    this.#pictures.offered = sees;
  }

  stop() {
    this.#running?.abort();
  }

  #restore() {
    for (const { question, pictures, answer } of kept()) {
      const turn = { question, pictures, node: this.#ask(question, pictures), answer: Answer.of(answer) };
      this.#log.append(turn.answer.node);
      this.#turns.push(turn);
    }
    if (this.#turns.length) this.#offer(this.#turns.at(-1));
    this.#fit();
    this.#scroll(true);
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
    if (this.#running || !(question || this.#pictures.any)) return;
    field.value = "";
    this.#fit();
    const pictures = this.#pictures.take();
    this.#turns.push({ question, pictures, node: this.#ask(question, pictures), answer: null });
    this.#write();
  }

  /** Shows a question. */
  #ask(question, pictures) {
    byId("empty").hidden = true;
    const head = element("h3", "", "You", copyButton("Copy message", () => question));
    const node = element("article", "message question", head);
    if (pictures.length) node.append(element("div", "seen", ...pictures.map(image)));
    if (question) node.append(element("div", "body", question));
    this.#log.append(node);
    return node;
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
      this.#finish(() => answer.finish());
    } catch (error) {
      this.#finish(() => this.#explain(answer, error));
    }
    if (this.#running !== control) return; // cleared in the meantime
    this.#setRunning(null);
    this.#following(() => this.#offer(turn));
    this.#keep();
  }

  async #read(answer, messages, signal) {
    const fields = this.#settings.fields();
    let pieces = 0;
    for await (const chunk of streamChat({ ...fields, messages }, signal)) {
      answer.take(chunk);
      this.#fresh = true;
      this.#drawing ||= setTimeout(() => this.#draw(answer), 0);
      this.#keeping ||= setTimeout(() => this.#keep(), KEEP_MS);
      const { content, reasoning, reasoning_content: older } = chunk.choices?.[0]?.delta ?? {};
      pieces += content || reasoning || older ? 1 : 0;
      if (pieces >= MOST_PIECES && !("max_tokens" in fields)) {
        answer.take({ choices: [{ finish_reason: "length" }] });
        return; // closes the connection, and so ends the request
      }
    }
  }

  /** Draws what has come, then waits: however fast the text comes, the page stays free for its reader. */
  #draw(answer) {
    this.#drawing = 0;
    if (!this.#fresh) return;
    this.#fresh = false;
    const began = performance.now();
    this.#following(() => answer.draw());
    const pause = Math.max(DRAW_MS, DRAW_SHARE * (performance.now() - began));
    this.#drawing = setTimeout(() => this.#draw(answer), pause);
  }

  #finish(change) {
    clearTimeout(this.#drawing);
    this.#drawing = 0;
    this.#fresh = false;
    this.#following(change);
  }

  /** The conversation so far. A turn that brought no answer is left out: the model never saw it. */
  #messages() {
    const earlier = this.#turns.slice(0, -1).filter((turn) => turn.answer?.text);
    const said = earlier.flatMap((turn) => [
      { role: "user", content: contentOf(turn.question, turn.pictures) },
      { role: "assistant", content: turn.answer.text },
    ]);
    const { question, pictures } = this.#turns.at(-1);
    return [...this.#settings.opening, ...said, { role: "user", content: contentOf(question, pictures) }];
  }

  #explain(answer, error) {
    if (error.name === "AbortError") return answer.finish("stopped");
    if (!(error instanceof ServerError)) console.error(error);
    answer.fail(error.message);
    if (error.status === 401) this.#onRefused();
  }

  #offer(turn) {
    turn.answer.actions.append(button(turn.answer.text ? "Regenerate" : "Try again", () => this.#again(turn)));
  }

  #again(turn) {
    if (!this.#running && turn === this.#turns.at(-1)) this.#write();
  }

  /** Keeps the conversation as it is now: what fails from here on fails because the page is left. */
  #leave() {
    this.#keep();
    clearTimeout(this.#leaving);
    this.#leaving = setTimeout(() => (this.#leaving = 0), LEAVE_MS); // it may have been only a download
  }

  #keep() {
    clearTimeout(this.#keeping);
    this.#keeping = 0;
    if (this.#turns.length && !this.#leaving) this.#save();
  }

  #save() {
    keep(this.#turns.map(({ question, pictures, answer }) => ({ question, pictures, answer: answer.kept })));
  }

  #clear() {
    this.stop();
    this.#setRunning(null);
    this.#turns.forEach((turn) => [turn.node, turn.answer.node].forEach((node) => node.remove()));
    this.#turns = [];
    clearTimeout(this.#keeping);
    this.#keeping = 0;
    forget();
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

  /** Makes a change and keeps the end in view, if it was. */
  #following(change) {
    const atEnd = this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 60;
    change();
    this.#scroll(atEnd);
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
