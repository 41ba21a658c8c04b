/**
 * Markdown inside a line: code, bold, italics, strikes, links. Everything else stays text.
 *
 * Every pattern stops at its own delimiter or at a fixed length, so that the time is linear in the text whatever a
 * model writes.
 */
import { element } from "./dom.js";

const FORMS = [
  ["escape", /\\([\\`*_{}[\]()#+\-.!~|>])/],
  ["code", /``((?:[^`\n]|`(?!`)){1,2000})``(?!`)|`([^`\n]{1,2000})`/],
  ["link", /!?\[([^[\]\n]{0,500})\]\(<?([^\s()<>]{1,1000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200})?)>?(?:\s{1,4}"[^"\n]{0,200}")?\)/],
  ["strong", /\*\*(?=[^\s*])((?:[^*\n]|\*(?!\*)){1,2000})\*\*|(?<!\w)__(?=[^\s_])((?:[^_\n]|_(?!_)){1,2000})__(?!\w)/],
  ["em", /(?<![\w*])\*(?=[^\s*])([^*\n]{1,2000})\*(?![\w*])|(?<![\w_])_(?=[^\s_])([^_\n]{1,2000})_(?![\w_])/],
  ["del", /~~(?=[^\s~])([^~\n]{1,2000})~~/],
  ["address", /(?<!\w)https?:\/\/[^\s<>"'`[\]{}|\\^]{1,1000}/],
];
const NAMES = FORMS.map(([name]) => name);
const INLINE = new RegExp(FORMS.map(([name, form]) => `(?<${name}>${form.source})`).join("|"), "g");
const SAFE = new Set(["http", "https", "mailto"]); // schemes a link may have
const DEPTH = 4;

/** Nodes and strings, for `append`. */
export function inline(text, depth = 0) {
  if (depth > DEPTH) return [text];
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    nodes.push(...piece(match, depth));
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function piece(match, depth) {
  const kind = NAMES.find((name) => match.groups[name] !== undefined);
  const inner = match.slice(1).filter((group) => group !== undefined);
  if (kind === "escape") return [inner[1]];
  if (kind === "code") return [element("code", "", inner[1].trim() || inner[1])];
  if (kind === "link") return link(match[0], inner[1], inner[2], depth);
  if (kind === "address") return bare(match[0]);
  return [element(kind, "", ...inline(inner[1], depth + 1))];
}

/** A link where the address is one a page may safely lead to; otherwise what was written, as text. */
function link(written, label, address, depth) {
  const href = safe(address);
  if (!href) return [written];
  return [anchor(href, label ? inline(label, depth + 1) : [href])];
}

/** An address in running text: punctuation after it is not part of it. */
function bare(written) {
  const address = written.replace(/[.,:;!?*_~)]{1,20}$/, "");
  const href = safe(address);
  return href ? [anchor(href, [address]), written.slice(address.length)].filter(Boolean) : [written];
}

function anchor(href, children) {
  const node = element("a", "", ...children);
  node.href = href;
  node.title = href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

/** The address, if it is whole and of a safe scheme; "" otherwise. */
export function safe(address) {
  try {
    const url = new URL(address);
    return SAFE.has(url.protocol.slice(0, -1)) ? url.href : "";
  } catch {
    return "";
  }
}
