"""Several replies to one prompt, which is encoded once for all of them, as is what is asked of it.

With a seed each reply has another: the seed, the next number, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgerun.errors import InputError
from edgerun.llm.arguments import check_conversation
from edgerun.llm.infilling import text_request
from edgerun.llm.opening import ChatRequest
from edgerun.llm.replies.stream import TextStream
from edgerun.llm.thinking import with_thinking
from edgerun.llm.tools import AUTO, ChatSettings, chat_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.engine.chooser.params import SamplingParams
    from edgerun.llm.llm import LLM
    from edgerun.model.chat.template import Message


def text_replies(
    llm: LLM,
    prompts: Sequence[str | Sequence[int]],
    count: int,
    *,
    suffix: str | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> list[TextStream]:
    """Continuations of some prompts, ``count`` of each, those of the first prompt first.

    Raises:
        PromptError, UnsupportedError, SamplingError: see ``LLM.generate``.
    """
    params = llm.params(**sampling)
    requests = [text_request(llm.model, prompt, suffix, params, count) for prompt in prompts]
    return llm._opener.texts(requests)


def chat_replies(
    llm: LLM,
    messages: Sequence[Message],
    count: int,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] = AUTO,
    template_values: Mapping[str, Any] | None = None,
    think: bool | None = None,
    beginning: str = "",
    several_calls: bool = True,
    **sampling: Unpack[SamplingKeywords],
) -> list[TextStream]:
    """Replies to a conversation, ``count`` of them.

    Args:
        llm: the model.
        messages: the conversation.
        count: replies.
        tools: see ``LLM.chat``.
        tool_choice: the same.
        template_values: the same.
        think: whether the model is to think before it answers; None for what it does by itself.
        beginning: of an answer, with which the replies go on.
        several_calls: whether one that has to call may call more than one function.
        sampling: see ``LLM.generate``.

    Raises:
        PromptError, InputError, SamplingError: see ``LLM.chat``.
    """
    values = with_thinking(llm._format, template_values, think)
    settings = chat_settings(
        llm._format.template, tools, tool_choice, values, several=several_calls
    )
    if think is False and llm.thinks and not (llm._format.switches or beginning):
        sampling = {"thinking_budget": 0, **sampling}
    params = llm.chat_params(**sampling)
    if beginning:
        _check_begun(params, settings, think)
    request = ChatRequest(check_conversation(messages), params, count)
    return llm._opener.chats([request], settings, beginning)


def prompt_tokens(
    llm: LLM,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] = AUTO,
    template_values: Mapping[str, Any] | None = None,
    think: bool | None = None,
    beginning: str = "",
) -> int:
    """How many tokens a conversation has before a reply, whether they fit the context or not.

    Args:
        llm: the model.
        messages: see ``chat_replies``, as are all others.
        tools: the same.
        tool_choice: the same.
        template_values: the same.
        think: the same.
        beginning: the same.

    Raises:
        PromptError, InputError: as of ``chat_replies``.
    """
    values = with_thinking(llm._format, template_values, think)
    settings = chat_settings(llm._format.template, tools, tool_choice, values)
    if settings.functions:
        llm._format.calling.check()
    conversations = [check_conversation(messages)]
    (chat,) = llm._format.encode_many(
        conversations, tools=settings.tools, variables=settings.values, beginning=beginning
    )
    return len(chat.ids)


def _check_begun(params: SamplingParams, settings: ChatSettings, think: bool | None) -> None:
    """Refuses what says how a reply begins that has begun.

    Raises:
        InputError: something does.
    """
    asked = {
        "it is to have a form": params.shapes_text,
        "a call is asked for": settings.forced,
        "it is to begin with thoughts": think or params.thinking_budget is not None,
    }
    for reason, is_asked in asked.items():
        if is_asked:
            raise InputError(
                f"beginning is what the reply goes on with, and {reason}: leave out one of the two"
            )
