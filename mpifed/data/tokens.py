"""Texts as tokens: their words, their bytes, or the pieces of a tokenizer of a package."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import reading
from mpifed.errors import InputError

# Tokens of ``bytes``, and fewest of a byte-level tokenizer that is learnt.
BYTES = 256

# A word in lower case, or another sign.
WORD = re.compile(r"\w+|[^\w\s]")

Encode = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Tokeniser:
    """What makes whole numbers of a text.

    Attributes
    ----------
    kind : {'bytes', 'words', 'package'}
        Bytes of UTF-8; words, of which those that are not in the vocabulary are token 0; or a
        tokenizer of the package tokenizers.
    vocabulary : str
        The words from token 1 on, as a list in JSON, or the tokenizer in JSON.
    """

    kind: str
    vocabulary: str = ""

    @cached_property
    def _words(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(json.loads(self.vocabulary), 1)}

    @cached_property
    def _package(self) -> Any:
        check_package(self.kind)
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.vocabulary)

    @property
    def size(self) -> int:
        """How many tokens there are."""
        if self.kind == "bytes":
            return BYTES
        if self.kind == "words":
            return 1 + len(self._words)
        return int(self._package.get_vocab_size())

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a text, (tokens,)."""
        if self.kind == "bytes":
            return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        if self.kind == "words":
            return np.array([self._words.get(word, 0) for word in words_in(text)], np.uint32)
        return np.array(self._package.encode(text, add_special_tokens=False).ids, np.uint32)


def words_in(text: str) -> list[str]:
    """Return the words and signs of a text, in lower case.

    Examples
    --------
    >>> words_in("Not bad, Ann!")
    ['not', 'bad', ',', 'ann', '!']
    """
    return WORD.findall(text.lower())


def tokeniser_named(name: str, vocabulary: int, texts: Iterable[str]) -> Tokeniser:
    """Return the tokeniser that an option names.

    ``words`` learns the most frequent ones of ``texts``, ``bpe`` learns byte pairs, both up to
    ``vocabulary`` tokens; others are ``bytes``, or a file tokenizer.json.
    """
    if name == "bytes":
        return Tokeniser("bytes")
    if name == "words":
        counts = Counter(word for text in texts for word in words_in(text))
        words = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 1]
        return Tokeniser("words", json.dumps(words))
    check_package(name)
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if name != "bpe":
        path = Path(os.path.expanduser(name))
        with reading(path):
            return Tokeniser("package", Tokenizer.from_file(str(path)).to_str())
    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rule = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    learning.train_from_iterator(texts, rule)
    return Tokeniser("package", learning.to_str())


def check_package(name: str) -> None:
    """Raise ``InputError`` where the package tokenizers is not installed."""
    if find_spec("tokenizers") is None:
        raise InputError(
            f"data.tokenizer is '{name}', which needs the package tokenizers: pip install "
            "'mpifed[tokenizers]'; allowed without it: bytes, words"
        )


def padded(texts: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Return tokens of texts, each one higher and cut after ``length``, with 0 behind shorter ones.

    Examples
    --------
    >>> padded([np.array([4, 0]), np.array([1, 2, 3, 4])], 3)
    array([[5, 1, 0],
           [2, 3, 4]])
    """
    rows = np.zeros((len(texts), length), np.int64)
    for row, tokens in zip(rows, texts, strict=True):
        row[: len(tokens)] = tokens[:length].astype(np.int64) + 1
    return rows
