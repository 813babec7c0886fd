"""ListOps in the sizes of the Long-Range Arena: nested operations on digits, and their value.

The recipe: at each place an operation stands with probability 1/4, else a digit; an operation has 2 to 10 arguments; at
most 10 operations lie in one another; an expression has 500 to 2,000 tokens (arXiv 1804.06028, 2011.04006). An
expression is drawn again until its length fits."""
from __future__ import annotations

import random
from typing import Any, List, Tuple

import numpy as np

OPERATIONS = {"[MIN": min, "[MAX": max, "[MED": lambda x: sorted(x)[(len(x) - 1) // 2] if len(x) % 2 else (
    sorted(x)[len(x) // 2 - 1] + sorted(x)[len(x) // 2]) // 2, "[SM": lambda x: sum(x) % 10}
WORDS = ["PAD", *map(str, range(10)), *OPERATIONS, "]"]
NUMBER = {word: i for i, word in enumerate(WORDS)}
VOCABULARY = len(WORDS)
DEEPEST, MOST_ARGUMENTS, SHARE = 10, 10, 0.25


class _TooLong(Exception):
    pass


def expression(draw: random.Random, shortest: int = 500, longest: int = 2000) -> Tuple[List[str], int]:
    """(words, value) of an expression of so many words."""
    def grow(depth: int, words: List[str]) -> int:
        if len(words) >= longest:
            raise _TooLong
        if depth >= DEEPEST or (depth > 0 and draw.random() >= SHARE):
            digit = draw.randrange(10)
            words.append(str(digit))
            return digit
        operation = draw.choice(list(OPERATIONS))
        words.append(operation)
        values = [grow(depth + 1, words) for _ in range(draw.randint(2, MOST_ARGUMENTS))]
        words.append("]")
        return OPERATIONS[operation](values)

    while True:
        words: List[str] = []
        try:
            value = grow(0, words)
        except _TooLong:
            continue
        if shortest <= len(words) <= longest:
            return words, value


def value_of(words: List[str]) -> int:
    """The value, read from the words alone."""
    open_: List[Tuple[str, List[int]]] = [("", [])]
    for word in words:
        if word in OPERATIONS:
            open_.append((word, []))
        elif word == "]":
            operation, values = open_.pop()
            open_[-1][1].append(OPERATIONS[operation](values))
        else:
            open_[-1][1].append(int(word))
    return open_[0][1][0]


def batch(seed: int, count: int, length: int, shortest: int = 500, longest: int = 2000) -> Tuple[Any, Any, Any]:
    """tokens (count, length) int64, padded behind; lens (count) int32; values (count) int64."""
    draw = random.Random(seed)
    tokens, lens = np.zeros((count, length), np.int64), np.zeros(count, np.int32)
    values = np.zeros(count, np.int64)
    for i in range(count):
        words, values[i] = expression(draw, shortest, min(longest, length))
        tokens[i, :len(words)], lens[i] = [NUMBER[word] for word in words], len(words)
    return tokens, lens, values
