/** Puts the page together: the header, the views, the key. */
import { apiKey, exists, getJson, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, setText } from "./dom.js";
import { EmbedView } from "./embed.js";
import { EngineView } from "./engine.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { SpeechView } from "./speech.js";
import { TokenTip } from "./tip.js";

const RETRY_MS = 3000;
const VIEWS = ["chat", "embed", "speech", "engine"];
const settings = new Settings();
const chat = new Chat(settings, askForKey);
const models = new Models(choose);
const engine = new EngineView(() => chat.requestId, models);
new EmbedView(askForKey);
new SpeechView(askForKey);
new TokenTip().watch(byId("messages"));

for (const view of VIEWS) byId(`view-${view}`).addEventListener("click", () => show(view));

byId("key").value = apiKey();
byId("key").addEventListener("change", () => {
  setApiKey(byId("key").value);
  connect();
});
byId("key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  settings.close();
  byId("prompt").focus();
});
byId("enter-key").addEventListener("click", () => settings.enterKey());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (settings.open) settings.close();
  else chat.stop();
});
connect();

async function connect() {
  engine.ask();
  try {
    models.show((await getJson("v1/models")).data);
  } catch (error) {
    if (error.status === 401) askForKey();
    else setTimeout(connect, RETRY_MS);
    return;
  }
  byId("key-note").hidden = true;
  byId("docs").hidden = !(await exists("docs"));
}

/** Another model is asked, or something has changed about it. */
function choose(model) {
  chat.sees = Boolean(model.input_modalities?.includes("image"));
  const length = model.max_model_len;
  setText(byId("context"), length ? `${length.toLocaleString("en")} tokens of context` : "");
  engine.follow(model);
}

/** Says so and waits: a user who is typing goes on typing. */
function askForKey() {
  setText(byId("key-words"), apiKey() ? "The server refused this API key." : "This server needs an API key.");
  setText(byId("enter-key"), apiKey() ? "Change the key" : "Enter a key");
  byId("key-note").hidden = false;
}

function show(view) {
  document.body.dataset.view = view;
  for (const name of VIEWS) byId(`view-${name}`).setAttribute("aria-pressed", String(name === view));
}
