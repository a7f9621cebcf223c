"""The Python API: load a bundle, generate text, hold a chat."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.transfer import NativeTransfer
from edgerun.backends.figures import ExpertReads, Report
from edgerun.engine.chooser.params import STOP, SamplingParams, StopTexts
from edgerun.engine.engine import Engine
from edgerun.errors import InputError
from edgerun.llm.arguments import (
    check_conversation,
    check_conversations,
    check_path,
    check_prompts,
    check_scored,
    load_options,
    with_options,
)
from edgerun.llm.chat_session import ChatSession
from edgerun.llm.infilling import text_request
from edgerun.llm.loading import Model, host_memory, prepare, prompt_rows, recompile
from edgerun.llm.opening import ChatRequest, Opener, TextRequest
from edgerun.llm.options import LoadOptions
from edgerun.llm.replies.completion import Completion
from edgerun.llm.replies.stream import TextStream, together
from edgerun.llm.tools import AUTO, ChatSettings, chat_settings
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import DEFAULT_STOPS, Message
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.state import SequenceStore, TakeLogits
from edgerun.state.capacity import largest_call
from edgerun.values import shown

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.llm.options import LoadKeywords
    from edgerun.plan.expert_forecast import ExpertForecast


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
    checked = load_options(options)
    folder = None if path is None else check_path(path)
    return LLM(prepare(folder, checked))


class LLM:
    """A loaded model, for any number of threads.

    All replies under way share the calls of the model, whoever asked for them, and everybody gets
    the text that they would get alone: from one thread or many, or from coroutines, which read a
    ``TextStream`` by ``async for`` or await it. As many run at a time as ``max_sessions`` says;
    others wait for their turn.

    Attributes:
        model: its parts and properties.
        tokenizer: text to ids and back.
    """

    def __init__(self, model: Model) -> None:
        """Takes a prepared model; see ``load``."""
        self.model = model
        self.tokenizer: Tokenizer = model.tokenizer
        self._format = ChatFormat(model.tokenizer, model.template)
        self._store = SequenceStore(
            model.states,
            model.context,
            model.options.max_sessions,
            memory=host_memory(),
            eviction=model.options.eviction,
            transfer=NativeTransfer(),
        )
        self._engine = Engine(
            model.programs,
            self._store,
            model.vocab_size,
            model.eos_ids,
            chunk_rows=model.chunk_rows,
            prompt_rows=prompt_rows(model.options, model.experts),
            drafting=model.drafting,
        )
        self._opener = Opener(self._engine, model.tokenizer, self._format, model.context)
        # A stream keeps the engine, so it goes on when the model it came from is forgotten.
        self._forgotten = weakref.finalize(self._engine, _release, model)
        self._forgotten.atexit = False

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was made for chats."""
        return not self._format.template.is_default

    @property
    def thinks(self) -> bool:
        """Whether replies of chats may begin with thoughts, which are no part of their text."""
        return self._format.thoughts is not None

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        suffix: str | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Completion:
        """Continues a text, or fills the gap between two.

        Args:
            prompt: text, in which nothing is parsed as a control token, or ids.
            suffix: text behind the gap, for models of code; the prompt, before it, may be empty.
            sampling: see ``SamplingParams``; unnamed ones are the model's recommendation.

        Raises:
            PromptError: the prompt is empty or does not fit the context.
            UnsupportedError: the model fills no gaps.
            SamplingError: a sampling parameter is unknown or outside its range.
            BackendError: the model computed NaN, or failed.
        """
        return self.stream(prompt, suffix=suffix, **sampling).result()

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        suffix: str | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> TextStream:
        """Like ``generate``, piece by piece; nothing is computed before the first is asked for."""
        request = text_request(self.model, prompt, suffix, self.params(**sampling))
        return self._opener.texts([request])[0]

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[SamplingKeywords] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Completion]:
        """Continues several texts together, which takes less time than one after the other.

        Args:
            prompts: as for ``generate``.
            options: parameters of each prompt, which go before those of all.
            sampling: as for ``generate``; every text is continued as if it were alone.
                As many run at a time as the model was loaded for, see ``max_sessions``.

        Returns:
            The completions, in the order of the prompts. One that failed has the finish reason
            ``"error"`` and the ``error``; the others are whole.

        Raises:
            PromptError: a prompt is empty or does not fit the context; nothing was computed.
            SamplingError: a sampling parameter is unknown or outside its range.
        """
        each = with_options(check_prompts(prompts), options, sampling)
        requests = [TextRequest(prompt, self.params(**given)) for prompt, given in each]
        return self._completed(self._opener.texts(requests))

    def chat_many(
        self,
        conversations: Sequence[Sequence[Message]],
        options: Sequence[SamplingKeywords] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = AUTO,
        template_values: Mapping[str, Any] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Completion]:
        """Answers several conversations together; see ``generate_many`` and ``chat``."""
        settings = chat_settings(self._format.template, tools, tool_choice, template_values)
        each = with_options(check_conversations(conversations), options, sampling)
        return self._completed(self._chats(each, settings))

    def together(self, streams: Iterable[TextStream]) -> Generator[tuple[int, str], None, None]:
        """Yields ``(index of the stream, piece)`` of several streams, as pieces come.

        The streams may be of any kind, each with its own parameters. One that fails ends alone:
        see ``error`` of its completion. Closing the iterator closes all of them.

        Raises:
            InputError: a stream is another model's, or the model was closed.

        Example:
            >>> streams = [llm.stream("A cat"), llm.stream("A dog", seed=1)]  # doctest: +SKIP
            >>> for index, piece in llm.together(streams):  # doctest: +SKIP
            ...     print(index, piece)
        """
        return together(self._engine, streams)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = AUTO,
        template_values: Mapping[str, Any] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Completion:
        """Answers a conversation.

        Args:
            messages: ``{"role": "user", "content": "..."}`` and so on, the last one unanswered.
            tools: functions that the model may call, as OpenAI's API describes them; what it calls
                is in the completion's ``tool_calls``.
            tool_choice: ``"auto"``, ``"none"`` (tools are not mentioned), ``"required"`` (the reply
                calls), or ``{"type": "function", "function": {"name": ...}}``, which it calls.
            template_values: go before those that the model was loaded with.
            sampling: see ``generate``.

        Raises:
            PromptError: a message is unusable, or the conversation does not fit the context.
            InputError: the model's chat template refuses the conversation, or takes no tools.
            SamplingError: a sampling parameter is unusable, or a call cannot be forced.
            BackendError: the model computed NaN, or failed.
        """
        settings = chat_settings(self._format.template, tools, tool_choice, template_values)
        return self._chats([(check_conversation(messages), sampling)], settings)[0].result()

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = AUTO,
        template_values: Mapping[str, Any] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> TextStream:
        """Like ``chat``, piece by piece; calls are no pieces."""
        settings = chat_settings(self._format.template, tools, tool_choice, template_values)
        return self._chats([(check_conversation(messages), sampling)], settings)[0]

    def session(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_values: Mapping[str, Any] | None = None,
    ) -> ChatSession:
        """Opens a chat, whose keys and values stay cached between turns while there is room.

        Args:
            tools: functions that the model may call in it; see ``chat``.
            template_values: the same.
        """
        return ChatSession(self, tools, template_values)

    def logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yields the logits of every position of a sequence, in blocks.

        Each block is float32 ``[rows, vocab]``.

        Raises:
            PromptError: there are no ids, more than the context holds, or one outside the
                vocabulary.
        """
        return self._engine.logits(check_scored(ids, self.model.context))

    def take_logits(self, ids: Sequence[int], take: TakeLogits) -> None:
        """Hands what ``logits`` yields to a function, block by block, in order.

        Where experts are read from a disk, each is read once a call of the model, not once a block.

        Args:
            ids: at least one, at most a context.
            take: called with each block, which changes when it returns, by whichever thread
                computes. It cannot use the model; what it raises is raised here.

        Raises:
            InputError: ``take`` is no function.
            PromptError: as of ``logits``.
        """
        if not callable(take):
            raise InputError(f"take is {shown(take)}; expected a function of logits")
        for _ in self._engine.logits(check_scored(ids, self.model.context), take):
            pass

    def reports(self) -> list[Report]:
        """What the devices of the back-ends in use did so far, where they count it."""
        reports = [backend.report() for backend in self.model.backends]
        return [report for report in reports if report is not None]

    def expert_reads(self) -> ExpertReads | None:
        """What became of the experts that were needed so far; None where all are in memory."""
        counted = (backend.expert_reads() for backend in self.model.backends)
        return next((reads for reads in counted if reads is not None), None)

    def forecast(self) -> ExpertForecast | None:
        """What to expect of a model that reads experts while it runs; None of others."""
        model = self.model
        if model.experts is None or model.bundle is None:
            return None
        from edgerun.llm.experts import PromptCalls, forecast_for

        most = largest_call(model.states) if model.programs.is_layered else model.chunk_rows
        calls = PromptCalls(model.context, model.chunk_rows, most)
        reads = self.expert_reads()
        return forecast_for(model.bundle, model.experts, model.everyone, calls, reads=reads)

    def place(self, places: str) -> None:
        """Computes elsewhere from now on, replies under way too: they go on where they are.

        Args:
            places: back-ends for parts of the work, ``"prefill=openvino:NPU,decode=cpu"``.

        Raises:
            InputError: the places are not understood, or there are none such.
            UnsupportedError: a device is not here.
            BackendError: a device does not run the model. Then all is as before.
        """
        options = replace(self.model.options, place=places, backend=None, device=None, require=None)
        self._store.lock.run(self._place, options)

    def _place(self, options: LoadOptions) -> None:
        if self.model.bundle is None or not self._forgotten.alive:
            raise InputError("this model is closed: load it again")
        recompile(self.model, self._engine, options)

    def params(self, **sampling: Unpack[SamplingKeywords]) -> SamplingParams:
        """Checks sampling parameters and adds what the model recommends."""
        recommended = {} if "processors" in sampling else self.model.sampling_defaults
        merged: dict[str, Any] = {**recommended, **sampling}
        return SamplingParams(**merged).with_vocabulary(self.tokenizer)

    def chat_params(self, **sampling: Unpack[SamplingKeywords]) -> SamplingParams:
        """Like ``params``; without a chat template the next speaker's name ends a reply."""
        if not self.has_chat_template:
            asked = STOP.check("stop", sampling.get("stop", ()))
            sampling["stop"] = StopTexts((*asked, *DEFAULT_STOPS))
        return self.params(**sampling)

    def close(self) -> None:
        """Releases threads and memory; calling it twice is allowed.

        Other threads that are generating get an InputError with their next token. A model that
        nobody closes does so when it is garbage, but when that is nobody knows.
        """
        self._store.lock.run(self._close)

    def _close(self) -> None:
        self._engine.close()
        self.model.owned.close()
        self._forgotten.detach()

    def __repr__(self) -> str:
        model = self.model
        if not self._forgotten.alive:
            return f"<LLM {model.path}: closed>"
        backends = ", ".join(backend.name for backend in model.backends)
        return (
            f"<LLM {model.path}: context {model.context}, {self._engine.room().slots} of "
            f"{model.options.max_sessions} sequences free, {backends} on "
            f"{model.threads} thread{'s' if model.threads > 1 else ''}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _completed(self, streams: Sequence[TextStream]) -> list[Completion]:
        for _ in self.together(streams):
            pass
        return [stream.completion for stream in streams]

    def _chats(
        self,
        requests: Sequence[tuple[Sequence[Message], SamplingKeywords]],
        settings: ChatSettings,
    ) -> list[TextStream]:
        chats = [ChatRequest(each, self.chat_params(**sampling)) for each, sampling in requests]
        return self._opener.chats(chats, settings)


def _release(model: Model) -> None:
    """What ``LLM.close`` does, for a model that was forgotten."""
    model.programs.close()
    model.owned.close()


__all__ = ["LLM", "ChatSession", "Completion", "LoadOptions", "Mapping", "TextStream", "load"]
