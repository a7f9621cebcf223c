"""A conversation with a model, remembered from message to message."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING, Any

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.sequence import Sequence
from edgerun.engine.session_file import load_session, save_session
from edgerun.engine.stats import Stats
from edgerun.errors import InputError, PromptError
from edgerun.llm.arguments import check_path, check_results, check_text
from edgerun.llm.replies.completion import Completion
from edgerun.llm.replies.stream import TextStream
from edgerun.llm.tools import AUTO, ChatSettings, chat_settings
from edgerun.model.chat.format import RenderedChat
from edgerun.model.chat.template import Message
from edgerun.state.fair_lock import FairLock

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.llm.llm import LLM


class ChatSession:
    """A conversation that remembers.

    It has one reply under way at a time: whichever thread sends the next message, clears or loads
    ends the reply before. Threads that are to talk at a time take a session each.

    Attributes:
        messages: what was said, oldest first.
    """

    def __init__(
        self,
        llm: LLM,
        tools: Sequence_[Mapping[str, Any]] | None = None,
        template_values: Mapping[str, Any] | None = None,
    ) -> None:
        """Made by ``LLM.session``.

        Raises:
            InputError: see ``LLM.chat``.
        """
        self._llm = llm
        self._told = tools, template_values
        self._settings(AUTO)  # so that who opens it is told what is wrong
        self._is_open = True
        self._sequence: Sequence | None = None  # of the last reply, with its keys and values
        self._before: RenderedChat | None = None
        self._stream: Callable[[], TextStream | None] = lambda: None
        self._lock = FairLock()
        self.messages: list[Message] = []

    @property
    def system(self) -> str:
        """The system message, ``""`` if there is none."""
        return str(self._system[0]["content"]) if self._system else ""

    @system.setter
    def system(self, text: str) -> None:
        self._lock.run(self._set_system, check_text("the system message", text))

    def _set_system(self, text: str) -> None:
        self._check_open()
        message: Message = {"role": "system", "content": text}
        self.messages[: len(self._system)] = [message] if text else []

    @property
    def _system(self) -> list[Message]:
        """The first message if it is one of the system's, even an empty one."""
        first = self.messages[:1]
        return first if first and first[0].get("role") == "system" else []

    def send(
        self,
        text: str,
        *,
        tool_choice: str | Mapping[str, Any] = AUTO,
        **sampling: Unpack[SamplingKeywords],
    ) -> TextStream:
        """Sends a message and streams the reply.

        Both become part of the conversation when the stream ends; an interrupted reply is kept as
        far as it came, and after an error before the first token the message is not kept. A reply
        that is still under way when the next message is sent ends there.

        Args:
            text: the message.
            tool_choice: see ``LLM.chat``.
            sampling: see ``LLM.generate``.

        Raises:
            PromptError: the text is empty, or the conversation no longer fits the context.
        """
        stats = Stats()
        if not check_text("the message", text):
            raise PromptError("the message is empty")
        settings, params = self._settings(tool_choice), self._llm.chat_params(**sampling)
        message = {"role": "user", "content": text}
        return self._lock.run(self._send, lambda: [message], params, settings, stats)

    def send_results(
        self,
        results: Iterable[str],
        *,
        tool_choice: str | Mapping[str, Any] = AUTO,
        **sampling: Unpack[SamplingKeywords],
    ) -> TextStream:
        """Sends what the functions returned that the last reply called, and streams the next reply.

        Args:
            results: texts, in the order of the calls.
            tool_choice: see ``LLM.chat``.
            sampling: see ``LLM.generate``.

        Raises:
            InputError: the last reply called as many functions as there are not results.
            PromptError: the conversation no longer fits the context.
        """
        stats, texts = Stats(), check_results(results)
        settings, params = self._settings(tool_choice), self._llm.chat_params(**sampling)
        return self._lock.run(self._send, lambda: self._results(texts), params, settings, stats)

    def _settings(self, tool_choice: str | Mapping[str, Any]) -> ChatSettings:
        tools, template_values = self._told
        return chat_settings(self._llm._format.template, tools, tool_choice, template_values)

    def _results(self, texts: Sequence_[str]) -> list[Message]:
        last = self.messages[-1] if self.messages else {}
        calls = last.get("tool_calls") or []
        try:
            if not calls or len(calls) != len(texts):
                raise InputError(
                    f"there are {len(texts)} results, and the last reply called "
                    f"{len(calls)} functions"
                )
            named = [(call["id"], call["function"]["name"]) for call in calls]
        except (KeyError, TypeError) as error:
            raise InputError("the last message has calls without ids and names") from error
        return [
            {"role": "tool", "tool_call_id": id_, "name": name, "content": text}
            for (id_, name), text in zip(named, texts, strict=True)
        ]

    def _send(
        self,
        said: Callable[[], list[Message]],
        params: SamplingParams,
        settings: ChatSettings,
        stats: Stats,
    ) -> TextStream:
        self._check_open()
        self._end_reply()
        messages, opener = said(), self._llm._opener
        params = opener.calling(params, settings)
        chat = self._llm._format.encode(
            [*self.messages, *messages],
            tools=settings.tools,
            before=self._before,
            context=self._llm.model.context,
            variables=settings.values,
        )

        def ended(completion: Completion) -> None:
            self._sequence = sequence
            self._keep(messages, chat, completion)

        params, reader = opener.manner(chat, params, settings)
        sequence = self._llm._engine.sequence(chat.ids, params, stats)
        sequence.previous, sequence.is_retained = self._sequence, True
        stream = opener.stream(sequence, params, ended=ended, reader=reader)
        self._stream = weakref.ref(stream)  # one that is dropped must end at once
        return stream

    def clear(self) -> None:
        """Forgets what was said, but for the system message."""
        self._lock.run(self._replace, None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the conversation to a file, atomically.

        Raises:
            StorageError: the folder is not writable or the disk is full.
        """
        save_session(check_path(path), self._llm.model.digest, self.messages)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces the conversation by a saved one; its keys and values are computed when needed.

        Raises:
            SessionError: the file is missing, broken, or belongs to another model.
        """
        self._lock.run(self._replace, load_session(check_path(path), self._llm.model.digest))

    def close(self) -> None:
        """Ends a reply under way and gives the cache back; calling it twice is allowed."""
        self._lock.run(self._close)

    def __repr__(self) -> str:
        if not self._is_open:
            return f"<ChatSession: {len(self.messages)} messages, closed>"
        return (
            f"<ChatSession: {len(self.messages)} messages, {len(self._cached)} of "
            f"{self._llm.model.context} tokens>"
        )

    def __enter__(self) -> ChatSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _cached(self) -> list[int]:
        """Ids whose keys and values are there for the next message."""
        return self._sequence.ids[: self._sequence.cached] if self._sequence else []

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError("this session is closed: open another one")

    def _close(self) -> None:
        self._is_open = False  # before the next thread comes in
        self._end()

    def _end_reply(self) -> None:
        """Ends a reply under way, which is kept as far as it came."""
        stream = self._stream()
        if stream is not None:
            stream.close()

    def _end(self) -> None:
        """Ends a reply under way, and gives up what is cached."""
        self._end_reply()
        if self._sequence is not None:
            self._llm._engine.forget(self._sequence)
            self._sequence = None

    def _replace(self, messages: Iterable[Message] | None) -> None:
        """Goes on from other messages; None for the system message alone."""
        self._check_open()
        self._end()
        system = self._system
        self._before = None
        self.messages[:] = system if messages is None else messages

    def _keep(self, said: list[Message], chat: RenderedChat, completion: Completion) -> None:
        if not completion.ids and completion.finish_reason in ("cancelled", "error"):
            return
        self.messages += [*said, completion.message]
        # Text cut at a stop text, or without thoughts or hidden tokens, is not that of the ids.
        is_whole = self._llm.tokenizer.decode(completion.ids) == completion.text
        is_visible = self._llm.tokenizer.hidden_ids.isdisjoint(completion.ids)
        self._before = None
        if is_whole and is_visible:
            self._before = self._llm._format.extended(chat, completion.text, completion.ids)
