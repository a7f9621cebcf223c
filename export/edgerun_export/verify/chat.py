"""Whether conversations can be written down as the checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.errors import InputError
from edgerun.model.chat.template import ChatTemplate, template_source


def template_problem(tokenizer_config: Mapping[str, Any]) -> str | None:
    """What is wrong with the chat template of a bundle's tokenizer_config.json, if anything."""
    try:
        ChatTemplate(template_source(tokenizer_config)).check()
    except InputError as error:
        return (
            f"tokenizer_config.json: {error}; no chat with the bundle is possible until the "
            "template is mended in the checkpoint"
        )
    return None
