"""Requests become streams: prompts and conversations are encoded, together, before any runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence as EngineSequence
from edgerun.engine.stats import Stats
from edgerun.llm.completion import Completion, TextStream, Writer, write
from edgerun.llm.tools import CallVocabulary, ChatSettings, params_with_calls
from edgerun.model.chat.format import ChatFormat, RenderedChat
from edgerun.model.chat.template import Message
from edgerun.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgerun.model.chat.tools.reader import CallReader

NO_SETTINGS = ChatSettings()


class TextRequest(NamedTuple):
    """A text, or ids, to be continued."""

    prompt: str | list[int]
    params: SamplingParams


class ChatRequest(NamedTuple):
    """A conversation to be answered."""

    messages: Sequence[Message]
    params: SamplingParams


class Opener:
    """Makes streams of one model; nothing is computed before they are read."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, chat_format: ChatFormat, context: int
    ) -> None:
        """Takes the parts of a model, and how many tokens its context has."""
        self._engine, self._tokenizer = engine, tokenizer
        self._format, self._context = chat_format, context

    def texts(self, requests: Sequence[TextRequest]) -> list[TextStream]:
        """Continuations of prompts; times count from here on.

        Raises:
            PromptError: a prompt is empty or does not fit the context.
        """
        stats = [Stats() for _ in requests]
        prompts = self._ids([request.prompt for request in requests])
        return [
            self.stream(self._engine.sequence(ids, params, times), params, self._is_visible(ids))
            for ids, (_, params), times in zip(prompts, requests, stats, strict=True)
        ]

    def chats(
        self, requests: Sequence[ChatRequest], settings: ChatSettings = NO_SETTINGS
    ) -> list[TextStream]:
        """Replies to conversations; times count from here on.

        Args:
            requests: the conversations.
            settings: what all of them are told beside their messages.

        Raises:
            PromptError: a message is unusable, or a conversation does not fit the context.
            InputError: the model's chat template refuses a conversation, or the model cannot be
                given tools, or calls cannot be forced.
        """
        stats = [Stats() for _ in requests]
        if settings.functions:
            requests = [self._with_calls(request, settings) for request in requests]
        chats = self._format.encode_many(
            [request.messages for request in requests],
            tools=settings.tools,
            context=self._context,
            variables=settings.values,
        )
        readers = [self._reader(chat, settings) for chat in chats]
        return [
            self.stream(self._engine.sequence(chat.ids, params, times), params, calls=calls)
            for chat, (_, params), times, calls in zip(chats, requests, stats, readers, strict=True)
        ]

    def stream(
        self,
        sequence: EngineSequence,
        params: SamplingParams,
        continues: bool = False,
        ended: Callable[[Completion], None] = lambda completion: None,
        calls: CallReader | None = None,
    ) -> TextStream:
        """The text of a sequence.

        Args:
            sequence: that nobody reads.
            params: how its tokens are chosen.
            continues: whether its text goes on a visible one.
            ended: called with the completion when it ends, however that is.
            calls: reads the calls of functions out of it, if there are any.
        """
        decoder = self._tokenizer.stream(
            continues=continues or params.shapes_text, marked=calls.marked if calls else None
        )
        completion = Completion(prompt_tokens=sequence.prompt_tokens, stats=sequence.stats)
        writer = Writer(completion, decoder, params.stop, calls)
        pieces = write(self._engine, sequence, writer, ended)
        return TextStream(self._engine, sequence, pieces, completion)

    def _with_calls(self, request: ChatRequest, settings: ChatSettings) -> ChatRequest:
        calling = self._format.calling
        calling.check()
        params = params_with_calls(request.params, settings, calling, self._vocabulary)
        return ChatRequest(request.messages, params)

    def _reader(self, chat: RenderedChat, settings: ChatSettings) -> CallReader | None:
        if not settings.functions:
            return None
        return self._format.calling.reader(
            settings.functions, chat.text, is_forced=bool(settings.forced)
        )

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
