// The official Node client: chat, completions, responses, tool loops, errors.
import OpenAI from "openai";
import {
  CAPITAL, REAL, REAL_URL, SCHEMA, SCRIPTED, SCRIPTED_URL, SUNNY, THINK, TOO_LONG, WEATHER, WEATHER_ANSWER,
  check, expect, fails, getWeather,
} from "./exchange.mjs";

const connect = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const real = connect(REAL_URL), scripted = connect(SCRIPTED_URL);
const ask = (content) => [{ role: "user", content }];
const tools = [{ type: "function", function: { name: "get_weather", description: "Weather", parameters: SCHEMA } }];
const brief = { model: REAL, max_tokens: 30, temperature: 0 };

await check("models", async () => {
  const names = [];
  for await (const model of real.models.list()) names.push(model.id);
  expect(names.includes(REAL), names);
});

await check("chat", async () => {
  const answer = await real.chat.completions.create({ ...brief, messages: ask(CAPITAL) });
  expect(answer.choices[0].message.content.includes("Paris"), answer);
});

await check("chat stream", async () => {
  const options = { stream: true, stream_options: { include_usage: true } };
  const stream = await real.chat.completions.create({ ...brief, ...options, messages: ask(CAPITAL) });
  let text = "", usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  expect(text.includes("Paris") && usage.completion_tokens > 0, { text, usage });
});

await check("completions", async () => {
  const answer = await real.completions.create({ ...brief, prompt: "The capital of France is" });
  expect(answer.choices[0].text.length > 0, answer);
});

await check("responses and stream", async () => {
  const fields = { model: REAL, input: CAPITAL, max_output_tokens: 30, temperature: 0 };
  const whole = await real.responses.create(fields);
  const final = await real.responses.stream(fields).finalResponse();
  expect(whole.output_text.includes("Paris") && final.output_text === whole.output_text, final);
});

await check("tool loop", async () => {
  const messages = ask(WEATHER);
  for (let turn = 0; turn < 4; turn++) {
    const { message } = (await scripted.chat.completions.create({ model: SCRIPTED, messages, tools })).choices[0];
    messages.push(message);
    if (!message.tool_calls?.length) return expect(message.content === WEATHER_ANSWER, message);
    for (const call of message.tool_calls) {
      const content = getWeather(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
  throw new Error("the loop does not end");
});

await check("tool runner stream", async () => {
  const runnable = { name: "get_weather", description: "Weather", parameters: SCHEMA, parse: JSON.parse, function: getWeather };
  const runner = scripted.chat.completions.runTools({
    model: SCRIPTED, stream: true, messages: ask(THINK), tools: [{ type: "function", function: runnable }],
  });
  expect((await runner.finalContent()) === WEATHER_ANSWER, await runner.finalContent());
});

await check("responses tool loop", async () => {
  const flat = [{ type: "function", name: "get_weather", parameters: SCHEMA, strict: false }];
  const first = await scripted.responses.create({ model: SCRIPTED, input: THINK, tools: flat });
  const call = first.output.find((item) => item.type === "function_call");
  const input = [...ask(THINK), ...first.output, { type: "function_call_output", call_id: call.call_id, output: SUNNY }];
  const last = await scripted.responses.create({ model: SCRIPTED, input, tools: flat, store: false });
  expect(last.output_text === WEATHER_ANSWER, last);
});

await check("errors", async () => {
  const wrong = { ...brief, model: "no-such-model", messages: ask("x") };
  await fails(real.chat.completions.create(wrong), OpenAI.NotFoundError, "no-such-model");
  const long = { ...brief, messages: ask(TOO_LONG) };
  await fails(real.chat.completions.create(long), OpenAI.BadRequestError, "maximum context length");
});
