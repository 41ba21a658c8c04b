// Vercel AI SDK: the providers openai-compatible (chat) and openai (chat and responses), streams, tools in several steps.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  CAPITAL, REAL, REAL_URL, SCRIPTED, SCRIPTED_URL, THINK, WEATHER, WEATHER_ANSWER, check, expect, getWeather,
} from "./exchange.mjs";

function models(url, name) {
  const settings = { baseURL: `${url}/v1`, apiKey: "none" };
  const openai = createOpenAI(settings);
  return [
    createOpenAICompatible({ ...settings, name: "cadence", includeUsage: true })(name),
    openai.chat(name),
    openai.responses(name),
  ];
}

const weather = tool({
  description: "The weather in a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async (input) => getWeather(input),
});
const brief = { prompt: CAPITAL, maxOutputTokens: 30, temperature: 0, maxRetries: 0 };
const steps = { tools: { get_weather: weather }, stopWhen: stepCountIs(4), maxRetries: 0 };

await check("generate text", async () => {
  for (const model of models(REAL_URL, REAL)) {
    const { text, usage } = await generateText({ model, ...brief });
    expect(text.includes("Paris") && usage.outputTokens > 0, { provider: model.provider, text, usage });
  }
});

await check("stream text", async () => {
  for (const model of models(REAL_URL, REAL)) {
    const result = streamText({ model, ...brief, onError: () => {} });
    let text = "", pieces = 0;
    for await (const piece of result.textStream) (text += piece), pieces++;
    expect(text.includes("Paris") && pieces > 3, { provider: model.provider, text });
  }
});

await check("tool loop", async () => {
  for (const model of models(SCRIPTED_URL, SCRIPTED)) {
    for (const prompt of [WEATHER, THINK]) {
      const { text } = await generateText({ model, prompt, ...steps });
      expect(text === WEATHER_ANSWER, { provider: model.provider, text });
    }
  }
});

await check("tool loop stream", async () => {
  for (const model of models(SCRIPTED_URL, SCRIPTED)) {
    const result = streamText({ model, prompt: THINK, ...steps, onError: () => {} });
    await result.consumeStream();
    expect((await result.text) === WEATHER_ANSWER, { provider: model.provider, text: await result.text });
  }
});
