"""How likely tokens were, as OpenAI's API writes it; each of its two forms has its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.model.text.tokenizer import Tokenizer


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """Of a message: a list with an object for each token."""

    def fields(id_: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.token_bytes(id_)
        return {"token": _name(id_, tokenizer), "logprob": logprob, "bytes": list(text) or None}

    content = [
        {
            **fields(entry.id, entry.logprob),
            "top_logprobs": [fields(id_, logprob) for id_, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """Of a text that is continued: lists with an item for each token, piece by piece.

    An offset is that of the character which a token begins or goes on with.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues: bool) -> None:
        """Begins a text.

        Args:
            tokenizer: spells its tokens.
            continues: whether it goes on after visible text; see ``Tokenizer.stream``.
        """
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream(continues=continues)
        self._characters = 0  # that the tokens so far complete

    def lists(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Takes the next tokens."""
        offsets = []
        for entry in entries:
            offsets.append(self._characters)
            self._characters += len(self._decoder.push(entry.id))
        return {
            "tokens": [_name(entry.id, self._tokenizer) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [_by_text(entry, self._tokenizer) for entry in entries],
            "text_offset": offsets,
        }


def _by_text(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest, and the token itself; of several that look alike the likeliest."""
    texts: dict[str, float] = {}
    for id_, logprob in (*entry.top, (entry.id, entry.logprob)):
        texts.setdefault(_name(id_, tokenizer), logprob)
    return texts


def _name(id_: int, tokenizer: Tokenizer) -> str:
    """What a token is called; of one that is no text, such as what ends a reply, its name."""
    return tokenizer.spelled_bytes(id_).decode("utf-8", "replace")
