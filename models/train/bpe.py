"""The byte-level BPE of tokenizer.json, for ASCII text: all that needle prompts are made of."""

import json
import os
import re

BOS, EOS, USER, ASSISTANT, END_THINK = 0, 1, 3, 4, 6

_DIGITS = re.compile(r"[0-9]{1,3}")
_PUNCT = r"!-/:-@\[-`{-~"
_WORDS = re.compile(
    rf"[{_PUNCT}][A-Za-z]+|[^\r\nA-Za-z{_PUNCT}]?[A-Za-z]+| ?[{_PUNCT}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def _byte_letters():
    """The printable stand-in of each ASCII byte in a byte-level vocabulary."""
    letters, shifted = {}, 256
    for byte in range(128):
        if 33 <= byte <= 126:
            letters[chr(byte)] = chr(byte)
        else:
            letters[chr(byte)] = chr(shifted)
            shifted += 1
    return letters


class Tokenizer:
    def __init__(self, model_dir):
        with open(os.path.join(model_dir, "tokenizer.json"), encoding="utf-8") as file:
            model = json.load(file)["model"]
        self._vocab = model["vocab"]
        pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
        self._rank = {tuple(pair): rank for rank, pair in enumerate(pairs)}
        self._letters = _byte_letters()
        self._cache = {}

    def encode(self, text):
        """Token ids of ASCII text without special tokens."""
        if not text.isascii():
            raise ValueError(f"not ASCII: {text!r}")
        ids, end = [], 0
        for digits in _DIGITS.finditer(text):
            self._encode_words(text[end:digits.start()], ids)
            ids.extend(self._encode_piece(digits.group()))
            end = digits.end()
        self._encode_words(text[end:], ids)
        return ids

    def _encode_words(self, text, ids):
        end = 0
        for match in _WORDS.finditer(text):
            if match.start() > end:
                ids.extend(self._encode_piece(text[end:match.start()]))
            ids.extend(self._encode_piece(match.group()))
            end = match.end()
        if end < len(text):
            ids.extend(self._encode_piece(text[end:]))

    def _encode_piece(self, piece):
        ids = self._cache.get(piece)
        if ids is None:
            ids = self._cache[piece] = self._merge([self._letters[c] for c in piece])
        return ids

    def _merge(self, parts):
        while len(parts) > 1:
            ranks = [self._rank.get(pair, len(self._rank)) for pair in zip(parts, parts[1:])]
            best = min(ranks)
            if best == len(self._rank):
                break
            at = ranks.index(best)
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self._vocab[part] for part in parts)
