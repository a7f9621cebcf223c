"""The state of ``edgerun chat``: what was said, how full the context is, and what is kept of it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from edgerun.cli.screen.messages import MEMORY_FULL, say
from edgerun.errors import (
    EdgerunError,
    InputError,
    PromptError,
    SamplingError,
    StorageError,
)

if TYPE_CHECKING:
    from edgerun.cli.conversation.store import ChatStore
    from edgerun.engine.stats import Stats
    from edgerun.llm.llm import LLM, ChatSession
    from edgerun.llm.replies.completion import Completion
    from edgerun.llm.replies.stream import TextStream
    from edgerun.model.chat.template import Message

STOP, DROP_OLDEST = "stop", "drop-oldest"
WHEN_FULL = (STOP, DROP_OLDEST)
MOST_RESERVED = 512  # tokens that `drop-oldest` keeps free for a reply, or half of the context
WAYS_OUT = (
    "/undo takes back the last message and its reply, /forget N drops the N oldest, /clear all; "
    "`edgerun chat --when-full drop-oldest` drops by itself"
)
WAYS_OUT_AGAIN = "/undo, /forget N or /clear makes room"


class Conversation:
    """A chat, and what its commands change.

    Attributes:
        llm: the model.
        session: what was said.
        settings: sampling parameters that were set.
        when_full: one of ``WHEN_FULL``.
        store: where the chat is kept, or None.
        is_kept: whether the chat in the store is this one, or what it was.
        last: timings of the last reply.
        done: whether to quit.
        failures: messages that got no reply, and commands that failed.
        has_failed: whether that was the machine's fault once, not that of what was typed.
    """

    def __init__(
        self,
        llm: LLM,
        settings: dict[str, Any],
        *,
        when_full: str = STOP,
        store: ChatStore | None = None,
        hides_thinking: bool = False,
        show_stats: bool = False,
    ) -> None:
        self.llm = llm
        self.session: ChatSession = llm.session()
        self.settings = settings
        self.when_full = when_full
        self.store = store
        self.is_kept = False
        self.last: Stats | None = None
        self.done = False
        self.failures = 0
        self.has_failed = False
        self._hides_thinking, self._show_stats = hides_thinking, show_stats
        self._told_ways_out = False

    @property
    def context(self) -> int:
        """Tokens that the chat may have."""
        return self.llm.model.context

    def used(self) -> int | None:
        """Tokens of the context that the chat takes, the beginning of a reply included.

        None if it has no form.
        """
        messages = self.session.messages
        tokens = self._tokens(messages)
        if tokens is None or tokens <= self.context:
            return tokens
        # A reply that the end of the context cut has no room for its end and the next beginning.
        before = self._tokens(messages[:-1]) if messages[-1].get("role") == "assistant" else None
        said = self._length(str(messages[-1].get("content", "")))
        return self.context if before is not None and before + said <= self.context else tokens

    def _tokens(self, messages: list[Message]) -> int | None:
        """Tokens of a chat, the beginning of a reply included; None if it has no form."""
        if not messages:
            return 0
        try:
            return self.llm.stream_chat(messages).completion.prompt_tokens
        except PromptError as error:
            return error.tokens
        except InputError:  # a template that wants the user to speak last
            return None

    def check(self, settings: dict[str, Any]) -> None:
        """Makes sure that the model can answer with some sampling parameters.

        Raises:
            SamplingError: it never can.
        """
        try:
            self.llm.stream_chat([{"role": "user", "content": "?"}], **settings)
        except SamplingError:
            raise
        except InputError:  # whatever the model has against this message, others may do
            return

    def fill(self) -> str:
        """How full the context is, as ``412/512``."""
        used = self.used()
        return f"{'?' if used is None else used}/{self.context}"

    def answer(self, text: str) -> None:
        """Streams a reply to stdout, and keeps the chat however that ends.

        Ctrl-C stops the reply. At a terminal the chat goes on; a script is ended by it.

        Raises:
            PromptError: the message does not fit.
        """
        from edgerun.cli.screen.reply import show_reply

        stream = self._begin(text)
        try:
            show_reply(stream, hides_thinking=self._hides_thinking)
            print(flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print(" [stopped]", end="", file=sys.stderr, flush=True)
            print(flush=True)
        finally:  # whoever reads our output may be gone, by the same Ctrl-C
            self.keep()
        completion = stream.completion
        self.last = completion.stats
        self._say_why_it_ended(completion)
        if self._show_stats:
            from edgerun.cli.screen.report import show_stats

            show_stats(self.llm, self.last)

    def keep(self) -> None:
        """Writes the chat to the store; a disk that is full ends keeping, not the chat.

        One in which nothing was said takes the place of what it was, and of no other chat.
        """
        if self.store is None or not (self.is_kept or self.exchanges()):
            return
        try:
            self.store.keep(self.session, self.llm.model.digest)
            self.is_kept = True
        except StorageError as error:
            self.store = None
            say(f"this chat is not kept for --continue: {error}")

    def exchanges(self) -> list[int]:
        """Where each exchange, a user's message and what follows it, begins in the messages."""
        messages = self.session.messages
        return [index for index, item in enumerate(messages) if item.get("role") == "user"]

    def forget(self, count: int) -> None:
        """Drops the oldest exchanges; the system message stays."""
        starts, messages = self.exchanges(), self.session.messages
        if starts:
            end = starts[count] if count < len(starts) else len(messages)
            self.session.messages = [*messages[: starts[0]], *messages[end:]]

    def undo(self) -> Message:
        """Drops the last exchange and returns what the user said.

        Raises:
            InputError: there is none.
        """
        starts = self.exchanges()
        if not starts:
            raise InputError("there is nothing to take back: nothing was said yet")
        message = self.session.messages[starts[-1]]
        self.session.messages = self.session.messages[: starts[-1]]
        return message

    def retry(self) -> None:
        """Answers the last message again; the old reply comes back if that fails.

        Raises:
            InputError: there is no message, or it does not fit.
        """
        before = list(self.session.messages)
        text = str(self.undo()["content"])
        try:
            self.answer(text)
        finally:
            last = self.session.messages[-1:]  # others before it may have been dropped
            if not last or any(last[0] is message for message in before):  # not one token came
                self.session.messages = before
                self.keep()

    def _begin(self, text: str) -> TextStream:
        """Starts a reply; in a full context it forgets the oldest exchanges if it may."""
        before = list(self.session.messages)
        dropped = 0
        while True:
            try:
                stream = self.session.send(text, **self.settings)
            except PromptError as error:
                if error.tokens is None or not self.exchanges() or self.when_full == STOP:
                    self.session.messages = before
                    raise self._refusal(text, error) from error
            else:
                if self.when_full == STOP or not self.exchanges() or self._leaves_room(stream):
                    break
                stream.close()  # before it began
            self.forget(1)
            dropped += 1
        if dropped:
            messages = (
                "message and its reply" if dropped == 1 else f"{dropped} messages and replies"
            )
            say(f"the context is full: the oldest {messages} were dropped")
        return stream

    def _refusal(self, text: str, error: PromptError) -> PromptError:
        """Why a message is refused, and what helps."""
        if error.tokens is None:  # it is unusable, whatever the context
            return error
        system = self.session.messages[:1] if self.session.system else []
        alone = self._tokens([*system, {"role": "user", "content": text}])
        if alone is not None and alone >= self.context:
            what = "this message and the system's have" if system else "this message alone has"
            tokens = max(alone, self._length(text))  # the refusal of a long text has a bound
            return PromptError(
                f"{what} {tokens} tokens, and the context holds {self.context}, one of which must "
                f"stay free: shorten {'one of them' if system else 'it'}"
            )
        return PromptError(
            f"the chat would have {error.tokens} tokens, and the context is {self.context}: "
            f"{self._ways_out()}"
        )

    def _length(self, text: str) -> int:
        """Tokens of a message; 0 if unknown."""
        with contextlib.suppress(EdgerunError):  # longer than anything that is encoded
            return len(self.llm.tokenizer.encode(text, bos=False))
        return 0

    def _ways_out(self) -> str:
        """What makes room in a full context: all of it once, and then in short."""
        told, self._told_ways_out = self._told_ways_out, True
        return WAYS_OUT_AGAIN if told else WAYS_OUT

    def _leaves_room(self, stream: TextStream) -> bool:
        reserved = min(self.context // 2, MOST_RESERVED)
        return stream.completion.prompt_tokens + reserved <= self.context

    def _say_why_it_ended(self, completion: Completion) -> None:
        """Tells of a reply that ends before its end."""
        if completion.finish_reason == "context":
            self._say_full()
        elif completion.finish_reason == "memory":
            say(MEMORY_FULL)
        elif completion.finish_reason == "length":
            count = len(completion.ids)
            say(f"the reply is cut after {count} token{'' if count == 1 else 's'}")

    def _say_full(self) -> None:
        full = f"the context is full ({self.context}/{self.context}), so the reply ends here"
        later = "the oldest messages make room for the next one"
        say(f"{full}: {self._ways_out() if self.when_full == STOP else later}")
