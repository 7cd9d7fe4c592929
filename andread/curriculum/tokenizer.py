"""Byte-level BPE: text to tokens and back, without loss.

Words are capped in length, in training and in encoding alike: a word of 64 KiB is as cheap as
the same bytes in short ones. The separator stands between documents and never comes out of
encoding: a document that contains its text gets ordinary tokens for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from andread.rundir import files
from andread.rundir.errors import ConfigError, DataError, MissingError

WORD: Final = 32
"""The longest word, in characters."""

_WORDS: Final = (
    r"'(?:[sdmt]|ll|ve|re)"
    rf"| ?\p{{L}}{{1,{WORD}}}| ?\p{{N}}{{1,{WORD}}}| ?[^\s\p{{L}}\p{{N}}]{{1,{WORD}}}"
    rf"|\s{{1,{WORD}}}(?!\S)|\s{{1,{WORD}}}"
)
"""GPT-2's words (contractions, letters, digits, signs, spaces), each bounded."""

MINIMUM_VOCABULARY: Final = 257
"""Every byte, and the separator."""

FILE_LIMIT: Final = 256 << 20


class Tokenizer:
    """A tokenizer.json and its separator."""

    def __init__(self, library: tokenizers.Tokenizer, separator: str) -> None:
        number = library.token_to_id(separator)
        if number is None:
            raise ConfigError(
                f'the tokenizer has no token "{separator}" to stand between documents',
                "set [tokenizer] separator to one that it has",
            )
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True  # in a document they are ordinary text
        self._library = library
        self.separator: int = number
        self.size: int = max(library.get_vocab(with_added_tokens=True).values()) + 1
        """Tokens are below this; the model's vocabulary may be larger."""

    @classmethod
    def load(cls, path: Path, separator: str) -> Tokenizer:
        """Read the tokenizer.json at `path`.

        Raises `MissingError`, `DataError` if it is no tokenizer, `ConfigError` if it has no
        `separator`.
        """
        return cls.parse(read_tokenizer(path), separator, str(path))

    @classmethod
    def parse(cls, data: bytes, separator: str, where: str) -> Tokenizer:
        """Make a tokenizer from the bytes of a tokenizer.json called `where` in errors."""
        try:
            library = tokenizers.Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises nothing more specific
            raise DataError(
                f"{where} is not a tokenizer.json: {error}", "save one with the tokenizers library"
            ) from None
        return cls(library, separator)

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int, separator: str) -> Tokenizer:
        """Train byte-level BPE on `texts`; it may find fewer tokens than `vocabulary`.

        The same texts give the same tokenizer, byte for byte, in any process.
        """
        if vocabulary < MINIMUM_VOCABULARY:
            raise ConfigError(
                f"[model] vocabulary {vocabulary} is below {MINIMUM_VOCABULARY}",
                "byte-level BPE needs every byte and the separator: make it larger",
            )
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            min_frequency=2,
            special_tokens=[separator],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            max_token_length=WORD,
            show_progress=False,
        )
        library.train_from_iterator(iter(texts), trainer)
        return cls(library, separator)

    def dump(self) -> bytes:
        """Return the bytes of tokenizer.json."""
        return self._library.to_str(pretty=True).encode() + b"\n"

    def encode(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the tokens of each text, on all cores; no separators are added."""
        for encoding in self._library.encode_batch_fast(texts, add_special_tokens=False):
            yield encoding.ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, separators included.

        A character cut in two shows as U+FFFD; ids without a token give nothing.
        """
        return self._library.decode(list(ids), skip_special_tokens=False)


def read_tokenizer(path: Path) -> bytes:
    """Return the bytes of a tokenizer.json; raise `MissingError` if it is not there."""
    try:
        return files.read_bytes(path, FILE_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"{path} does not exist", "run `andrectl prepare`") from None
