/** Copies text, also where the page is not served over TLS and the clipboard's own interface is closed to it. */
import { button } from "./dom.js";

const SHOWN_MS = 1600;

/** `text` is asked when the button is pressed. */
export function copyButton(name, text) {
  const node = button("Copy", async () => {
    node.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => (node.textContent = "Copy"), SHOWN_MS);
  });
  node.setAttribute("aria-label", name);
  node.classList.add("copy");
  return node;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus?.();
  return done;
}
