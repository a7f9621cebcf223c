"""The Python API: load a bundle, generate text, hold a chat."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Report
from edgerun.engine.chooser.params import STOP, SamplingParams
from edgerun.engine.engine import Engine, Step
from edgerun.engine.many import Request, generate_many
from edgerun.engine.session import Session
from edgerun.engine.session_pool import SessionPool
from edgerun.engine.stats import Stats
from edgerun.errors import InputError, PromptError
from edgerun.llm.arguments import (
    check_conversation,
    check_ids,
    check_path,
    check_prompt,
    check_prompts,
)
from edgerun.llm.chat_session import ChatSession
from edgerun.llm.completion import Completion, TextStream, Writer, write
from edgerun.llm.loading import LoadOptions, Model, prepare
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import DEFAULT_STOPS, Message
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.state import KVCache
from edgerun.state.fair_lock import FairLock
from edgerun.values import suggestion

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.llm.loading import LoadKeywords

T = TypeVar("T")


def load(path: str | os.PathLike[str] | None = None, **options: Unpack[LoadKeywords]) -> LLM:
    """Loads a bundle.

    Args:
        path: folder of the bundle; None for the model that comes with edgerun.
        options: see ``LoadOptions``: ``backend``, ``threads``, ``context``, ``kv_cache``, ...

    Raises:
        BundleError: the bundle is missing, broken or altered.
        InputError: an option is unusable.

    Example:
        >>> with load("my-model", threads=2) as llm:  # doctest: +SKIP
        ...     print(llm.generate("Once upon a time", max_tokens=32))
    """
    names = [entry.name for entry in fields(LoadOptions)]
    for name in options:
        if name not in names:
            raise InputError(f"load has no option {name!r}{suggestion(name, names)}")
    folder = None if path is None else check_path(path)
    return LLM(prepare(folder, LoadOptions(**options)))


class LLM:
    """A loaded model, for any number of threads.

    Every call of the model is one thread's turn. Streams and chats take turns token by token, each
    on a sequence of the cache of its own; ``generate``, ``generate_many`` and ``chat`` reply by
    reply, so that any number of threads may wait in them.

    Attributes:
        model: its parts and properties.
        tokenizer: text to ids and back.
    """

    def __init__(self, model: Model) -> None:
        """Takes a prepared model; see ``load``."""
        self.model = model
        self.tokenizer: Tokenizer = model.tokenizer
        self._format = ChatFormat(model.tokenizer, model.template)
        self._engine = Engine(
            model.programs, model.vocab_size, model.eos_ids, chunk_rows=model.chunk_rows
        )
        # A stream keeps the engine, so it goes on when the model it came from is forgotten.
        self._forgotten = weakref.finalize(self._engine, _release, model)
        self._forgotten.atexit = False
        self._cache = KVCache(model.cache_spec, model.context, model.max_sessions)
        self._sessions = SessionPool(self._cache)
        self._calls = FairLock()

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was made for chats."""
        return not self._format.template.is_default

    def generate(
        self, prompt: str | Sequence[int], **sampling: Unpack[SamplingKeywords]
    ) -> Completion:
        """Continues a text.

        Args:
            prompt: text, in which nothing is parsed as a control token, or ids.
            sampling: see ``SamplingParams``; unnamed ones are the model's recommendation.

        Raises:
            PromptError: the prompt is empty or does not fit the context.
            SamplingError: a sampling parameter is unknown or outside its range.
            InputError: sessions and streams that have not ended have every sequence of the cache.
        """
        return self._calls.run(self.stream(prompt, **sampling).result)

    def stream(
        self, prompt: str | Sequence[int], **sampling: Unpack[SamplingKeywords]
    ) -> TextStream:
        """Like ``generate``, piece by piece.

        A stream has a sequence of the cache from its first piece until it ends or is closed.
        """
        stats = Stats()
        params = self.params(**sampling)
        ids = self._prompt_ids(prompt)
        return self._stream(None, ids, params, stats, self._continuation(ids))

    def generate_many(
        self, prompts: Sequence[str | Sequence[int]], **sampling: Unpack[SamplingKeywords]
    ) -> list[Completion]:
        """Continues several texts together, which takes less time than one after the other.

        What all of them begin with is computed once, and every call of the model takes a row of
        each. As many run at a time as sessions are free; ``load(..., max_sessions=n)`` sets how
        many there are, one of which is this model's own.

        Args:
            prompts: as for ``generate``.
            sampling: as for ``generate``; every text is continued as if it were alone.

        Returns:
            The completions, in the order of the prompts.

        Raises:
            PromptError: a prompt is empty or does not fit the context; nothing was computed.
            SamplingError: a sampling parameter is unknown or outside its range.
        """
        params = self.params(**sampling)
        requests = [
            Request(self._encoded(prompt) if isinstance(prompt, str) else prompt, params)
            for prompt in check_prompts(prompts)
        ]
        return self._calls.run(self._complete_many, requests)

    def _complete_many(self, requests: Sequence[Request]) -> list[Completion]:
        completions = [
            Completion(prompt_tokens=len(request.prompt), stats=request.stats)
            for request in requests
        ]
        writers = [
            Writer(completion, self._continuation(request.prompt), request.params.stop)
            for completion, request in zip(completions, requests, strict=True)
        ]
        root = self._sessions.take()
        try:
            with closing(generate_many(self._engine, root, requests)) as steps:
                for number, step in steps:
                    writers[number].push(step)
                    requests[number].unwanted = bool(completions[number].finish_reason)
        finally:
            self._sessions.give_back(root)
        return completions

    def chat(self, messages: Sequence[Message], **sampling: Unpack[SamplingKeywords]) -> Completion:
        """Answers a conversation.

        Args:
            messages: ``{"role": "user", "content": "..."}`` and so on, the last one unanswered.
            sampling: see ``generate``.

        Raises:
            PromptError: a message is unusable, or the conversation does not fit the context.
            InputError: the model's chat template refuses the conversation, or sessions and streams
                that have not ended have every sequence of the cache.
        """
        return self._calls.run(self.stream_chat(messages, **sampling).result)

    def stream_chat(
        self, messages: Sequence[Message], **sampling: Unpack[SamplingKeywords]
    ) -> TextStream:
        """Like ``chat``, piece by piece."""
        stats = Stats()
        params = self.chat_params(**sampling)
        chat = self._format.encode(check_conversation(messages), context=self.model.context)
        return self._stream(None, chat.ids, params, stats, self.tokenizer.stream())

    def session(self) -> ChatSession:
        """Opens a chat of its own, whose keys and values stay cached between turns.

        Raises:
            InputError: as many sessions as ``max_sessions`` allows are open.
        """
        return ChatSession(self, Session(self._cache))

    def logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yields the logits of every position of a sequence, in blocks.

        Each block is float32 ``[rows, vocab]``.

        Raises:
            PromptError: there are no ids, more than the context holds, or one outside the
                vocabulary.
        """
        tokens, context = check_ids(ids, "ids"), self.model.context
        if not 0 < len(tokens) <= context:
            raise PromptError(
                f"{len(tokens)} tokens; expected 1 to {context}, the context",
                tokens=len(tokens),
                context=context,
            )
        self._engine.check_ids(tokens)
        return self._lend(lambda session: self._engine.logits(session, tokens))

    def reports(self) -> list[Report]:
        """What the devices of the back-ends in use did so far, where they count it."""
        reports = [backend.report() for backend in self.model.backends]
        return [report for report in reports if report is not None]

    def params(self, **sampling: Unpack[SamplingKeywords]) -> SamplingParams:
        """Checks sampling parameters and adds what the model recommends."""
        if "processors" in sampling:
            return SamplingParams(**sampling)
        merged: dict[str, Any] = {**self.model.sampling_defaults, **sampling}
        return SamplingParams(**merged)

    def chat_params(self, **sampling: Unpack[SamplingKeywords]) -> SamplingParams:
        """Like ``params``; without a chat template the next speaker's name ends a reply."""
        if not self.has_chat_template:
            sampling["stop"] = (*STOP.check("stop", sampling.get("stop", ())), *DEFAULT_STOPS)
        return self.params(**sampling)

    def close(self) -> None:
        """Releases threads and memory; calling it twice is allowed.

        Other threads that are generating get an InputError with their next token. A model that
        nobody closes does so when it is garbage, but when that is nobody knows.
        """
        self._cache.lock.run(self._close)

    def _close(self) -> None:
        self._sessions.close()
        self._engine.close()
        self.model.owned.close()
        self._forgotten.detach()

    def __repr__(self) -> str:
        model = self.model
        if not self._forgotten.alive:
            return f"<LLM {model.path}: closed>"
        backends = ", ".join(backend.name for backend in model.backends)
        return (
            f"<LLM {model.path}: context {model.context}, {self._cache.room().slots} of "
            f"{model.max_sessions} sequences free, {backends} on "
            f"{model.threads} thread{'s' if model.threads > 1 else ''}>"
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _continuation(self, ids: Sequence[int]) -> Any:
        """A decoder for what follows ``ids``."""
        visible = any(id_ not in self.tokenizer.hidden_ids for id_ in ids)
        return self.tokenizer.stream(continues=visible)

    def _prompt_ids(self, prompt: object) -> list[int]:
        checked = check_prompt(prompt)
        return self._encoded(checked) if isinstance(checked, str) else checked

    def _encoded(self, prompt: str) -> list[int]:
        self.tokenizer.check_fits(prompt, self.model.context)
        return self.tokenizer.encode(prompt)

    def _stream(
        self,
        session: Session | None,
        ids: Sequence[int],
        params: SamplingParams,
        stats: Stats,
        decoder: Any,
        ended: Callable[[Completion], None] = lambda completion: None,
    ) -> TextStream:
        """A stream on a session, or on one of the pool."""
        self._engine.check_prompt(ids, self.model.context)

        def generate(session: Session) -> Iterator[Step]:
            return self._engine.generate(session, ids, params, stats)

        steps = self._lend(generate) if session is None else generate(session)
        completion = Completion(prompt_tokens=len(ids), stats=stats)
        writer = Writer(completion, decoder, params.stop)
        return TextStream(write(steps, writer, ended), completion)

    def _lend(self, generate: Callable[[Session], Iterator[T]]) -> Iterator[T]:
        """What a generation yields on a session that it has until it ends."""
        session = self._sessions.take()
        try:
            yield from generate(session)
        finally:
            self._sessions.give_back(session)


def _release(model: Model) -> None:
    """What ``LLM.close`` does, for a model that was forgotten."""
    model.programs.close()
    model.owned.close()


__all__ = ["LLM", "ChatSession", "Completion", "LoadOptions", "Mapping", "TextStream", "load"]
