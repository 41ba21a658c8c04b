/** Elements without markup: text is only ever set as text, so nothing a model writes can become HTML. */
export const byId = (id) => document.getElementById(id);

export function element(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function button(label, onClick) {
  const node = element("button", "quiet", label);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
