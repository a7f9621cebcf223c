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


class Limits(NamedTuple):
    """What a call may take: so much in any case, and so much more for every byte it is given."""

    cpu_s: float
    cpu_s_per_byte: float
    memory_bytes: int
    memory_per_byte: int


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

    def encode(self, texts: Sequence[str], *, first: bool) -> list[list[int]]:
        """See ``Library``.

        Raises:
            BundleError: the library fails, or needs more time or memory than it may take.
        """
        size = sum(len(text.encode()) for text in texts)
        ids: list[list[int]] = self._ask("encode", size, texts=texts, first=first)
        return ids

    def tokens(self, start: int, stop: int) -> list[str | None]:
        """See ``Library``."""
        names: list[str | None] = self._ask("tokens", stop - start, start=start, stop=stop)
        return names

    def token_ids(self, names: Sequence[str]) -> list[int | None]:
        """See ``Library``."""
        ids: list[int | None] = self._ask("token_ids", 0, names=names)
        return ids

    def _ask(self, call: str, size: int, **arguments: Any) -> Any:
        answer = self._call(call, ENCODE, size, arguments)
        while "missing" in answer:
            self._load()
            answer = self._call(call, ENCODE, size, arguments)
        if "error" in answer:
            raise BundleError(f"tokenizer.json fails on this text: {answer['error']}")
        return answer["result"]

    def _load(self) -> Any:
        answer = self._call("load", LOAD, len(self._file), {}, self._file)
        if "error" in answer:
            raise BundleError(
                f"tokenizer.json cannot be read by the tokenizers library: {answer['error']}"
            )
        return answer["result"]

    def _call(
        self, call: str, limits: Limits, size: int, arguments: dict[str, Any], file: bytes = b""
    ) -> dict[str, Any]:
        request = {"call": call, "key": self._key, "arguments": arguments, "dropped": _dropped()}
        return sandbox().ask(
            LIBRARY,
            request,
            file,
            cpu_s=limits.cpu_s + limits.cpu_s_per_byte * size,
            memory_bytes=limits.memory_bytes + limits.memory_per_byte * size,
        )


def _dropped() -> list[int]:
    """Takes the keys of tokenizers that nobody has any more; threads may do so at once."""
    keys: list[int] = []
    with contextlib.suppress(IndexError):
        while True:
            keys.append(_DROPPED.popleft())
    return keys
