// The clients that people have, against a running server: npm openai and @anthropic-ai/sdk. Started by sdk_test.sh with the server's
// address as the argument; packages come from NODE_PATH. Every check that fails is printed; exit status 1 then.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(import.meta.url);
const OpenAI = require("openai").default ?? require("openai");
const Anthropic = require("@anthropic-ai/sdk").default ?? require("@anthropic-ai/sdk");
const url = process.argv[2];
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "none" });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none" });
const question = "What day comes before Thursday?", expected = "Wednesday comes before Thursday.";
const model = "gemma4-demo";
let failed = 0, checks = 0;

function check(ok, what) {
  checks++;
  if (!ok) { failed++; console.log("FAIL", what); }
}

async function fails(promise) {
  try { await promise; } catch (e) { return e; }
  return null;
}

const messages = [{ role: "user", content: question }];
const weather = { name: "get_weather", description: "Get the weather of a city.", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } };
const timer = { name: "set_timer", description: "Set a timer in minutes.", parameters: { type: "object", properties: { minutes: { type: "string" } }, required: ["minutes"] } };
const tools = [weather, timer].map(f => ({ type: "function", function: f }));
const ask = [{ role: "user", content: "How is the weather in Boston today?" }];

// ---- openai ----
{
  const list = await openai.models.list();
  check(list.data[0].id === model, "models.list");
  check((await fails(openai.models.retrieve("other")))?.status === 404, "models.retrieve of an unknown one");
  const a = await openai.chat.completions.create({ model, messages, temperature: 0 });
  check(a.choices[0].message.content === expected && a.usage.total_tokens > 10, "chat.completions.create");
  const final = await openai.chat.completions.stream({ model, messages, temperature: 0, stream_options: { include_usage: true } }).finalChatCompletion();
  check(final.choices[0].message.content === expected && final.usage.completion_tokens > 3, "chat.completions.stream");
  const call = await openai.chat.completions.stream({ model, messages: ask, tools, temperature: 0 }).finalChatCompletion();
  check(call.choices[0].finish_reason === "tool_calls" && JSON.parse(call.choices[0].message.tool_calls[0].function.arguments).city === "Boston", "a streamed tool call");
  let ran = 0;
  const runner = openai.chat.completions.runTools({ model, messages: ask, temperature: 0, max_tokens: 40, tools: [{ type: "function", function: { ...weather, parse: JSON.parse, function: async ({ city }) => { ran++; return "sunny in " + city; } } }, tools[1]].slice(0, 1) }, { maxChatCompletions: 2 });
  await runner.done();
  check(ran >= 1, "runTools runs the tool");
  const typed = await openai.chat.completions.create({ model, temperature: 0, messages: [{ role: "user", content: "Answer in JSON with name, age and city. My friend Hugo from Boston is 45." }],
    response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: { type: "object", properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } }, required: ["name", "age", "city"], additionalProperties: false } } } });
  check(JSON.stringify(JSON.parse(typed.choices[0].message.content)) === '{"name":"Hugo","age":45,"city":"Boston"}', "response_format json_schema");
  const bad = await fails(openai.chat.completions.create({ model, messages, temperature: -1 }));
  check(bad?.status === 400 && bad.param === "temperature", "a 400 is BadRequestError with its param");
  check((await fails(openai.chat.completions.create({ model: "other", messages })))?.code === "model_not_found", "unknown model");
  const stream = await openai.chat.completions.create({ model, messages, stream: true, ignore_eos: true, max_tokens: 4000 });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 5) break;
  check(chunks === 5, "a stream can be left");
  const r = await openai.responses.create({ model, input: question, temperature: 0 });
  check(r.output_text === expected, "responses.create");
  const streamed = await openai.responses.stream({ model, input: question, temperature: 0 }).finalResponse();
  check(streamed.output_text === expected && streamed.status === "completed", "responses.stream");
  const next = await openai.responses.create({ model, input: "Hello!", previous_response_id: r.id, temperature: 0, max_output_tokens: 8 });
  check(next.previous_response_id === r.id && next.usage.input_tokens_details.cached_tokens > 10, "previous_response_id");
  const c = await openai.completions.create({ model, prompt: "<|turn>user\n" + question + "<turn|>\n<|turn>model\n", temperature: 0 });
  check(c.choices[0].text === expected, "completions.create");
}

// ---- anthropic ----
{
  const a = await anthropic.messages.create({ model, max_tokens: 50, messages, temperature: 0 });
  check(a.content[0].text === expected && a.stop_reason === "end_turn", "messages.create");
  const final = await anthropic.messages.stream({ model, max_tokens: 50, messages, temperature: 0 }).finalMessage();
  check(final.content[0].text === expected && final.usage.output_tokens > 3, "messages.stream");
  const count = await anthropic.messages.countTokens({ model, messages });
  check(count.input_tokens === a.usage.input_tokens + a.usage.cache_read_input_tokens, "countTokens");
  const t = [weather, timer].map(f => ({ name: f.name, description: f.description, input_schema: f.parameters }));
  const call = await anthropic.messages.stream({ model, max_tokens: 50, messages: ask, tools: t, temperature: 0 }).finalMessage();
  const use = call.content.find(b => b.type === "tool_use");
  check(call.stop_reason === "tool_use" && use?.input.city === "Boston", "a streamed tool_use");
  const picture = readFileSync(process.argv[3]).toString("base64");
  const seen = await anthropic.messages.create({ model, max_tokens: 60, temperature: 0, messages: [{ role: "user", content: [{ type: "image", source: { type: "base64", media_type: "image/png", data: picture } }, { type: "text", text: process.argv[4] }] }] });
  check(seen.content[0].text === process.argv[5], "a picture: " + seen.content[0].text);
  const bad = await fails(anthropic.messages.create({ model, max_tokens: 10, messages: [] }));
  check(bad?.status === 400 && bad.error?.error?.type === "invalid_request_error", "a 400 is BadRequestError");
}
console.log(`${checks - failed} of ${checks} checks passed`);
process.exit(failed ? 1 : 0);
