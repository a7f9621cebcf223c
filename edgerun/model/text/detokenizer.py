"""Token ids to bytes to text, one id at a time.

Every decoder that language models ship maps a token to bytes on its own, apart from the space at
the very start. Joining bytes and decoding UTF-8 incrementally therefore reproduces the text of
the whole sequence exactly, holds back an unfinished character, and turns bytes that can never
become a character into U+FFFD (Unicode 16, section 3.9, "maximal subpart" practice).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from edgerun.errors import UnsupportedError
from edgerun.model.text.facts import SPACE

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class ByteDecoder:
    """Maps ids to bytes.

    Attributes:
        leading_spaces: how many spaces at the start of a text are an artefact of encoding.
    """

    def __init__(
        self,
        to_bytes: Callable[[str], bytes],
        id_to_token: Callable[[int], str | None],
        added: Mapping[int, str],
        leading_spaces: int,
    ) -> None:
        """Use ``byte_decoder``."""
        self._to_bytes = to_bytes
        self._id_to_token = id_to_token
        self._bytes_by_id = {id_: text.encode() for id_, text in added.items()}
        self.leading_spaces = leading_spaces

    def __call__(self, id_: int) -> bytes:
        """Returns the bytes of one token; an id outside the vocabulary has none."""
        data = self._bytes_by_id.get(id_)
        if data is None:
            token = self._id_to_token(id_)
            data = self._bytes_by_id[id_] = b"" if token is None else self._to_bytes(token)
        return data


class StreamDecoder:
    """Turns ids into pieces of text whose concatenation is the text of all ids."""

    def __init__(
        self,
        to_bytes: ByteDecoder,
        hidden: frozenset[int],
        *,
        continues: bool = False,
        marked: Mapping[int, str] | None = None,
    ) -> None:
        """Starts a text.

        Args:
            to_bytes: bytes of each token.
            hidden: ids that give no text.
            continues: the text goes on after other text, so that a leading space stays.
            marked: what stands for some ids, whether they are hidden or not.
        """
        self._to_bytes = to_bytes
        self._hidden = hidden
        self._marked = marked or {}
        self._spaces = 0 if continues else to_bytes.leading_spaces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id_: int) -> str:
        """Returns the characters that this id completes, possibly none."""
        if id_ in self._marked:
            self._spaces *= id_ in self._hidden
            return self._utf8.decode(b"", final=True) + self._marked[id_]
        if id_ in self._hidden:
            return ""
        return self._utf8.decode(self._strip(self._to_bytes(id_)))

    def finish(self) -> str:
        """Returns what is left: U+FFFD if the text ends inside a character."""
        return self._utf8.decode(b"", final=True)

    def _strip(self, data: bytes) -> bytes:
        while self._spaces and data:
            if not data.startswith(b" "):
                self._spaces = 0
                break
            data, self._spaces = data[1:], self._spaces - 1
        return data


def byte_decoder(
    state: Mapping[str, Any] | None,
    id_to_token: Callable[[int], str | None],
    added: Mapping[int, str],
    controls: Container[int] = (),
) -> ByteDecoder:
    """Builds the decoder that a ``tokenizer.json`` describes.

    Args:
        state: its ``decoder`` entry; None joins tokens with spaces, as ``tokenizers`` does.
        id_to_token: spelling of a token in the vocabulary.
        added: each added token as it is spelled.
        controls: those whose text is their spelling, whatever the decoder makes of that.

    Raises:
        UnsupportedError: the decoder is neither byte-level nor SentencePiece-like.
    """
    parts = _flatten(state)
    kinds = {part["type"] for part in parts}
    if state is None:
        return ByteDecoder(lambda token: b" " + token.encode(), id_to_token, {}, 1)
    if kinds and kinds <= {"ByteLevel", "Fuse"}:
        return ByteDecoder(_byte_level, id_to_token, added, 0)
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        to_bytes = _sentencepiece if "ByteFallback" in kinds else _spaced
        texts = {
            id_: spelling if id_ in controls else spelling.replace(SPACE, " ")
            for id_, spelling in added.items()
        }
        return ByteDecoder(to_bytes, id_to_token, texts, sum(map(_leading_spaces, parts)))
    raise UnsupportedError(
        f"tokenizer decoder {sorted(kinds)} is not supported; supported are ByteLevel and the "
        "SentencePiece decoders (Replace, ByteFallback, Fuse, Strip, Metaspace)"
    )


def _flatten(state: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if state is None:
        return []
    if state.get("type") == "Sequence":
        return [part for entry in state["decoders"] for part in _flatten(entry)]
    return [state]


def _leading_spaces(part: Mapping[str, Any]) -> int:
    if part["type"] == "Strip" and part.get("content") == " ":
        return int(part["start"])
    if part["type"] == "Metaspace":
        return 0 if part.get("prepend_scheme") == "never" else 1
    return 0


def _spaced(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _sentencepiece(token: str) -> bytes:
    match = BYTE_TOKEN.match(token)
    return bytes([int(match[1], 16)]) if match else _spaced(token)


def _byte_table() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_SPELLING = _byte_table()


def _byte_level(token: str) -> bytes:
    values = [BYTE_SPELLING.get(character) for character in token]
    if None in values:
        return token.encode()
    return bytes(value for value in values if value is not None)
