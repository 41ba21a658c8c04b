/** A recording, from the microphone or a file, and its words as they come, with times. */
import { streamForm } from "./api.js";
import { byId, element, setText } from "./dom.js";

const TYPES = ["audio/webm;codecs=opus", "audio/mp4"]; // what browsers record, in this order of choice

export class SpeechView {
  #askForKey;
  #asked = null; // aborts the request under way
  #recorder = null; // while there is a recording under way
  #clock = 0; // of the timer that shows its length

  constructor(askForKey) {
    this.#askForKey = askForKey;
    byId("speech-record").addEventListener("click", () => this.#record());
    byId("speech-end").addEventListener("click", () => this.#recorder?.stop());
    byId("speech-file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      event.target.value = ""; // the same file may be chosen again
      if (file) this.#transcribe(file, file.name);
    });
    byId("speech-stop").addEventListener("click", () => this.#asked?.abort());
    byId("speech-copy").addEventListener("click", () => navigator.clipboard?.writeText(this.#text()));
    this.#takeDrops(byId("speech"));
  }

  #takeDrops(pane) {
    for (const name of ["dragover", "dragleave", "drop"]) {
      pane.addEventListener(name, (event) => {
        event.preventDefault();
        pane.classList.toggle("dropping", name === "dragover");
        const file = name === "drop" && event.dataTransfer.files[0];
        if (file) this.#transcribe(file, file.name);
      });
    }
  }

  async #record() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      const why = navigator.mediaDevices ? error.message : "a microphone needs https, or this machine's own address";
      return this.#fail(`The microphone cannot be used: ${why}.`);
    }
    const mimeType = TYPES.find((type) => MediaRecorder.isTypeSupported(type));
    const recorder = (this.#recorder = new MediaRecorder(stream, mimeType ? { mimeType } : {}));
    const parts = [];
    recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
    recorder.addEventListener("stop", () => {
      for (const track of stream.getTracks()) track.stop();
      clearInterval(this.#clock);
      this.#recorder = null;
      this.#showState();
      this.#transcribe(new Blob(parts, { type: recorder.mimeType }), "recording");
    });
    recorder.start();
    const began = performance.now();
    const show = () => setText(byId("speech-note"), `Recording ${time((performance.now() - began) / 1000)}`);
    this.#clock = setInterval(show, 200);
    show();
    this.#showState();
  }

  async #transcribe(blob, name) {
    this.#asked?.abort();
    const asked = (this.#asked = new AbortController());
    const began = performance.now();
    this.#begin(name);
    try {
      for await (const event of streamForm(path(), form(blob, name), asked.signal)) this.#take(event, began);
    } catch (error) {
      if (this.#asked !== asked) return; // another recording has its place
      if (error.name === "AbortError") setText(byId("speech-note"), "Stopped");
      else this.#fail(error.message);
      if (error.status === 401) this.#askForKey();
    }
    if (this.#asked === asked) this.#asked = null;
    setText(byId("speech-partial"), "");
    this.#showState();
  }

  #begin(name) {
    byId("speech-error").hidden = true;
    byId("speech-words").replaceChildren();
    byId("speech-card").hidden = false;
    setText(byId("speech-partial"), "");
    setText(byId("speech-note"), "Listening…");
    setText(byId("speech-name"), name);
    this.#showState();
  }

  #take(event, began) {
    if (event.type === "transcript.text.partial") setText(byId("speech-partial"), event.text.trim());
    if (event.type === "transcript.text.segment") {
      const when = element("time", "", time(event.start));
      byId("speech-words").append(element("p", "", when, element("span", "", event.text.trim())));
      setText(byId("speech-partial"), "");
      byId("speech-card").scrollTop = byId("speech-card").scrollHeight;
    }
    if (event.type === "transcript.text.done") {
      const took = (performance.now() - began) / 1000;
      setText(byId("speech-note"), `${time(event.duration)} of sound · ${event.language} · ${took.toFixed(1)} s`);
      if (!event.text) byId("speech-words").append(element("p", "soft", "No speech was heard."));
    }
  }

  #text() {
    return [...byId("speech-words").querySelectorAll("span")].map((span) => span.textContent).join(" ");
  }

  #fail(message) {
    setText(byId("speech-note"), "");
    setText(byId("speech-error"), message);
    byId("speech-error").hidden = false;
    byId("speech-card").hidden = !byId("speech-words").childElementCount;
  }

  #showState() {
    byId("speech-record").hidden = this.#recorder !== null;
    byId("speech-end").hidden = this.#recorder === null;
    byId("speech-stop").hidden = this.#asked === null;
  }
}

const path = () => `v1/audio/${byId("speech-translate").checked ? "translations" : "transcriptions"}`;

function form(blob, name) {
  const fields = new FormData();
  fields.append("model", byId("model").value);
  fields.append("language", byId("speech-language").value.trim());
  fields.append("response_format", "verbose_json");
  fields.append("stream", "true");
  fields.append("stream_partial_text", "true");
  fields.append("file", blob, name);
  return fields;
}

/** 1:02, and 1:01:02 from an hour on. */
function time(seconds) {
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
