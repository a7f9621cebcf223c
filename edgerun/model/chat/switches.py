"""What a chat template is told beside the conversation: whether to think first, and the like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from edgerun.errors import InputError
from edgerun.model.chat.template import QUESTION, ChatTemplate, finished
from edgerun.values import shown

# What templates call the switch: Qwen3, SmolLM3, GLM and Gemma the first, Granite 3.3 the second,
# and DeepSeek V3.1 either.
THINKING = ("enable_thinking", "thinking")
_OF_CONVERSATIONS = ("messages", "tools", "add_generation_prompt")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def check_switches(values: object) -> dict[str, Any]:
    """Names and values for a template.

    Raises:
        InputError: they are no mapping of names, or a name is one of those that conversations have.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            f"template_values is {shown(values)}; expected names and values such as "
            '{"reasoning_effort": "high"}'
        )
    for name in values:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(
                f"template_values has {shown(name)} as a name; expected a name such as 'date'"
            )
        if name in _OF_CONVERSATIONS:
            raise InputError(
                f"template_values has {name!r}, which is made of the conversation: leave it out"
            )
    try:
        json.dumps(dict(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"template_values hold something that is not JSON: {error}") from error
    return dict(values)


def set_switches(template: ChatTemplate, values: Mapping[str, Any], think: bool | None) -> None:
    """Lets a template know some names, and whether replies begin with thinking.

    Args:
        template: the model's.
        values: by name, anything that JSON has.
        think: None for what the template does by itself.

    Raises:
        InputError: it does not read one of them, has no switch for thinking, or knows a name
            already; a value is not JSON; or both arguments say whether to think.
    """
    if not values and think is None:
        return
    for name in values:
        if think is not None and name in THINKING:
            raise InputError(
                f"template_values has {name!r}, which think says too: leave one of them out"
            )
    check_readable(template, values)
    switches = () if think is None else thinking_switches(template)
    if think is not None and not switches:
        raise InputError(
            "the model's chat template has no switch for thinking "
            f"({' or '.join(THINKING)}): leave think out"
        )
    template.variables.update({**dict.fromkeys(switches, think), **values})
    for text in _questions(template, [{}]):
        if isinstance(text, InputError):
            raise text


def thinking_switches(template: ChatTemplate) -> tuple[str, ...]:
    """Names by which a template is told whether to think, if it has any.

    Raises:
        InputError: it renders no question at all.
    """
    return tuple(each for each in THINKING if _matters(template, each))


def check_readable(template: ChatTemplate, values: Mapping[str, Any]) -> None:
    """Makes sure that a template reads what it is told.

    Raises:
        InputError: it is told a name that it does not read, or that is its tokenizer's to say.
    """
    if template.is_default:
        raise InputError(
            "this model has no chat template that could be told anything: leave think and "
            "template_values out"
        )
    for name in values:
        if name in template.own:
            raise InputError(
                f"template_values has {name!r}, which the model's tokenizer says: leave it out"
            )
        if not reads(template, name):
            raise InputError(f"the model's chat template does not read {name!r}: leave it out")


def reads(template: ChatTemplate, name: str) -> bool:
    """Whether a template has a name of its variables in it."""
    return re.search(rf"\b{name}\b", template.source) is not None


def _matters(template: ChatTemplate, name: str) -> bool:
    """Whether a question is rendered otherwise, or refused, as a name is true or false.

    Raises:
        InputError: it is not rendered at all.
    """
    on, off = _questions(template, [{name: True}, {name: False}])
    if isinstance(on, InputError) and isinstance(off, InputError):
        raise off
    return on != off


def _questions(
    template: ChatTemplate, variables: list[dict[str, bool]]
) -> Iterator[str | InputError]:
    conversation = {"messages": [{"role": "user", "content": QUESTION}], "tools": None}
    texts = template.render_many([{**each, **conversation} for each in variables])
    return map(finished, texts)
