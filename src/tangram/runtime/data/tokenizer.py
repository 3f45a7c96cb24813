"""From text to tokens: bytes, which need no vocabulary and no download, or a tokenizer of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tangram.errors import InputError
from tangram.runtime.data.arrow import INSTALL

BYTES = "bytes"


class Tokenizer(Protocol):
    """Turns text into tokens."""

    @property
    def vocab_size(self) -> int:
        """Above every token."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Returns the tokens of a document, with one that ends it."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8 are tokens 0 to 255, and 256 ends a document."""

    END = 256

    @property
    def vocab_size(self) -> int:
        """257."""
        return self.END + 1

    def encode(self, text: str) -> Sequence[int]:
        """Returns the bytes of a document and its end."""
        return [*text.encode("utf-8", errors="surrogatepass"), self.END]


class HuggingFaceTokenizer:
    """A tokenizer as ``transformers`` loads it, by its name or from a folder.

    Raises:
        InputError: The library is missing, or finds no such tokenizer.
    """

    def __init__(self, name: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise InputError(
                "the transformers library is needed for this tokenizer, and not installed",
                where=f"--tokenizer {name}",
                hint=f"{INSTALL}, or --tokenizer {BYTES}",
            ) from None
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(name)
        except Exception as error:  # of many kinds, from missing files to the network
            raise InputError(
                f"cannot be loaded: {str(error).partition(chr(10))[0]}",
                where=f"--tokenizer {name}",
                hint=f"a folder with tokenizer.json, a name on the Hub, or {BYTES}",
            ) from None

    @property
    def vocab_size(self) -> int:
        """All tokens, those that were added too."""
        return len(self._inner)

    def encode(self, text: str) -> Sequence[int]:
        """Returns the tokens of a document, and the one that ends it where the tokenizer has one."""
        tokens: list[int] = self._inner.encode(text, add_special_tokens=False)
        end = self._inner.eos_token_id
        return tokens if end is None else [*tokens, int(end)]


def find_tokenizer(name: str) -> Tokenizer:
    """Returns the tokenizer of that name; errors as those of :class:`HuggingFaceTokenizer`."""
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(name)


def read_documents(files: Iterable[Path]) -> Iterator[str]:
    """Reads documents: a ``.jsonl`` file has one per line, under ``text``; any other file is one.

    Raises:
        InputError: A file cannot be read, or is not what its ending says.
    """
    for path in files:
        try:
            if path.suffix == ".jsonl":
                with path.open(encoding="utf-8") as lines:
                    yield from _texts(lines, path)
            else:
                yield path.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
        except UnicodeDecodeError as error:
            raise InputError(f"is no text in UTF-8: {error.reason}", where=str(path)) from None


def _texts(lines: Iterable[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError("is no JSON", where=f"{path}:{number}") from None
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise InputError("has no text", where=f"{path}:{number}", hint='one {"text": "..."} per line')
        yield text
