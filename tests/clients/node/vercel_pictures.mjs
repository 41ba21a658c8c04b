// Vercel AI SDK with pictures: parts of messages by the providers openai-compatible and openai (chat and responses).
// Run as `node vercel_pictures.mjs URL PICTURE PICTURE`; the server runs a tiny LLaVA, whose words mean nothing.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { check, expect } from "./exchange.mjs";

const [url, ...files] = process.argv.slice(2);
const [first, second] = files.slice(0, 2).map((file) => readFileSync(file));
const settings = { baseURL: `${url}/v1`, apiKey: "none" };
const openai = createOpenAI(settings);
const models = [
  createOpenAICompatible({ ...settings, name: "cadence" })("llava"),
  openai.chat("llava"),
  openai.responses("llava"),
];
const text = { type: "text", text: "what is the quick brown fox" };

function shown(...parts) {
  return {
    messages: [{ role: "user", content: [...parts, text] }],
    maxOutputTokens: 10, temperature: 0, maxRetries: 0,
  };
}

const asFile = (data, mediaType) => ({ type: "file", data, mediaType });
const said = async (model, ...parts) => (await generateText({ model, ...shown(...parts) })).text;

await check("generate text", async () => {
  for (const model of models) {
    const one = await said(model, asFile(first, "image/png"));
    const other = await said(model, asFile(second, "image/jpeg"));
    const again = await said(model, asFile(first.toString("base64"), "image/png"));
    const both = await said(model, asFile(first, "image/png"), asFile(second, "image/jpeg"));
    expect(one === again && new Set([one, other, both]).size === 3, { provider: model.provider, one, other, both });
  }
});

await check("stream text", async () => {
  for (const model of models) {
    const result = streamText({ model, ...shown(asFile(first, "image/png")), onError: () => {} });
    let streamed = "";
    for await (const piece of result.textStream) streamed += piece;
    expect(streamed === (await said(model, asFile(first, "image/png"))), { provider: model.provider, streamed });
  }
});

await check("errors", async () => {
  for (const model of models) {
    let error;
    try {
      await said(model, asFile(Buffer.from("no picture"), "image/png"));
    } catch (caught) {
      error = caught;
    }
    expect(error?.statusCode === 400, String(error));
  }
});
