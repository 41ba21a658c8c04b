/** The API as a page, out of the server's own description of it. Nothing comes from any other host. */
import { getJson } from "./api.js";
import { byId, element } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

function resolved(schema, all) {
  const name = schema?.$ref?.split("/").pop();
  return name ? all.components.schemas[name] : schema ?? {};
}

function typeOf(given, all) {
  const schema = resolved(given, all);
  const members = schema.anyOf ?? schema.oneOf;
  if (members) return members.map((member) => typeOf(member, all)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items, all)}`;
  return [schema.type ?? "any"].flat().join(" | ") + boundsOf(schema);
}

function boundsOf(schema) {
  const bounds = [];
  if (schema.minimum !== undefined) bounds.push(`≥ ${schema.minimum}`);
  if (schema.maximum !== undefined) bounds.push(`≤ ${schema.maximum}`);
  if (schema.maxLength !== undefined) bounds.push(`at most ${schema.maxLength} characters`);
  return bounds.length ? ` (${bounds.join(", ")})` : "";
}

function table(rows) {
  const body = element("table", "fields");
  for (const { name, type, needed } of rows) {
    const row = body.insertRow();
    row.append(element("td", needed ? "needed" : "", name), element("td", "", type));
  }
  return body;
}

function fieldsOf(given, all) {
  const schema = resolved(given, all);
  return Object.entries(schema.properties ?? {}).map(([name, field]) => ({
    name, type: typeOf(field, all), needed: (schema.required ?? []).includes(name),
  }));
}

function operation(method, path, what, all) {
  const name = element("b", "", method.toUpperCase());
  const head = element("summary", "", name, element("code", "", path), element("span", "soft", what.summary ?? ""));
  const inside = element("div");
  if (what.description) inside.append(element("p", "", what.description));
  const parameters = (what.parameters ?? []).map((one) => ({
    name: `${one.name} (${one.in})`, type: typeOf(one.schema, all), needed: one.required,
  }));
  if (parameters.length) inside.append(element("h4", "", "Parameters"), table(parameters));
  const sent = fieldsOf(what.requestBody?.content?.["application/json"]?.schema, all);
  if (sent.length) inside.append(element("h4", "", "Body"), table(sent));
  const answers = Object.entries(what.responses ?? {}).map(([status, one]) => ({ name: status, type: one.description }));
  inside.append(element("h4", "", "Answers"), table(answers));
  return element("details", "operation", head, inside);
}

function draw(all) {
  const groups = new Map();
  for (const [path, operations] of Object.entries(all.paths)) {
    for (const method of METHODS.filter((name) => name in operations)) {
      const tag = operations[method].tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(method, path, operations[method], all));
    }
  }
  for (const [tag, boxes] of groups) byId("paths").append(element("section", "", element("h2", "", tag), ...boxes));
  byId("about").textContent = `${all.info.title} ${all.info.version}`;
}

function search(word) {
  for (const section of document.querySelectorAll("#paths section")) {
    const boxes = [...section.querySelectorAll(".operation")];
    for (const box of boxes) box.hidden = !box.textContent.toLowerCase().includes(word);
    section.hidden = boxes.every((box) => box.hidden);
  }
}

try {
  draw(await getJson("openapi.json"));
} catch (error) {
  byId("paths").append(element("p", "failure", `The description could not be read: ${error.message}`));
}
byId("search").addEventListener("input", (event) => search(event.target.value.trim().toLowerCase()));
document.body.dataset.ready = "yes";
