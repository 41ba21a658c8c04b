/** A block of code with its language and a button that copies it. */
import { copyButton } from "./copy.js";
import { element } from "./dom.js";

export function codeBlock(text, language = "") {
  const code = element("code", "", document.createTextNode(text)); // one text node, to append to
  const copy = copyButton("Copy code", () => code.textContent);
  const head = element("div", "code-head", element("span", "", language.slice(0, 30) || "text"), copy);
  const box = element("pre", "", code);
  box.tabIndex = 0;
  return element("div", "code", head, box);
}
