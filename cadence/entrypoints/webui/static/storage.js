/** What the browser keeps: for this tab, and for all tabs of this server. Where it keeps nothing, memory does. */
const memory = new Map();
const FORGETFUL = {
  getItem: (name) => memory.get(name) ?? null,
  setItem: (name, value) => void memory.set(name, value),
  removeItem: (name) => void memory.delete(name),
};

export const session = () => open("sessionStorage");
export const local = () => open("localStorage");

function open(kind) {
  try {
    return window[kind] ?? FORGETFUL; // reading it throws where the user has closed it
  } catch {
    return FORGETFUL;
  }
}
