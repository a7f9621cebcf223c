"""Requests become streams: prompts and conversations are encoded, together, before any runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence as EngineSequence
from edgerun.engine.stats import Stats
from edgerun.errors import InputError, SamplingError
from edgerun.llm.replies.completion import Completion, Writer, write
from edgerun.llm.replies.stream import TextStream
from edgerun.llm.tools import CallVocabulary, ChatSettings, params_with_calls
from edgerun.model.chat.format import ChatFormat, RenderedChat
from edgerun.model.chat.template import Message
from edgerun.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgerun.engine.chooser.processor import Processor
    from edgerun.model.chat.reply import ReplyReader
    from edgerun.model.chat.thinking.form import AnswerStart

NO_SETTINGS = ChatSettings()


class TextRequest(NamedTuple):
    """A text, or ids, to be continued.

    Attributes:
        prompt: the text, or the ids.
        params: how replies are chosen.
        replies: how many there are to be.
    """

    prompt: str | list[int]
    params: SamplingParams
    replies: int = 1


class ChatRequest(NamedTuple):
    """A conversation to be answered.

    Attributes:
        messages: the conversation.
        params: how replies are chosen.
        replies: how many there are to be.
    """

    messages: Sequence[Message]
    params: SamplingParams
    replies: int = 1


class Manner(NamedTuple):
    """How a reply is chosen, and taken apart.

    Attributes:
        params: how its tokens are chosen.
        reader: tells thoughts, text and calls apart; None where all of it is text.
    """

    params: SamplingParams
    reader: ReplyReader | None


class Opener:
    """Makes streams of one model; nothing is computed before they are read."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, chat_format: ChatFormat, context: int
    ) -> None:
        """Takes the parts of a model, and how many tokens its context has."""
        self._engine, self._tokenizer = engine, tokenizer
        self._format, self._context = chat_format, context

    def texts(self, requests: Sequence[TextRequest]) -> list[TextStream]:
        """Continuations of prompts, in order; times count from here on.

        Raises:
            PromptError: a prompt is empty or does not fit the context.
            SamplingError: an option is for chats.
        """
        if any(request.params.thinking_budget is not None for request in requests):
            raise SamplingError(
                "thinking_budget is for chats: a text that is continued has no form"
            )
        stats = [[Stats() for _ in range(request.replies)] for request in requests]
        prompts = self._ids([request.prompt for request in requests])
        return [
            self.stream(self._engine.sequence(ids, params, times), params, self._is_visible(ids))
            for ids, (_, params, count), each in zip(prompts, requests, stats, strict=True)
            for params, times in zip(params.for_replies(count), each, strict=True)
        ]

    def chats(
        self,
        requests: Sequence[ChatRequest],
        settings: ChatSettings = NO_SETTINGS,
        beginning: str = "",
    ) -> list[TextStream]:
        """Replies to conversations, in order; times count from here on.

        Args:
            requests: the conversations.
            settings: what all of them are told beside their messages.
            beginning: of their replies, which go on with it.

        Raises:
            PromptError: a message is unusable, or a conversation does not fit the context.
            InputError: the model's chat template refuses a conversation, or the model cannot be
                given tools, or calls cannot be forced.
        """
        stats = [[Stats() for _ in range(request.replies)] for request in requests]
        requests = [
            request._replace(params=self.calling(request.params, settings)) for request in requests
        ]
        chats = self._format.encode_many(
            [request.messages for request in requests],
            tools=settings.tools,
            context=self._context,
            variables=settings.values,
            beginning=beginning,
        )
        manners = [
            [self.manner(chat, each, settings) for each in params.for_replies(count)]
            for chat, (_, params, count) in zip(chats, requests, strict=True)
        ]
        return [
            self.stream(
                self._engine.sequence(chat.ids, params, times),
                params,
                continues=bool(beginning),
                reader=reader,
            )
            for chat, own, each in zip(chats, manners, stats, strict=True)
            for (params, reader), times in zip(own, each, strict=True)
        ]

    def stream(
        self,
        sequence: EngineSequence,
        params: SamplingParams,
        continues: bool = False,
        ended: Callable[[Completion], None] = lambda completion: None,
        reader: ReplyReader | None = None,
    ) -> TextStream:
        """The text of a sequence.

        Args:
            sequence: that nobody reads.
            params: how its tokens are chosen.
            continues: whether its text goes on a visible one.
            ended: called with the completion when it ends, however that is.
            reader: takes it apart, if it may be more than text.
        """
        continues = continues or params.shapes_text
        marked = reader.marked if reader else None
        decoder = self._tokenizer.stream(continues=continues, marked=marked)
        completion = Completion(prompt_tokens=sequence.prompt_tokens, stats=sequence.stats)
        writer = Writer(completion, decoder, params.stop, reader)
        parts = write(self._engine, sequence, writer, ended)
        return TextStream(self._engine, sequence, parts, completion, continues=continues)

    def manner(
        self, chat: RenderedChat, params: SamplingParams, settings: ChatSettings = NO_SETTINGS
    ) -> Manner:
        """How the reply to a conversation is chosen, and taken apart.

        Args:
            chat: the conversation.
            params: what was asked for. A form of replies is one of answers: the model may think
                before, where ids tell when it does; where they do not, all of the reply has it.
            settings: what the model is told beside the conversation.

        Raises:
            InputError: functions cannot be given to the model, or a call cannot be forced.
            SamplingError: thoughts are to be bounded that no token ends.
        """
        reader = self._format.reader(chat, settings.functions)
        is_bounded = params.thinking_budget is not None
        calls_at_once = settings.forced and not self._format.begins_thought(chat)
        if calls_at_once or not (params.shapes_text or is_bounded):
            return Manner(params, reader)
        start = self._format.answer_start(chat)
        if start:
            _check_stops(params, start)
            return Manner(with_thoughts(params, start), reader)
        if is_bounded:
            raise SamplingError(
                "thinking_budget is for models that think and have a token which ends their "
                "thoughts: leave it out"
            )
        if settings.functions and self._format.begins_thought(chat):
            raise InputError(
                "calls are to have a form, and the chat template has replies begin with a thought "
                "of which no token tells the end: turn that off with template_values, such as "
                "{'enable_thinking': False}"
            )
        return Manner(params, reader if settings.functions else None)

    def calling(self, params: SamplingParams, settings: ChatSettings) -> SamplingParams:
        """How the tokens of a reply are chosen that may call functions, or must.

        Raises:
            InputError: functions cannot be given to the model, or a call cannot be forced.
        """
        if not settings.functions:
            return params
        calling = self._format.calling
        calling.check()
        return params_with_calls(params, settings, calling, self._vocabulary)

    @functools.cached_property
    def _vocabulary(self) -> CallVocabulary:
        return CallVocabulary(self._tokenizer, self._format.calling.markers.characters)

    def _is_visible(self, ids: Sequence[int]) -> bool:
        """Whether a prompt gives text, which a reply continues."""
        return any(id_ not in self._tokenizer.hidden_ids for id_ in ids)

    def _ids(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            self._tokenizer.check_fits(text, self._context)
        encoded = iter(self._tokenizer.encode_many(texts))
        return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]


def _check_stops(params: SamplingParams, start: AnswerStart) -> None:
    """Refuses ends of replies at which no answer has begun.

    Raises:
        SamplingError: there is one.
    """
    for id_ in params.stop_ids:
        if id_ in start.ids:
            raise SamplingError(
                f"stop_ids holds {id_}, by which this model comes from its thoughts to its answer: "
                "leave it out, or leave out what is asked of its thoughts or its answer"
            )


def with_thoughts(params: SamplingParams, start: AnswerStart) -> SamplingParams:
    """The same for a model that thinks: its thoughts are bounded, its answer has the form."""
    from edgerun.engine.constraints.budget import ThinkingBudget  # for few
    from edgerun.engine.constraints.later import ForAnswer

    processors: list[Processor] = [
        ForAnswer(each, start) if each.shapes_text and each.is_active else each
        for each in params.processors
    ]
    if params.thinking_budget is not None:
        processors.insert(0, ThinkingBudget(start, params.thinking_budget))
    return params.replaced(processors=tuple(processors))
