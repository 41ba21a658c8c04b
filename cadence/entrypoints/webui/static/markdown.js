/** Markdown as elements: paragraphs, headings, lists, quotes, tables, code. Everything else is text, HTML above all. */
import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^\s{0,12}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])(\s+)(?=\S)/;
const QUOTE = /^\s{0,3}>\s?/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEPTH = 8; // of lists and quotes in each other; what lies deeper is text

export function render(text, depth = 0) {
  const lines = text.split("\n");
  return blocks(lines).map((block) => build(block, lines, depth));
}

/** Where the blocks of these lines lie: { kind, from, to }, from the first line to the one after the last. */
export function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [kind, to] = extent(lines, at);
    found.push({ kind, from: at, to });
    at = to;
  }
  return found;
}

export function build({ kind, from, to }, lines, depth = 0) {
  const own = lines.slice(from, to);
  if (depth > DEPTH) return element("p", "", own.join("\n"));
  return BUILDERS[kind](own, depth);
}

/** The fence that these lines open and do not close: { mark, language }; null when there is none. */
export function openFence(lines) {
  const [, mark, language] = FENCE.exec(lines[0]) ?? [];
  return mark && (lines.length < 2 || !closes(lines.at(-1), mark)) ? { mark, language } : null;
}

export function closes(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text[0] === mark[0] && [...text].every((char) => char === mark[0]);
}

function extent(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return ["fence", fenceEnd(lines, at, fence[1])];
  if (HEADING.test(line)) return ["heading", at + 1];
  if (RULE.test(line)) return ["rule", at + 1];
  if (ITEM.test(line)) return ["list", listEnd(lines, at)];
  if (QUOTE.test(line)) return ["quote", run(lines, at, (other) => QUOTE.test(other))];
  if (isTable(lines, at)) return ["table", run(lines, at, (other) => other.includes("|"))];
  return ["paragraph", paragraphEnd(lines, at)];
}

function run(lines, at, belongs) {
  let end = at + 1;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return end;
}

function fenceEnd(lines, at, mark) {
  const end = run(lines, at, (line) => !closes(line, mark));
  return Math.min(end + 1, lines.length);
}

/** A list goes on over items, indented lines, code in them, and blank lines with one of these after them. */
function listEnd(lines, at) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  let end = at;
  let next = at;
  while (next < lines.length) {
    const line = lines[next];
    const item = ITEM.exec(line);
    const base = item && item[1].length <= indent.length;
    const inside = /^\s{2,}\S/.test(line);
    if (!line.trim()) {
      next += 1;
      continue;
    }
    if (base ? numbered(item[2]) !== numbered(marker) || RULE.test(line) : !item && !inside) break;
    const fence = inside && FENCE.exec(line);
    next = end = fence ? fenceEnd(lines, next, fence[1]) : next + 1;
  }
  return end;
}

const numbered = (marker) => /\d/.test(marker);

function isTable(lines, at) {
  const [head, under] = [lines[at], lines[at + 1] ?? ""];
  return head.includes("|") && under.includes("-") && DELIMITERS.test(under) && cells(head).length === cells(under).length;
}

function paragraphEnd(lines, at) {
  const special = (line) => [FENCE, HEADING, RULE, ITEM, QUOTE].some((form) => form.test(line));
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !special(lines[end]) && !isTable(lines, end)) end += 1;
  return end;
}

const BUILDERS = {
  fence(lines) {
    const [, mark, language] = FENCE.exec(lines[0]);
    const end = lines.length > 1 && closes(lines.at(-1), mark) ? -1 : lines.length;
    return codeBlock(dedent(lines.slice(1, end), indentOf(lines[0])).join("\n"), language);
  },
  heading([line]) {
    const [, marks, text] = HEADING.exec(line);
    return element(`h${Math.min(6, 3 + marks.length)}`, "", ...inline(text));
  },
  rule: () => element("hr"),
  quote: (lines, depth) => element("blockquote", "", ...render(lines.map((line) => line.replace(QUOTE, "")).join("\n"), depth + 1)),
  paragraph: (lines) => element("p", "", ...inline(lines.join("\n"))),
  list,
  table,
};

function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const node = element(numbered(marker) ? "ol" : "ul");
  if (numbered(marker)) node.start = parseInt(marker, 10);
  let item = [];
  for (const line of lines) {
    const begins = ITEM.exec(line);
    if (begins && begins[1].length <= indent.length && item.length) {
      node.append(listItem(item, depth));
      item = [];
    }
    item.push(line);
  }
  node.append(listItem(item, depth));
  return node;
}

function listItem([first, ...rest], depth) {
  const offset = ITEM.exec(first)[0].length;
  const children = render([first.slice(offset), ...dedent(rest, offset)].join("\n"), depth + 1);
  if (children[0]?.tagName === "P") children.splice(0, 1, ...children[0].childNodes);
  return element("li", "", ...children);
}

const indentOf = (line) => line.length - line.trimStart().length;
const dedent = (lines, count) => lines.map((line) => line.slice(Math.min(count, indentOf(line))));

function table([head, under, ...rows]) {
  const sides = cells(under).map((cell) => (/^:-+:$/.test(cell) ? "center" : /-:$/.test(cell) ? "right" : ""));
  const line = (tag, text) => element("tr", "", ...sides.map((side, at) => element(tag, side, ...inline(cells(text)[at] ?? ""))));
  const body = element("tbody", "", ...rows.map((row) => line("td", row)));
  return element("div", "table", element("table", "", element("thead", "", line("th", head)), body));
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim());
}
