"""A conversation with a model, remembered from message to message."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgerun.completion import Completion, TextStream
from edgerun.engine.session import Session
from edgerun.engine.session_file import SavedSession, load_session, save_session
from edgerun.engine.stats import Stats
from edgerun.errors import PromptError
from edgerun.model.chat_format import RenderedChat
from edgerun.model.chat_template import Message

if TYPE_CHECKING:
    from edgerun.llm import LLM


class ChatSession:
    """A conversation that remembers.

    Attributes:
        messages: what was said, oldest first.
    """

    def __init__(self, llm: LLM, session: Session) -> None:
        """Made by ``LLM.session``."""
        self._llm = llm
        self._session = session
        self._before: RenderedChat | None = None
        self._stream: Callable[[], TextStream | None] = lambda: None
        self.messages: list[Message] = []

    @property
    def system(self) -> str:
        """The system message, ``""`` if there is none."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    @system.setter
    def system(self, text: str) -> None:
        rest = self.messages[1:] if self.system else self.messages
        self.messages = [*([{"role": "system", "content": text}] if text else []), *rest]

    def send(self, text: str, **sampling: Any) -> TextStream:
        """Sends a message and streams the reply.

        Both become part of the conversation when the stream ends; an interrupted reply is kept as
        far as it came, and after an error before the first token the message is not kept. A reply
        that is still under way when the next message is sent ends there.

        Raises:
            PromptError: the text is empty, or the conversation no longer fits the context.
        """
        stats = Stats()
        if not text:
            raise PromptError("the message is empty")
        params = self._llm.chat_params(**sampling)
        self._end_reply()
        message: Message = {"role": "user", "content": text}
        chat = self._llm._format.encode([*self.messages, message], before=self._before)

        def ended(completion: Completion) -> None:
            self._keep(message, chat, completion)

        decoder = self._llm.tokenizer.stream()
        stream = self._llm._stream(self._session, chat.ids, params, stats, decoder, ended)
        self._stream = weakref.ref(stream)  # one that is dropped must end at once
        return stream

    def clear(self) -> None:
        """Forgets what was said, but for the system message."""
        self._end_reply()
        self.messages = self.messages[:1] if self.system else []
        self._before = None
        self._session.clear()

    def save(self, path: str | Path) -> None:
        """Writes the conversation to a file, atomically.

        Raises:
            StorageError: the folder is not writable or the disk is full.
        """
        messages = tuple({key: str(value) for key, value in item.items()} for item in self.messages)
        ids = tuple(self._session.ids)
        save_session(Path(path), SavedSession(self._llm.model.digest, ids, messages))

    def load(self, path: str | Path) -> None:
        """Replaces the conversation by a saved one; its keys and values are computed when needed.

        Raises:
            SessionError: the file is missing, broken, or belongs to another model.
        """
        saved = load_session(Path(path), self._llm.model.digest)
        self._end_reply()
        self._before = None
        self._session.clear()
        self.messages = list(saved.messages)

    def close(self) -> None:
        """Gives the cache back; calling it twice is allowed."""
        self._session.close()

    def __enter__(self) -> ChatSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _end_reply(self) -> None:
        """Ends a reply under way, which is kept as far as it came; not one that never began."""
        stream = self._stream()
        if stream is not None and stream.completion.ids:
            stream.close()

    def _keep(self, message: Message, chat: RenderedChat, completion: Completion) -> None:
        if not completion.ids and completion.finish_reason == "cancelled":
            return
        self.messages += [message, {"role": "assistant", "content": completion.text}]
        # Text cut at a stop text, or with hidden tokens, is not the text of the ids.
        whole = self._llm.tokenizer.decode(completion.ids) == completion.text
        visible = self._llm.tokenizer.hidden_ids.isdisjoint(completion.ids)
        self._before = None
        if whole and visible:
            self._before = self._llm._format.extended(chat, completion.text, completion.ids)
