/** One answer on the page: its reasoning, its text, how it ended, how fast it came. */
import { copyButton } from "./copy.js";
import { element, setText } from "./dom.js";
import { seconds as duration } from "./format.js";
import { Prose } from "./prose.js";

const ENDS = { stop: "", length: "reached the token limit", abort: "aborted by the server", error: "ended by an error" };
const INTERRUPTED = "interrupted when the page was left";

export class Answer {
  #started = performance.now();
  #first = 0;
  #last = 0;
  #tokens = 0;
  #drafted = 0; // of these, drafts that were kept
  #end = "";
  #reasoning = null;
  #asTokens;
  #over = false;

  constructor(name, asTokens, prose = new Prose(asTokens)) {
    this.#asTokens = asTokens;
    this.name = name;
    this.prose = prose;
    this.meta = element("p", "meta", "Waiting for the first token");
    this.actions = element("span", "actions");
    this.error = element("p", "error");
    this.error.setAttribute("role", "alert");
    this.error.hidden = true;
    this.copy = copyButton("Copy answer", () => this.text);
    const foot = element("footer", "", this.meta, element("span", "tools", this.copy, this.actions));
    this.node = element("article", "message answer busy", element("h3", "", name), this.prose.node, this.error, foot);
    this.node.setAttribute("aria-busy", "true");
    this.requestId = "";
  }

  /** As `kept` described it. */
  static of({ name, text, reasoning, meta, error, over }) {
    const answer = new Answer(name, false, Prose.of(text));
    if (reasoning) answer.#think(reasoning, []);
    if (error) answer.#complain(error);
    answer.finish();
    setText(answer.meta, [meta, over ? "" : INTERRUPTED].filter(Boolean).join(" · "));
    return answer;
  }

  /** What is kept of it: plain data. */
  get kept() {
    const [meta, error] = [this.#over ? this.meta.textContent : this.#numbers().join(" · "), this.error.textContent];
    return { name: this.name, text: this.text, reasoning: this.#reasoning?.text ?? "", meta, error, over: this.#over };
  }

  get text() {
    return this.prose.text;
  }

  /** One chunk of the stream. Shown at the next `draw`. */
  take(chunk) {
    this.requestId = chunk.id ?? this.requestId;
    if (chunk.usage) this.#tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const drafted = new Set(choice.drafted ?? []);
    const tokens = (choice.logprobs?.content ?? []).map((token, place) => ({ ...token, drafted: drafted.has(place) }));
    this.#drafted += drafted.size;
    const { content = "", reasoning, reasoning_content: older } = choice.delta ?? {};
    const thought = reasoning ?? older ?? "";
    if (content || thought || tokens.length) this.#clock(tokens.length || 1);
    if (thought) this.#think(thought, content ? [] : tokens);
    if (content || (tokens.length && !thought)) this.prose.add(content ?? "", tokens);
    if (choice.finish_reason) this.#end = ENDS[choice.finish_reason] ?? choice.finish_reason;
  }

  draw() {
    this.#reasoning?.draw();
    this.prose.draw();
    if (this.#first) setText(this.meta, this.#numbers().join(" · "));
  }

  finish(end = this.#end) {
    this.#over = true;
    this.#reasoning?.finish();
    this.prose.finish();
    this.copy.hidden = !this.text;
    this.node.classList.remove("busy");
    this.node.setAttribute("aria-busy", "false");
    setText(this.meta, [...this.#numbers(), end].filter(Boolean).join(" · "));
  }

  fail(message) {
    this.#complain(message);
    this.finish("failed");
  }

  show(asTokens) {
    this.#asTokens = asTokens;
    this.prose.show(asTokens);
    this.#reasoning?.show(asTokens);
  }

  #complain(message) {
    this.error.textContent = message;
    this.error.hidden = false;
  }

  #think(text, tokens) {
    if (!this.#reasoning) {
      this.#reasoning = new Prose(this.#asTokens);
      const fold = element("details", "reasoning", element("summary", "", "Reasoning"), this.#reasoning.node);
      this.prose.node.before(fold);
    }
    this.#reasoning.add(text, tokens);
  }

  #clock(tokens) {
    this.#last = performance.now();
    this.#first ||= this.#last;
    this.#tokens += tokens;
  }

  #numbers() {
    if (!this.#first) return [];
    const seconds = (this.#last - this.#first) / 1000;
    const rate = seconds > 0 && this.#tokens > 1 ? `${((this.#tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    const first = `first token after ${duration((this.#first - this.#started) / 1000)}`;
    const drafted = this.#drafted ? `${this.#drafted} drafted` : "";
    return [`${this.#tokens} token${this.#tokens === 1 ? "" : "s"}`, drafted, rate, first].filter(Boolean);
  }
}
