"""Requests become streams: prompts and conversations are encoded, together, before any runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence as EngineSequence
from edgerun.engine.stats import Stats
from edgerun.llm.completion import Completion, TextStream, Writer, write
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import Message
from edgerun.model.text.tokenizer import Tokenizer


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

    def chats(self, requests: Sequence[ChatRequest]) -> list[TextStream]:
        """Replies to conversations; times count from here on.

        Raises:
            PromptError: a message is unusable, or a conversation does not fit the context.
            InputError: the model's chat template refuses a conversation.
        """
        stats = [Stats() for _ in requests]
        conversations = [request.messages for request in requests]
        chats = self._format.encode_many(conversations, context=self._context)
        return [
            self.stream(self._engine.sequence(chat.ids, params, times), params)
            for chat, (_, params), times in zip(chats, requests, stats, strict=True)
        ]

    def stream(
        self,
        sequence: EngineSequence,
        params: SamplingParams,
        continues: bool = False,
        ended: Callable[[Completion], None] = lambda completion: None,
    ) -> TextStream:
        """The text of a sequence.

        Args:
            sequence: that nobody reads.
            params: how its tokens are chosen.
            continues: whether its text goes on a visible one.
            ended: called with the completion when it ends, however that is.
        """
        decoder = self._tokenizer.stream(continues=continues or params.shapes_text)
        completion = Completion(prompt_tokens=sequence.prompt_tokens, stats=sequence.stats)
        writer = Writer(completion, decoder, params.stop)
        pieces = write(self._engine, sequence, writer, ended)
        return TextStream(self._engine, sequence, pieces, completion)

    def _is_visible(self, ids: Sequence[int]) -> bool:
        """Whether a prompt gives text, which a reply continues."""
        return any(id_ not in self._tokenizer.hidden_ids for id_ in ids)

    def _ids(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            self._tokenizer.check_fits(text, self._context)
        encoded = iter(self._tokenizer.encode_many(texts))
        return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]
