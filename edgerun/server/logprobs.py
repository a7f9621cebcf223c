"""How likely tokens were, as OpenAI's API writes it; each of its two forms has its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.model.text.tokenizer import Tokenizer


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """Of a message: a list with an object for each token."""

    def fields(id_: int, logprob: float) -> dict[str, Any]:
        spelled = tokenizer.token_bytes(id_)
        return {"token": _text(spelled), "logprob": logprob, "bytes": list(spelled)}

    content = [
        {
            **fields(entry.id, entry.logprob),
            "top_logprobs": [fields(id_, logprob) for id_, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int
) -> dict[str, Any]:
    """Of a text that is continued: lists with an item for each token.

    Args:
        entries: of the tokens.
        tokenizer: spells them.
        offset: characters before the first.
    """
    tokens = [_text(tokenizer.token_bytes(entry.id)) for entry in entries]
    offsets = [offset]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_by_text(entry, tokenizer) for entry in entries],
        "text_offset": offsets[: len(tokens)],
    }


def _by_text(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest, and the token itself; of several that look alike the likeliest."""
    texts: dict[str, float] = {}
    for id_, logprob in (*entry.top, (entry.id, entry.logprob)):
        texts.setdefault(_text(tokenizer.token_bytes(id_)), logprob)
    return texts


def _text(spelled: bytes) -> str:
    return spelled.decode("utf-8", "replace")
