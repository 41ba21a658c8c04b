/**
 * The conversation, kept in this browser: a reload brings it back, and a new tab goes on with the latest one. Bounded;
 * the oldest turns go first. Nothing here is needed: where storage is closed or full, the page works without it.
 */
import { local, session } from "./storage.js";

const NAME = `cadence.conversation.${location.pathname}`; // servers behind one host have their own
export const MAX_TURNS = 100;
export const MAX_CHARACTERS = 1_000_000;

const TEXTS = ["name", "text", "reasoning", "meta", "error"];

/** The turns, { question, pictures, answer }, oldest first. What does not look like turns is forgotten. */
export function kept() {
  for (const store of stores()) {
    try {
      const turns = JSON.parse(store.getItem(NAME));
      if (Array.isArray(turns)) return turns.map(withPictures).filter(isTurn).slice(-MAX_TURNS);
    } catch {
      store.removeItem(NAME);
    }
  }
  return [];
}

export function keep(turns) {
  const texts = turns.slice(-MAX_TURNS).map((turn) => JSON.stringify(turn));
  let size = texts.reduce((sum, text) => sum + text.length + 1, 2);
  while (size > MAX_CHARACTERS) size -= texts.shift().length + 1;
  for (const store of stores()) {
    try {
      store.setItem(NAME, `[${texts.join()}]`);
    } catch {
      store.removeItem(NAME); // full: rather nothing than an old state
    }
  }
}

export function forget() {
  for (const store of stores()) store.removeItem(NAME);
}

/** This tab's own first, then what any tab kept last. */
const stores = () => [session(), local()];

/** Turns of an earlier version have none. */
const withPictures = (turn) => (turn && typeof turn === "object" ? { pictures: [], ...turn } : turn);

const isPicture = (picture) => typeof picture?.name === "string" && /^data:\w+\/(png|jpeg);base64,/.test(picture.url);

function isTurn(turn) {
  const answer = turn?.answer;
  const seen = Array.isArray(turn?.pictures) && turn.pictures.every(isPicture);
  return seen && typeof turn.question === "string" && Boolean(answer) && TEXTS.every((name) => typeof answer[name] === "string");
}
