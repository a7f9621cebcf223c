"""What the tokenizers library says of a tokenizer when it has read one.

Named tuples, because the sandbox imports this too and a dataclass costs it milliseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SPACE = "\u2581"  # SentencePiece writes a space as this character


class AddedToken(NamedTuple):
    """A token that a tokenizer looks for in a text before it looks at words.

    Attributes:
        id: token id.
        content: how it is spelled.
        strip_left: spaces before it belong to it.
        strip_right: spaces behind it belong to it.
        special: declared special, so never part of visible text.
    """

    id: int
    content: str
    strip_left: bool
    strip_right: bool
    special: bool


class Facts(NamedTuple):
    """What the library says of a tokenizer.

    Attributes:
        vocab_size: number of ids, added tokens included.
        added: the added tokens.
        decoder: the ``decoder`` entry of the file, as the library understands it.
        prefix: ids that the library puts before a text.
    """

    vocab_size: int
    added: tuple[AddedToken, ...]
    decoder: dict[str, Any] | None
    prefix: tuple[int, ...]
