"""Whether a model is to think before it answers, as one conversation asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.errors import InputError
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.switches import THINKING


def with_thinking(
    chat_format: ChatFormat, values: Mapping[str, Any] | None, think: bool | None
) -> Mapping[str, Any] | None:
    """What the chat template is told, whether to think among it.

    Args:
        chat_format: of the model.
        values: what it is told beside that, by name.
        think: None for what the model does by itself. A template without a switch is told nothing.

    Raises:
        InputError: two places say whether to think, or a model is to think that does not.
    """
    if think is None:
        return values
    for name in THINKING:
        if values and name in values:
            raise InputError(
                f"think is told, and so is {name!r} of the chat template: leave one of them out"
            )
    if think and not chat_format.switches and chat_format.thoughts is None:
        raise InputError("think asks for thoughts, and this model has none: leave it out")
    return {**(values or {}), **dict.fromkeys(chat_format.switches, think)} or None
