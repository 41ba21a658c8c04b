// What the client scripts share: where the servers are, what is asked, and a line of JSON per check on stdout.
// Run as `node SCRIPT SCRIPTED_URL REAL_URL`; the same questions as in tests/clients/python/exchange.py.

export const [SCRIPTED_URL, REAL_URL] = process.argv.slice(2);
export const SCRIPTED = "scripted", REAL = "smollm2"; // names of the models
export const WEATHER = "What is the weather in Paris?";
export const THINK = "Think about the weather in Paris.";
export const CAPITAL = "What is the capital of France? Answer in one short sentence.";
export const SUNNY = "sunny, 21 degrees"; // what the tool says about Paris
export const WEATHER_ANSWER = `The tool says: ${SUNNY}`;
export const TOO_LONG = "word ".repeat(12000);
export const SCHEMA = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

export function getWeather({ city }) {
  return city === "Paris" ? SUNNY : `rain in ${city}`;
}

export async function check(name, run) {
  let failed = "";
  try {
    await run();
  } catch (error) {
    console.error(error);
    failed = `${error.constructor.name}: ${error.message}`;
    process.exitCode = 1;
  }
  console.log("CHECK " + JSON.stringify({ check: name, failed }));
}

export function expect(condition, told) {
  if (!condition) throw new Error("unexpected: " + JSON.stringify(told)?.slice(0, 500));
}

export async function fails(promise, kind, words) {
  let error;
  try {
    await promise;
  } catch (caught) {
    error = caught;
  }
  expect(error instanceof kind, String(error));
  expect(error.message.includes(words), error.message);
}
