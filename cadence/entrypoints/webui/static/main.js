/** Puts the page together: the header, the two views, the key. */
import { apiKey, getJson, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, element, setText } from "./dom.js";
import { EngineView } from "./engine.js";
import { Settings } from "./settings.js";
import { TokenTip } from "./tip.js";

const chat = new Chat(new Settings(), askForKey);
const engine = new EngineView(() => chat.requestId);
new TokenTip().watch(byId("messages"));

for (const view of ["chat", "engine"]) byId(`view-${view}`).addEventListener("click", () => show(view));

byId("key").value = apiKey();
byId("key").addEventListener("change", () => {
  setApiKey(byId("key").value);
  connect();
});
byId("key").addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    byId("prompt").focus();
  }
});
connect();

async function connect() {
  engine.ask();
  try {
    showModels((await getJson("v1/models")).data);
  } catch (error) {
    if (error.status === 401) askForKey();
    else setTimeout(connect, 3000);
  }
}

function showModels(models) {
  const select = byId("model");
  const chosen = select.value;
  select.replaceChildren(...models.map((model) => element("option", "", model.id)));
  if (models.some((model) => model.id === chosen)) select.value = chosen;
  select.disabled = models.length < 2;
  const length = models[0]?.max_model_len;
  setText(byId("context"), length ? `${length.toLocaleString("en")} tokens of context` : "");
}

function askForKey() {
  byId("more").open = true;
  byId("key").focus();
}

function show(view) {
  document.body.dataset.view = view;
  for (const name of ["chat", "engine"]) byId(`view-${name}`).setAttribute("aria-pressed", String(name === view));
}
