// The official Node client: transcriptions, translations, streams and formats of a recording.
// Run as `node openai_audio.mjs SPEECH_URL RECORDING`; the server runs a tiny Whisper, whose words mean nothing.
import { createReadStream } from "node:fs";
import OpenAI, { toFile } from "openai";
import { check, expect, fails } from "./exchange.mjs";

const [SPEECH_URL, RECORDING] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${SPEECH_URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const transcribe = (fields = {}) =>
  client.audio.transcriptions.create({ model: "whisper", language: "en", file: createReadStream(RECORDING), ...fields });

await check("transcriptions", async () => {
  const answer = await transcribe({ prompt: "Dickens." });
  expect(typeof answer.text === "string" && answer.usage.seconds === 3, answer);
});

await check("formats", async () => {
  const text = await transcribe({ response_format: "text" });
  expect(text.trim() === (await transcribe()).text, text);
  const verbose = await transcribe({ response_format: "verbose_json", timestamp_granularities: ["segment"] });
  expect(verbose.duration === 3 && verbose.segments.length > 0, verbose);
  expect((await transcribe({ response_format: "vtt" })).startsWith("WEBVTT"));
  expect((await transcribe({ response_format: "srt" })).includes(" --> "));
});

await check("stream", async () => {
  let text = "", last;
  for await (const event of await transcribe({ stream: true })) {
    if (event.type === "transcript.text.delta") text += event.delta;
    last = event;
  }
  expect(last.type === "transcript.text.done" && last.text === text, { text, last });
  expect(text === (await transcribe()).text, text);
});

await check("translations", async () => {
  const answer = await client.audio.translations.create({ model: "whisper", file: createReadStream(RECORDING) });
  expect(typeof answer.text === "string", answer);
});

await check("errors", async () => {
  const file = await toFile(Buffer.from("RIFF and then nothing"), "a.wav");
  await fails(transcribe({ file }), OpenAI.BadRequestError, "file");
  await fails(transcribe({ language: "klingon" }), OpenAI.BadRequestError, "klingon");
});
