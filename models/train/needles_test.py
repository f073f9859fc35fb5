"""Tests of the data generator; plain Python: python3 models/train/needles_test.py"""

import json
import os
import random
import unittest
from array import array

import needles
from bpe import EOS

BASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "needle-tiny")
SPECS = [needles.RowSpec(512, 4, 10, 0.15, 5), needles.RowSpec(768, 4, 16, 0.2, 2),
         needles.RowSpec(4096, 2, 80, 0.3, 5), needles.RowSpec(12288, 2, 200, 0.3, 5)]


def decode(lexicon, ids):
    """Text of ids without special tokens."""
    return bytes_of(lexicon, ids).decode()


def bytes_of(lexicon, ids):
    tokenizer = lexicon.tokenizer
    back = {letter: byte for byte, letter in tokenizer._letters.items()}
    names = {i: name for name, i in tokenizer._vocab.items()}
    return "".join(back[c] for i in ids if i > 6 for c in names[i]).encode()


class NeedlesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lexicon = needles.Lexicon(BASE)

    def maker(self, seed):
        return needles.LineMaker(self.lexicon, random.Random(seed))

    def test_tokenizer_counts_and_places_as_the_prompt_file_says(self):
        path = os.path.join(BASE, "eval_prompts.jsonl")
        with open(path, encoding="utf-8") as file:
            items = [json.loads(line) for line in file]
        prompts = needles.read_prompts(self.lexicon, path)
        self.assertEqual(len(prompts), len(items))
        for prompt, item in zip(prompts, items):
            self.assertEqual(len(prompt.tokens), item["prompt_tokens"])
            self.assertEqual(len(prompt.answer), needles.ANSWER_TOKENS)
            start = prompt.needle_position + needles.CODE_IN_NEEDLE
            self.assertEqual(prompt.tokens[start:start + needles.CODE_SLOTS],
                             prompt.answer[needles.CODE_IN_ANSWER:][:needles.CODE_SLOTS])

    def test_lines_are_what_the_tokenizer_makes_of_their_text(self):
        maker = self.maker(1)
        lines = [maker.filler() for _ in range(600)]
        lines += [maker.needle(pair, maker.code()) for pair in maker.names(300, True)]
        tokens = sum(lines, [])
        self.assertEqual(self.lexicon.tokenizer.encode(decode(self.lexicon, tokens)), tokens)

    def test_rows_have_the_length_and_point_at_the_asked_code(self):
        for spec in SPECS:
            maker = self.maker(spec.length)
            for _ in range(20):
                row = needles.make_row(maker, spec)
                self.assertEqual(len(row.tokens), spec.length + 1)
                self.assertEqual(len(row.kinds), spec.length)
                self.assertLessEqual(len(row.answer_positions), needles.ANSWER_POSITIONS)
                self.assertGreaterEqual(len(row.answer_positions) // needles.CODE_SLOTS,
                                        spec.min_questions)
                for position, needle in zip(row.answer_positions, row.needle_positions):
                    self.assertLess(needle, position)
                    self.assertEqual(row.tokens[position + 1], row.tokens[needle])
                    slot = row.kinds[position] - needles.CODE
                    if slot in (0, needles.CODE_SLOTS - 1):  # a word, behind the needle's "is"
                        self.assertEqual(row.tokens[needle - slot - 1], self.lexicon.needle_is[0])
                self.assertEqual(row.kinds.count(needles.ANSWER) // 6,
                                 row.tokens.count(EOS))

    def test_held_out_names_are_never_a_needle_in_training(self):
        maker = self.maker(7)
        spec = SPECS[2]
        head = list(self.lexicon.needle_head)
        firsts = {ids[0]: i for i, ids in enumerate(self.lexicon.ids["FIRST"])}
        lasts = {ids[0]: i for i, ids in enumerate(self.lexicon.ids["LAST"])}
        pairs = []
        for _ in range(40):
            tokens = needles.make_row(maker, spec).tokens
            for at in range(len(tokens) - 6):
                if tokens[at:at + 4] == head:
                    pairs.append((firsts[tokens[at + 4]], lasts[tokens[at + 5]]))
        self.assertGreater(len(pairs), 1000)
        self.assertFalse([pair for pair in pairs if needles.is_held_out(*pair)])

    def test_prompts_ask_about_held_out_names_at_the_wanted_depth(self):
        for dense in (False, True):
            for depth in (0, 0.5, 1):
                prompt = needles.make_prompt(self.lexicon, random.Random(3), 1800, depth, dense)
                self.assertLessEqual(len(prompt.tokens), 1800)
                self.assertGreater(len(prompt.tokens), 1760)
                place = prompt.needle_position / len(prompt.tokens)
                self.assertAlmostEqual(place, depth, delta=0.03)
                start = prompt.needle_position + needles.CODE_IN_NEEDLE
                self.assertEqual(prompt.tokens[start:start + needles.CODE_SLOTS],
                                 prompt.answer[needles.CODE_IN_ANSWER:][:needles.CODE_SLOTS])

    def test_a_batch_holds_its_fields_and_is_the_same_for_the_same_seed(self):
        for spec in SPECS:
            data = needles.make_batch(self.lexicon, spec, 5)
            self.assertEqual(data, needles.make_batch(self.lexicon, spec, 5))
            self.assertNotEqual(data, needles.make_batch(self.lexicon, spec, 6))
            values = sum(rows * width for _, (rows, width) in needles.batch_fields(spec))
            self.assertEqual(len(data), 2 * values)
            tokens = array("h", data)[:spec.batch * (spec.length + 1)]
            self.assertEqual(tokens[0], 0)
            self.assertLess(max(tokens), 1024)


if __name__ == "__main__":
    unittest.main()
