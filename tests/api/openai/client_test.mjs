// node client_test.mjs URL MODEL: exercises a running router with the official OpenAI client.
// The last line is "N passed, M failed"; exit code 0 if M is 0.
import OpenAI, { APIError, BadRequestError, NotFoundError } from 'openai';

const [url, model] = process.argv.slice(2);
if (!url || !model) {
  console.error('usage: node client_test.mjs http://127.0.0.1:PORT MODEL');
  process.exit(2);
}
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 120_000 });
const messages = [{ role: 'user', content: 'Entry #1: the red boat in Rome 12 was sold by Anna on Monday.\nhello' }];

function expect(condition, what) {
  if (!condition) throw new Error(`expected ${what}`);
}

async function expectError(type, code, call) {
  try {
    await call();
  } catch (error) {
    expect(error instanceof type, `${type.name}, got ${error}`);
    expect(error.code === code, `code ${code}, got ${error.code}`);
    return error;
  }
  throw new Error(`expected ${type.name}, got an answer`);
}

async function collect(stream) {
  const result = { text: '', finish: null, usage: null, chunks: 0 };
  for await (const chunk of stream) {
    result.chunks += 1;
    if (chunk.usage) result.usage = chunk.usage;
    for (const choice of chunk.choices) {
      result.text += choice.delta?.content ?? choice.text ?? '';
      result.finish = choice.finish_reason ?? result.finish;
    }
  }
  return result;
}

const tests = {
  async 'lists and retrieves the model'() {
    const ids = [];
    for await (const entry of client.models.list()) ids.push(entry.id);
    expect(ids.includes(model), `${model} among ${ids}`);
    expect((await client.models.retrieve(model)).id === model, 'the model');
  },
  async 'a streamed chat equals the whole one'() {
    const options = { model, messages, temperature: 0, max_tokens: 24 };
    const whole = await client.chat.completions.create(options);
    const streamed = await collect(await client.chat.completions.create({
      ...options, stream: true, stream_options: { include_usage: true },
    }));
    expect(whole.choices[0].message.content === streamed.text, 'the same text');
    expect(whole.choices[0].finish_reason === streamed.finish, 'the same finish reason');
    expect(whole.usage.completion_tokens === streamed.usage.completion_tokens, 'the same usage');
    expect(whole.usage.total_tokens === whole.usage.prompt_tokens + whole.usage.completion_tokens, 'a sum');
  },
  async 'the same seed gives the same sampled text'() {
    const options = { model, messages, temperature: 1, seed: 5, max_tokens: 16 };
    const [a, b] = await Promise.all([1, 2].map(() => client.chat.completions.create(options)));
    expect(a.choices[0].message.content === b.choices[0].message.content, 'equal texts');
  },
  async 'logprobs name every token'() {
    const answer = await client.chat.completions.create({
      model, messages, max_tokens: 4, logprobs: true, top_logprobs: 3,
    });
    const { content } = answer.choices[0].logprobs;
    expect(content.length === answer.usage.completion_tokens, 'one entry a token');
    expect(content.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 3), 'logprobs');
  },
  async 'completions take text and token ids'() {
    for (const prompt of ['hello', ['hello'], [5, 6, 7], [[5, 6, 7]]]) {
      const answer = await client.completions.create({ model, prompt, max_tokens: 4 });
      expect(answer.object === 'text_completion' && typeof answer.choices[0].text === 'string', 'text');
    }
    const streamed = await collect(await client.completions.create({
      model, prompt: 'hello', max_tokens: 4, stream: true,
    }));
    expect(streamed.finish !== null, 'a finish reason');
  },
  async 'n choices come from one seed, whole and streamed'() {
    const options = { model, messages, temperature: 1, seed: 11, max_tokens: 12, n: 4 };
    const whole = await client.chat.completions.create(options);
    expect(whole.choices.map((choice) => choice.index).join() === '0,1,2,3', 'four choices');
    const texts = ['', '', '', ''];
    const finishes = [null, null, null, null];
    for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
      for (const choice of chunk.choices) {
        texts[choice.index] += choice.delta.content ?? '';
        finishes[choice.index] = choice.finish_reason ?? finishes[choice.index];
      }
    }
    whole.choices.forEach((choice, i) => {
      expect(choice.message.content === texts[i], `choice ${i} to be the same streamed`);
      expect(choice.finish_reason === finishes[i], `the finish reason of choice ${i}`);
    });
    const alone = await client.chat.completions.create({ ...options, n: 1 });
    expect(alone.choices[0].message.content === texts[0], 'the first choice to be that of n = 1');
    expect(alone.usage.prompt_tokens === whole.usage.prompt_tokens, 'the prompt counted once');
  },
  async 'echo with logprobs scores a prompt'() {
    const options = { model, prompt: 'The secret code for the river', echo: true, logprobs: 2, max_tokens: 0 };
    const answer = await client.completions.create(options);
    const { tokens, token_logprobs: scores, text_offset: offsets } = answer.choices[0].logprobs;
    expect(answer.choices[0].text === options.prompt && tokens.join('') === options.prompt, 'the prompt');
    expect(tokens.length === answer.usage.prompt_tokens && offsets.length === tokens.length, 'one entry a token');
    expect(scores[0] === null && scores.slice(1).every((score) => score <= 0), 'scores from the second token on');
    expect(answer.usage.completion_tokens === 0, 'no new tokens');
  },
  async 'tools are called, or refused by a model without them'() {
    const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } }];
    const unused = await client.chat.completions.create({ model, messages, tools, tool_choice: 'none', max_tokens: 2 });
    expect(!unused.choices[0].message.tool_calls, 'no calls');
    await expectError(BadRequestError, 'unsupported_parameter',
      () => client.chat.completions.create({ model, messages, tools, tool_choice: 'required' }));
    const error = await expectError(BadRequestError, 'unsupported_parameter',
      () => client.chat.completions.create({ model, messages, tools }));
    expect(error.param === 'tools' && error.message.includes('encoding'), 'what is missing');
  },
  async 'errors arrive as the types of the client'() {
    await expectError(NotFoundError, 'model_not_found',
      () => client.chat.completions.create({ model: 'no-such-model', messages }));
    await expectError(BadRequestError, 'invalid_value',
      () => client.chat.completions.create({ model, messages, max_tokens: 0 }));
    await expectError(BadRequestError, 'context_length_exceeded',
      () => client.chat.completions.create({ model, messages, max_tokens: 2 ** 31 }));
    const error = await expectError(BadRequestError, 'invalid_value',
      () => client.chat.completions.create({ model, messages, logit_bias: { 99999999: 1 } }));
    expect(error.param === 'logit_bias.99999999', 'the parameter');
  },
  async 'an aborted stream leaves the router serving'() {
    const stream = await client.chat.completions.create({
      model, messages, stream: true, max_tokens: 512, ignore_eos: true,
    });
    for await (const chunk of stream) {
      expect(chunk.id.startsWith('chatcmpl-'), 'an id');
      stream.controller.abort();
      break;
    }
    await client.chat.completions.create({ model, messages, max_tokens: 2 });
  },
};

let passed = 0;
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    passed += 1;
    console.log(`ok   ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}: ${error instanceof APIError ? `${error.status} ` : ''}${error.message}`);
  }
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
