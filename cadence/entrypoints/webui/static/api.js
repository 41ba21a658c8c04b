/** The server, asked: JSON, streamed chats, and its errors in its own words. */
import { events } from "./sse.js";
import { session } from "./storage.js";

const KEY = "cadence.key";
const HERE = location.origin + location.pathname; // without a user and password, which fetch refuses in addresses

/** What the server answered instead of a result; status 0 when it did not answer at all. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const apiKey = () => session().getItem(KEY) ?? "";
export const setApiKey = (key) => session().setItem(KEY, key.trim());

export async function getJson(path, signal) {
  const response = await ask(path, { signal });
  return response.json();
}

export async function postJson(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  return response.json();
}

/** Whether the server has something there. */
export async function exists(path) {
  try {
    await ask(path, { method: "HEAD" });
    return true;
  } catch {
    return false;
  }
}

/** The chunks of a streamed chat completion. All streams end at [DONE]; an error event or a cut stream throws. */
export async function* streamChat(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  yield* chunks(response);
}

/** The events of a streamed answer to a form. */
export async function* streamForm(path, form, signal) {
  yield* chunks(await ask(path, { method: "POST", body: form, signal }));
}

async function* chunks(response) {
  for await (const data of read(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(messageOf(chunk) ?? "The server reported an error.", chunk.error.code ?? 500);
    yield chunk;
  }
  throw new ServerError("The stream broke off before its end.", 0);
}

async function* read(stream) {
  try {
    yield* events(stream);
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServerError("The connection broke off.", 0);
  }
}

async function ask(path, { headers = {}, ...options }) {
  const key = apiKey();
  if (/[^\x21-\x7e]/.test(key)) throw new ServerError("The API key has characters that no header can carry.", 401);
  let response;
  try {
    response = await fetch(new URL(path, HERE), {
      ...options,
      cache: "no-store",
      headers: key ? { ...headers, Authorization: `Bearer ${key}` } : headers,
    });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServerError("The server cannot be reached.", 0);
  }
  if (!response.ok) throw new ServerError(await refusal(response), response.status);
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  try {
    return messageOf(JSON.parse(text)) ?? `The server answered ${response.status}.`;
  } catch {
    return text.slice(0, 500) || `The server answered ${response.status} ${response.statusText}.`;
  }
}

function messageOf(body) {
  return typeof body?.error === "string" ? body.error : body?.error?.message;
}
