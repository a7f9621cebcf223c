"""The tokenizers library in the sandbox: whatever a file makes it do, this process goes on.

A ``tokenizer.json`` describes expressions and replacements that the library carries out in native
code. Some take memory or time without end for a short text, and with some the library panics, which
it announces on the terminal by itself. None of that can be known from the file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from edgerun.errors import BundleError
from edgerun.model.sandbox.process import sandbox
from edgerun.model.text.facts import AddedToken, Facts

LIBRARY = "edgerun.model.text.library"


class Allowance(NamedTuple):
    """Processor time and memory that a call may take."""

    cpu_s: float
    memory_bytes: int


class Limits(NamedTuple):
    """What a call may take: so much in any case, and so much more for every byte it is given."""

    cpu_s: float
    cpu_s_per_byte: float
    memory_bytes: int
    memory_per_byte: int

    def of(self, size: int) -> Allowance:
        """What a call that is given so many bytes may take."""
        return Allowance(
            self.cpu_s + self.cpu_s_per_byte * size,
            self.memory_bytes + self.memory_per_byte * size,
        )


# Measured for tokenizers of 4,096 to 256,000 tokens: up to 1e-7 s and 10 bytes a byte of the file,
# 4e-6 s and 250 bytes a byte of text. Other machines are up to ten times as slow.
LOAD = Limits(10.0, 1e-5, 64 << 20, 32)
ENCODE = Limits(10.0, 1e-4, 64 << 20, 512)

_KEYS = itertools.count()
_DROPPED: deque[int] = deque()  # filled by finalizers, which may run anywhere and must not wait


class SandboxedLibrary:
    """One ``tokenizer.json``, loaded when it is first needed and whenever the sandbox died."""

    def __init__(self, text: str) -> None:
        """Takes the file's text."""
        self._file = text.encode()
        self._key = next(_KEYS)
        weakref.finalize(self, _DROPPED.append, self._key)

    @classmethod
    def prepare(cls) -> None:
        """Starts the sandbox without waiting for it, so that loading is fast."""
        sandbox().start(LIBRARY)

    @functools.cached_property
    def facts(self) -> Facts:
        """What the library says of the tokenizer; see ``Library``.

        Raises:
            BundleError: it cannot be read.
        """
        vocab_size, added, decoder, prefix = self._load()
        tokens = tuple(AddedToken(*token) for token in added)
        return Facts(vocab_size, tokens, decoder, tuple(prefix))

    def encode(self, texts: Sequence[str], first: Sequence[bool]) -> list[list[int]]:
        """See ``Library``.

        Raises:
            BundleError: the library fails, or needs more time or memory than it may take.
        """
        size = sum(len(text.encode()) for text in texts)
        ids: list[list[int]] = self._ask("encode", size, texts=texts, first=first)
        return ids

    def tokens(self, start: int, stop: int) -> list[str | None]:
        names: list[str | None] = self._ask("tokens", stop - start, start=start, stop=stop)
        return names

    def token_ids(self, names: Sequence[str]) -> list[int | None]:
        ids: list[int | None] = self._ask("token_ids", 0, names=names)
        return ids

    def round_trips(self, texts: Sequence[str]) -> list[tuple[list[int], str]]:
        """See ``library.round_trips``.

        Raises:
            BundleError: the library fails, or needs more time or memory than it may take.
        """
        size = sum(len(text.encode()) for text in texts)
        arguments = {"texts": texts}
        answer = self._call("round_trips", arguments, ENCODE.of(size), self._file)
        return [(ids, text) for ids, text in _result(answer)]

    def _ask(self, call: str, size: int, **arguments: Any) -> Any:
        answer = self._call(call, arguments, ENCODE.of(size))
        while "missing" in answer:
            self._load()
            answer = self._call(call, arguments, ENCODE.of(size))
        return _result(answer)

    def _load(self) -> Any:
        answer = self._call("load", {}, Allowance(0.0, 0), self._file)
        if "error" in answer:
            raise BundleError(
                f"tokenizer.json cannot be read by the tokenizers library: {answer['error']}"
            )
        return answer["result"]

    def _call(
        self, call: str, arguments: dict[str, Any], work: Allowance, file: bytes = b""
    ) -> dict[str, Any]:
        """Asks the sandbox; what it may take for a file that goes along is added to ``work``."""
        request = {"call": call, "key": self._key, "arguments": arguments, "dropped": _dropped()}
        reading = LOAD.of(len(file)) if file else Allowance(0.0, 0)
        return sandbox().ask(
            LIBRARY,
            request,
            file,
            cpu_s=work.cpu_s + reading.cpu_s,
            memory_bytes=work.memory_bytes + reading.memory_bytes,
        )


def _result(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise BundleError(f"tokenizer.json fails on this text: {answer['error']}")
    return answer["result"]


def _dropped() -> list[int]:
    """Takes the keys of tokenizers that nobody has any more; threads may do so at once."""
    keys: list[int] = []
    with contextlib.suppress(IndexError):
        while True:
            keys.append(_DROPPED.popleft())
    return keys
