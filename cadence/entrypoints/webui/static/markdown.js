/** A little Markdown as elements: paragraphs, headings, lists, quotes, code, bold, italics. Everything else is text. */
import { element } from "./dom.js";

const FENCE = /^\s*```/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBER = /^\s*\d{1,9}[.)]\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\*[^*\s][^*\n]*\*)/g;

export function render(text) {
  const lines = text.split("\n");
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at);
    if (node) nodes.push(node);
    at = next;
  }
  return nodes;
}

function block(lines, at) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return fenced(lines, at + 1);
  const heading = HEADING.exec(line);
  if (heading) return [element("h4", "", ...inline(heading[2])), at + 1];
  if (BULLET.test(line)) return list("ul", BULLET, lines, at);
  if (NUMBER.test(line)) return list("ol", NUMBER, lines, at);
  if (QUOTE.test(line)) return quote(lines, at);
  return paragraph(lines, at);
}

function fenced(lines, at) {
  let end = at;
  while (end < lines.length && !FENCE.test(lines[end])) end += 1;
  return [element("pre", "", element("code", "", lines.slice(at, end).join("\n"))), end + 1];
}

function list(tag, item, lines, at) {
  const node = element(tag);
  if (tag === "ol") node.start = parseInt(lines[at], 10) || 1;
  let end = at;
  for (; end < lines.length && item.test(lines[end]); end += 1) {
    node.append(element("li", "", ...inline(item.exec(lines[end])[1])));
  }
  return [node, end];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => QUOTE.exec(line)[1]);
  return [element("blockquote", "", ...inline(inner.join("\n"))), end];
}

function paragraph(lines, at) {
  const special = (line) => !line.trim() || [FENCE, HEADING, BULLET, NUMBER, QUOTE].some((form) => form.test(line));
  let end = at + 1;
  while (end < lines.length && !special(lines[end])) end += 1;
  return [element("p", "", ...inline(lines.slice(at, end).join("\n"))), end];
}

function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(at, match.index));
    if (match[1]) nodes.push(element("code", "", match[1].slice(1, -1)));
    else if (match[2]) nodes.push(element("strong", "", match[2].slice(2, -2)));
    else nodes.push(element("em", "", match[3].slice(1, -1)));
    at = match.index + match[0].length;
  }
  nodes.push(text.slice(at));
  return nodes.filter((node) => node !== "");
}
