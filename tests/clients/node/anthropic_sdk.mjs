// Anthropic's Node client: messages, streams, a tool loop, thinking, token counts, errors.
import Anthropic from "@anthropic-ai/sdk";
import {
  CAPITAL, REAL, REAL_URL, SCHEMA, SCRIPTED, SCRIPTED_URL, THINK, TOO_LONG, WEATHER, WEATHER_ANSWER,
  check, expect, fails, getWeather,
} from "./exchange.mjs";

const connect = (baseURL) => new Anthropic({ baseURL, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const real = connect(REAL_URL), scripted = connect(SCRIPTED_URL);
const ask = (content) => [{ role: "user", content }];
const tools = [{ name: "get_weather", description: "The weather in a city", input_schema: SCHEMA }];
const brief = { model: REAL, max_tokens: 30 };

await check("messages", async () => {
  const answer = await real.messages.create({ ...brief, messages: ask(CAPITAL), system: "Be brief." });
  expect(answer.content[0].text.includes("Paris"), answer);
});

await check("stream", async () => {
  const stream = real.messages.stream({ ...brief, messages: ask(CAPITAL) });
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  expect(text.includes("Paris") && final.content[0].text === text && final.usage.output_tokens > 0, final);
});

async function loop(question, more) {
  const messages = ask(question);
  for (let turn = 0; turn < 4; turn++) {
    const answer = await scripted.messages
      .stream({ model: SCRIPTED, max_tokens: 2000, messages, tools, ...more })
      .finalMessage();
    messages.push({ role: "assistant", content: answer.content });
    if (answer.stop_reason !== "tool_use") return answer.content.at(-1).text;
    const calls = answer.content.filter((block) => block.type === "tool_use");
    const content = calls.map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: getWeather(input) }));
    messages.push({ role: "user", content });
  }
  throw new Error("the loop does not end");
}

await check("tool loop", async () => {
  const plain = await loop(WEATHER, {});
  expect(plain === WEATHER_ANSWER, plain);
  const thought = await loop(THINK, { thinking: { type: "enabled", budget_tokens: 1024 } });
  expect(thought === WEATHER_ANSWER, thought);
});

await check("tool runner", async () => {
  const runnable = { ...tools[0], run: getWeather, parse: (input) => input };
  const final = await scripted.beta.messages.toolRunner({
    model: SCRIPTED, max_tokens: 500, messages: ask(WEATHER), tools: [runnable],
  });
  expect(final.content.at(-1).text === WEATHER_ANSWER, final);
});

await check("count tokens", async () => {
  const { input_tokens } = await real.messages.countTokens({ model: REAL, messages: ask(CAPITAL) });
  expect(input_tokens > 5 && input_tokens < 100, input_tokens);
});

await check("errors", async () => {
  const wrong = { ...brief, model: "no-such-model", messages: ask("x") };
  await fails(real.messages.create(wrong), Anthropic.NotFoundError, "no-such-model");
  await fails(real.messages.create({ ...brief, messages: ask(TOO_LONG) }), Anthropic.BadRequestError, "maximum context length");
});
