"""Training rows and evaluation prompts: needle facts hidden among everyday lines."""

import json
import math
import os
import random
from array import array
from dataclasses import dataclass

from bpe import ASSISTANT, BOS, END_THINK, EOS, USER, Tokenizer

CODE_SLOTS = 8        # tokens of a code: word, dash, four digits, dash, word
CODE_IN_NEEDLE = 7    # place of a code's first token in its needle line
ANSWER_TOKENS = 14    # "The secret code is W-dddd-W." and EOS
CODE_IN_ANSWER = 4
MAX_QUESTIONS = 8
ANSWER_POSITIONS = CODE_SLOTS * MAX_QUESTIONS
RANDOM_POSITIONS = 64
# What a target token is, besides CODE + slot.
OTHER, ANSWER, CODE = 0, 1, 2


def is_held_out(first, last):
    """Pairs that are never a needle in training and always the asked one in evaluation."""
    return (7 * first + 3 * last) % 10 == 0


class Lexicon:
    """The words of the lines, as token ids with the space before them."""

    def __init__(self, model_dir):
        self.tokenizer = Tokenizer(model_dir)
        with open(os.path.join(model_dir, "lexicon.json"), encoding="utf-8") as file:
            self.words = json.load(file)
        encode = self.tokenizer.encode
        self.ids = {name: [tuple(encode(" " + word)) for word in words]
                    for name, words in self.words.items()}
        self.code_start = self.ids["CODE"]
        self.code_end = [tuple(encode(word)) for word in self.words["CODE"]]
        self.digits = [encode(str(digit))[0] for digit in range(10)]
        self.space = encode(" 1")[0]
        self.dash = encode("-1")[0]
        self.needle_head = tuple(encode("The secret code for"))
        self.needle_is = tuple(encode(" is"))
        self.line_end = tuple(encode(".\n"))
        self.question_head = tuple(encode("What is the secret code for"))
        self.question_end = tuple(encode("?"))
        self.answer_head = tuple(encode("The secret code is"))
        self.answer_end = tuple(encode("."))
        self.pairs = [(f, l) for f in range(len(self.words["FIRST"]))
                      for l in range(len(self.words["LAST"]))]
        self.held_out = [pair for pair in self.pairs if is_held_out(*pair)]
        self.fillers = [self._template(text) for text in (
            "Entry #3: the {ADJ} {OBJ} in {PLACE} #1 was {VERB} by {FIRST} on {DAY}.\n",
            "On {DAY} {FIRST} {LAST} {VERB} the {OBJ} near {PLACE} #2.\n",
            "The {OBJ} from {PLACE} #2 costs #3 coins and looks {ADJ}.\n",
            "Report #4: {PLACE} #1 is {ADJ} and the {OBJ} is {ADJ}.\n",
            "The {ADJ} {OBJ} for {FIRST} {LAST} is in {PLACE} #2.\n",
            "The {OBJ} in {PLACE} #2 was {VERB} and {VERB} on {DAY}.\n")]

    def _template(self, text):
        """Fixed token tuples, lists of words, and digit counts, in the order of the line."""
        parts, fixed = [], ""
        at = 0
        while at < len(text):
            word = text[at] == " " and text[at + 1] in "{#"
            if not word:
                fixed += text[at]
                at += 1
                continue
            if fixed:
                parts.append(tuple(self.tokenizer.encode(fixed)))
            fixed = ""
            if text[at + 1] == "#":
                parts.append(int(text[at + 2]))
                at += 3
            else:
                end = text.index("}", at)
                parts.append(self.ids[text[at + 2:end]])
                at = end + 1
        return parts + [tuple(self.tokenizer.encode(fixed))]


class LineMaker:
    """Random lines as lists of token ids."""

    def __init__(self, lexicon, rng):
        self.lexicon = lexicon
        self.rng = rng

    def _number(self, digits, out):
        rand = self.rng.random
        ids = self.lexicon.digits
        out.append(self.lexicon.space)
        out.append(ids[1 + int(rand() * 9)])
        for _ in range(digits - 1):
            out.append(ids[int(rand() * 10)])

    def filler(self):
        rand = self.rng.random
        line = []
        for part in self.lexicon.fillers[int(rand() * 6)]:
            if isinstance(part, tuple):
                line += part
            elif isinstance(part, list):
                line += part[int(rand() * len(part))]
            else:
                self._number(part, line)
        return line

    def code(self):
        lexicon, rng = self.lexicon, self.rng
        digits = [lexicon.digits[rng.randrange(10)] for _ in range(4)]
        return [*rng.choice(lexicon.code_start), lexicon.dash, *digits, lexicon.dash,
                *rng.choice(lexicon.code_end)]

    def name(self, pair):
        return self.lexicon.ids["FIRST"][pair[0]] + self.lexicon.ids["LAST"][pair[1]]

    def needle(self, pair, code):
        lexicon = self.lexicon
        return [*lexicon.needle_head, *self.name(pair), *lexicon.needle_is, *code,
                *lexicon.line_end]

    def question(self, pair):
        return [*self.lexicon.question_head, *self.name(pair), *self.lexicon.question_end]

    def answer(self, code):
        return [*self.lexicon.answer_head, *code, *self.lexicon.answer_end, EOS]

    def names(self, count, dense):
        """`count` different pairs that are not held out; `dense`: from a square block, so that
        many share a first or a last name."""
        rng = self.rng
        side = max(6, math.ceil(math.sqrt(1.6 * count + 4)))
        width = len(self.lexicon.words["FIRST"])
        height = len(self.lexicon.words["LAST"])
        if not dense or side > min(width, height):
            pool = [pair for pair in self.lexicon.pairs if not is_held_out(*pair)]
        else:
            firsts = rng.sample(range(width), side)
            lasts = rng.sample(range(height), side)
            pool = [(f, l) for f in firsts for l in lasts if not is_held_out(f, l)]
        return rng.sample(pool, min(count, len(pool)))


@dataclass(frozen=True)
class RowSpec:
    length: int          # S: a row has S + 1 tokens
    batch: int
    max_needles: int
    dense_share: float   # of rows with 30 to 95 % needle lines
    min_questions: int
    max_questions: int = MAX_QUESTIONS


@dataclass
class Row:
    tokens: list          # S + 1
    kinds: list           # S, of targets tokens[1:]
    answer_positions: list   # inputs whose target is a code token
    needle_positions: list   # where that code token stands in its needle


def _needle_count(maker, spec, questions, budget):
    """How many needles, and whether the row is dense. `budget` tokens hold all lines."""
    rng = maker.rng
    most = budget // (len(maker.needle((0, 0), maker.code())))
    dense = rng.random() < spec.dense_share
    if dense:
        lines = budget / 16.5  # of either sort
        count = round(lines * rng.uniform(0.3, 0.95))
    else:
        count = rng.randint(questions, max(questions, spec.max_needles))
    return max(questions, min(count, most)), dense


def _make_lines(maker, spec, questions, budget):
    """Lines of at most `budget` tokens: [(tokens, index of needle or -1)], needles [(pair, code)]."""
    count, dense = _needle_count(maker, spec, questions, budget)
    needles = [(pair, maker.code()) for pair in maker.names(count, dense)]
    lines = [(maker.needle(pair, code), i) for i, (pair, code) in enumerate(needles)]
    room = budget - sum(len(line) for line, _ in lines)
    while True:
        line = maker.filler()
        if len(line) > room:
            break
        lines.append((line, -1))
        room -= len(line)
    maker.rng.shuffle(lines)
    return lines, needles


def _turn_ends(maker, num_lines, questions):
    """Number of lines before each question."""
    if maker.rng.random() < 0.5:
        return [num_lines] * questions
    borders = sorted(maker.rng.randint(num_lines // 2, num_lines) for _ in range(questions - 1))
    return borders + [num_lines]


def _choose_questions(maker, lines, ends):
    """The needle each turn asks about, or None if too few had appeared."""
    asked, seen, at = [], [], 0
    for end in ends:
        seen += [needle for _, needle in lines[at:end] if needle >= 0]
        at = end
        if not seen:
            return None
        asked.append(seen.pop(maker.rng.randrange(len(seen))))
    return asked


def make_row(maker, spec):
    """One training row of `spec`."""
    questions = maker.rng.randint(spec.min_questions, spec.max_questions)
    overhead = 1 + len(maker.question((0, 0))) + 2 + ANSWER_TOKENS
    while 16 * questions + overhead * questions + 1 > spec.length + 1:
        questions -= 1
    budget = spec.length - overhead * questions
    lines, needles = _make_lines(maker, spec, questions, budget)
    ends = _turn_ends(maker, len(lines), questions)
    asked = _choose_questions(maker, lines, ends)
    if asked is None:
        ends = [len(lines)] * questions
        asked = _choose_questions(maker, lines, ends)
    return _lay_out(maker, spec, lines, needles, ends, asked)


def _lay_out(maker, spec, lines, needles, ends, asked):
    tokens, place, answers, at = [BOS], {}, [], 0
    for end, needle in zip(ends, asked):
        tokens.append(USER)
        for line, index in lines[at:end]:
            if index >= 0:
                place[index] = len(tokens)
            tokens += line
        at = end
        pair, code = needles[needle]
        tokens += maker.question(pair)
        tokens += (ASSISTANT, END_THINK)
        answers.append((len(tokens), needle))
        tokens += maker.answer(code)
    while len(tokens) < spec.length + 1:
        tokens += maker.filler()
    del tokens[spec.length + 1:]
    row = Row(tokens, [OTHER] * spec.length, [], [])
    for start, needle in answers:
        row.kinds[start - 1:start - 1 + ANSWER_TOKENS] = [ANSWER] * ANSWER_TOKENS
        for slot in range(CODE_SLOTS):
            position = start + CODE_IN_ANSWER + slot - 1
            row.kinds[position] = CODE + slot
            row.answer_positions.append(position)
            row.needle_positions.append(place[needle] + CODE_IN_NEEDLE + slot)
    return row


def make_batch(lexicon, spec, seed):
    """A batch as bytes: see `BATCH_FIELDS` for what, in which order."""
    rng = random.Random(seed)
    maker = LineMaker(lexicon, rng)
    tokens, kinds = array("h"), array("h")
    positions, needles, valid = array("h"), array("h"), array("h")
    for _ in range(spec.batch):
        row = make_row(maker, spec)
        missing = ANSWER_POSITIONS - len(row.answer_positions)
        tokens.extend(row.tokens)
        kinds.extend(row.kinds)
        positions.extend(row.answer_positions + [0] * missing)
        positions.extend(rng.randrange(spec.length) for _ in range(RANDOM_POSITIONS))
        needles.extend(row.needle_positions + [0] * missing)
        valid.extend([1] * len(row.answer_positions) + [0] * missing)
    return (tokens + kinds + positions + needles + valid).tobytes()


def batch_fields(spec):
    """Name and shape of the i16 arrays that `make_batch` puts one after another."""
    rows = spec.batch
    return [("tokens", (rows, spec.length + 1)), ("kinds", (rows, spec.length)),
            ("positions", (rows, ANSWER_POSITIONS + RANDOM_POSITIONS)),
            ("needles", (rows, ANSWER_POSITIONS)), ("valid", (rows, ANSWER_POSITIONS))]


@dataclass
class Prompt:
    tokens: list       # with BOS, User, Assistant, </think>
    answer: list       # ANSWER_TOKENS tokens
    needle_position: int   # of the needle line's first token
    group: str         # what it is counted under


def make_prompt(lexicon, rng, length, depth, dense):
    """An evaluation prompt of at most `length` tokens about a held-out name."""
    maker = LineMaker(lexicon, rng)
    asked = rng.choice(lexicon.held_out)
    code = maker.code()
    needle = maker.needle(asked, code)
    room = length - 4 - len(maker.question(asked)) - len(needle)
    count = room // len(needle) if dense else 6
    lines = [maker.needle(pair, maker.code()) for pair in maker.names(count, dense)]
    room -= sum(len(line) for line in lines)
    while True:
        line = maker.filler()
        if len(line) > room or dense:
            break
        lines.append(line)
        room -= len(line)
    rng.shuffle(lines)
    at = round(depth * len(lines))
    before = sum(lines[:at], [])
    tokens = [BOS, USER, *before, *needle, *sum(lines[at:], []), *maker.question(asked), ASSISTANT,
              END_THINK]
    group = f"{'dense' if dense else 'any'} {length}"
    return Prompt(tokens, maker.answer(code), 2 + len(before), group)


def read_prompts(lexicon, path):
    """The prompts of an eval_prompts.jsonl."""
    encode = lexicon.tokenizer.encode
    prompts = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            item = json.loads(line)
            prompts.append(Prompt(
                [BOS, USER, *encode(item["content"]), ASSISTANT, END_THINK],
                [*encode(item["answer"]), EOS], item["needle_token_pos"],
                f"file {item['mode']} {item['length_class']}"))
    return prompts
