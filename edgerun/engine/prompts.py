"""What ids an engine takes: not none, tokens of the model, and no more than a context holds."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.errors import PromptError
from edgerun.values import shown


def check_length(prompt: Sequence[int], context: int) -> None:
    """Makes sure that a prompt is not empty and leaves room for one token of a reply.

    Raises:
        PromptError: it is, or does not.
    """
    if len(prompt) == 0:
        raise PromptError("the prompt is empty: pass at least one token")
    if context < 2:
        raise PromptError(
            "the context is 1 token, which leaves no room for a prompt and a reply: load the "
            "model with a context of 2 or more"
        )
    if len(prompt) >= context:
        raise PromptError(
            f"the prompt has {len(prompt)} tokens and the context is {context}, one of which "
            "must stay free: shorten the prompt, or load the model with a larger context if it "
            "was made for one",
            tokens=len(prompt),
            context=context,
        )


def check_vocabulary(ids: Sequence[int], vocab_size: int) -> None:
    """Makes sure that ids, of which there is one at least, are tokens.

    Raises:
        PromptError: one is not.
    """
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise PromptError(
            f"the prompt holds token id {shown(wrong)}; the vocabulary of the model ends at "
            f"{vocab_size - 1}"
        )
