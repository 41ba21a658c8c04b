/** Pictures that go with the next message: chosen, dropped or pasted, made small enough, and shown until they are sent. */
import { byId, element } from "./dom.js";

const MOST = 8;
const MOST_PIXELS = 1_500_000; // of one; larger ones are made smaller here

export class Pictures {
  #attached = []; // { name, url }: data URLs

  constructor() {
    byId("picture-file").addEventListener("change", (event) => {
      this.#add([...event.target.files]);
      event.target.value = ""; // the same file may be chosen again
    });
    byId("prompt").addEventListener("paste", (event) => this.#add([...event.clipboardData.files]));
    const pane = byId("chat");
    for (const name of ["dragover", "dragleave", "drop"]) {
      pane.addEventListener(name, (event) => {
        if (![...event.dataTransfer.types].includes("Files")) return;
        event.preventDefault();
        pane.classList.toggle("dropping", name === "dragover");
        if (name === "drop") this.#add([...event.dataTransfer.files]);
      });
    }
  }

  /** Whether the model sees: else a picture that is dropped is refused by the server, in its words. */
  set offered(sees) {
    byId("picture").hidden = !sees;
  }

  get any() {
    return this.#attached.length > 0;
  }

  /** Those that go with a message that is being sent. */
  take() {
    const taken = this.#attached;
    this.#attached = [];
    this.#show();
    return taken;
  }

  async #add(files) {
    const notes = [];
    for (const file of files) {
      if (this.#attached.length >= MOST) {
        notes.push(`At most ${MOST} pictures go with a message.`);
        break;
      }
      try {
        this.#attached.push({ name: file.name, url: await dataUrl(file) });
      } catch {
        notes.push(`${file.name} is no picture that this browser can read.`);
      }
    }
    this.#show(notes.join(" "));
  }

  #show(note = "") {
    const tray = byId("pictures");
    tray.replaceChildren(...this.#attached.map((picture) => this.#held(picture)));
    if (note) tray.append(element("p", "soft", note));
    tray.hidden = !tray.children.length;
  }

  #held(picture) {
    const remove = element("button", "quiet", "Remove");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${picture.name}`);
    remove.addEventListener("click", () => {
      this.#attached = this.#attached.filter((each) => each !== picture);
      this.#show();
    });
    return element("figure", "", image(picture), remove);
  }
}

/** { name, url } -> an element */
export function image({ name, url }) {
  const node = element("img");
  node.src = url;
  node.alt = name;
  return node;
}

/** A message's content as the API takes it. */
export function contentOf(question, pictures) {
  if (!pictures.length) return question;
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return question ? [...parts, { type: "text", text: question }] : parts;
}

async function dataUrl(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, Math.sqrt(MOST_PIXELS / (bitmap.width * bitmap.height)));
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return file.type === "image/jpeg" ? canvas.toDataURL("image/jpeg", 0.92) : canvas.toDataURL("image/png");
}
