"""The tokenizers library, and all that is asked of it.

In this process it runs for the tokenizer that comes with edgerun alone; those of models run in the
sandbox (``sandboxed_library.py``), which has this module answer requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers

from edgerun.forks import each_in_forked_child
from edgerun.model.text.controls import ControlTokens
from edgerun.model.text.facts import AddedToken, Facts

LONG_BYTES = 4096  # from which the library is faster without positions, which nobody asks for


class Library:
    """One ``tokenizer.json``, of whose control tokens the library finds none in a text.

    Attributes:
        facts: what it says of itself.
    """

    def __init__(self, text: str) -> None:
        """Reads the file's text; whatever the library raises is passed on."""
        self._tokenizer = tokenizers.Tokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lock = threading.RLock()  # a handler of a signal may encode while its thread does
        added = tuple(
            AddedToken(id_, token.content, token.lstrip, token.rstrip, token.special)
            for id_, token in self._tokenizer.get_added_tokens_decoder().items()
        )
        decoder = self._tokenizer.decoder
        self.facts = Facts(
            self._tokenizer.get_vocab_size(with_added_tokens=True),
            added,
            None if decoder is None else json.loads(decoder.__getstate__()),
            self._prefix(),
        )
        self._forbid(ControlTokens.of(added).names)
        _ALIVE.add(self)

    def _begin_child(self) -> None:
        """For a forked child: whoever of its parent's threads held the lock is not there."""
        self._lock = threading.RLock()

    def encode(self, texts: Sequence[str], first: Sequence[bool]) -> list[list[int]]:
        """Encodes plain texts one by one.

        Args:
            texts: any texts without surrogates.
            first: whether each of them starts a sequence.
        """
        with self._lock:
            pairs = zip(texts, first, strict=True)
            return [self._encode(text, first=is_first) for text, is_first in pairs]

    def tokens(self, start: int, stop: int) -> list[str | None]:
        """How the tokens of a range of ids are spelled; None where an id has none."""
        return [self._tokenizer.id_to_token(id_) for id_ in range(start, stop)]

    def token_ids(self, names: Sequence[str]) -> list[int | None]:
        """Ids of tokens, given as they are spelled; None for those that there are not."""
        return [self._tokenizer.token_to_id(name) for name in names]

    def _encode(self, text: str, *, first: bool) -> list[int]:
        with _PrefixOnlyAtStart(self._tokenizer, first=first):
            if len(text) <= LONG_BYTES:
                return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            return list(encoding.ids)

    def _prefix(self) -> tuple[int, ...]:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        prefixed = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(prefixed) - len(plain) + 1):
            if prefixed[start : start + len(plain)] == plain:
                return tuple(prefixed[:start])
        return ()

    def _forbid(self, names: Sequence[str]) -> None:
        if names:
            controls = [tokenizers.AddedToken(name, special=True) for name in names]
            self._tokenizer.add_special_tokens(controls)
        self._tokenizer.encode_special_tokens = True


class _PrefixOnlyAtStart:
    """Keeps Metaspace's ``"first"`` prefix from being added inside a sequence."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, first: bool) -> None:
        self._changed = [] if first else list(_first_metaspaces(tokenizer.pre_tokenizer))

    def __enter__(self) -> None:
        for step in self._changed:
            step.prepend_scheme = "never"

    def __exit__(self, *_: object) -> None:
        for step in self._changed:
            step.prepend_scheme = "first"


def _first_metaspaces(pre_tokenizer: Any) -> Iterator[Any]:
    kind = type(pre_tokenizer).__name__
    if kind == "Metaspace" and pre_tokenizer.prepend_scheme == "first":
        yield pre_tokenizer
    elif kind == "Sequence":
        for index in range(len(json.loads(pre_tokenizer.__getstate__())["pretokenizers"])):
            yield from _first_metaspaces(pre_tokenizer[index])


def round_trips(file: str, texts: Sequence[str]) -> list[tuple[list[int], str]]:
    """Encodes and decodes texts as a file itself says: in them, control tokens are found.

    Args:
        file: content of ``tokenizer.json``.
        texts: any texts without surrogates.

    Returns:
        of each its ids, with those that the file puts around a text, and their text.
    """
    tokenizer = tokenizers.Tokenizer.from_str(file)
    all_ids = [tokenizer.encode(text).ids for text in texts]
    return [(ids, tokenizer.decode(ids)) for ids in all_ids]


_ALIVE = each_in_forked_child(Library._begin_child)
# In the sandbox: tokenizers by key.
_LIBRARIES: dict[int, Library] = {}


def answer(request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Answers a request of ``SandboxedLibrary``.

    Args:
        request: ``call``, a method, ``"load"`` or ``"round_trips"``, with its ``arguments``;
            ``key`` of the tokenizer that is asked, ``dropped``, those that nobody will ask again.
        payload: text of the file that is loaded or makes the round trips.

    Returns:
        ``result``, or ``missing`` if there is no such tokenizer.
    """
    for key in request["dropped"]:
        _LIBRARIES.pop(key, None)
    if request["call"] == "load":
        library = _LIBRARIES[request["key"]] = Library(payload.decode())
        return {"result": library.facts}
    if request["call"] == "round_trips":
        return {"result": round_trips(payload.decode(), **request["arguments"])}
    if request["key"] not in _LIBRARIES:
        return {"missing": True}
    method = getattr(_LIBRARIES[request["key"]], request["call"])
    return {"result": method(**request["arguments"])}
