"""Conversations: what is remembered, cut, saved and given back, on ``tests/support/fakes.py``."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun.backends import make_backend
from edgerun.errors import InputError, PromptError, SessionError
from edgerun.llm.llm import LLM
from edgerun.llm.replies.completion import Completion
from tests.llm.test_llm import model
from tests.support import fakes


def test_a_session_remembers_and_reuses() -> None:
    llm = model()
    chat = llm.session()
    first = chat.send("hello", max_tokens=5).result()
    second = chat.send("again", max_tokens=5).result()
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    assert chat.messages[1]["content"] == first.text
    assert second.stats.reused_tokens >= first.prompt_tokens + len(first.ids) - 1
    assert second.ids == llm.chat(chat.messages[:3], max_tokens=5).ids


def test_an_interrupted_reply_is_kept_as_far_as_it_came() -> None:
    chat = model().session()
    with chat.send("hello") as stream:
        shown = next(stream) + next(stream)
    assert chat.messages[1] == {"role": "assistant", "content": shown}
    assert chat.send("go on", max_tokens=3).result().text


def test_a_new_message_ends_a_reply_under_way_and_follows_it() -> None:
    llm = model()
    chat = llm.session()
    first = chat.send("hello")
    shown = next(first)
    second = chat.send("go on", max_tokens=3).result()
    assert list(first) == []
    assert first.completion.finish_reason == "cancelled"
    contents = [message["content"] for message in chat.messages]
    assert contents == ["hello", shown, "go on", second.text]
    assert second.ids == llm.chat(chat.messages[:3], max_tokens=3).ids


def test_a_reply_under_way_is_forgotten_with_the_rest(tmp_path: Path) -> None:
    chat = model().session()
    chat.save(tmp_path / "empty")
    for forget in (chat.clear, lambda: chat.load(tmp_path / "empty")):
        stream = chat.send("hello")
        next(stream)
        forget()
        stream.close()
        assert chat.messages == []


def test_a_message_that_fails_is_not_kept() -> None:
    chat = model(context=64).session()
    with pytest.raises(PromptError):
        chat.send("x" * 100)
    assert chat.messages == []
    assert chat.send("x", max_tokens=2).result().text


def test_the_system_message_can_change_and_survives_clear() -> None:
    chat = model().session()
    chat.system = "be kind"
    chat.send("x", max_tokens=2).result()
    chat.system = "be brief"
    assert [message["content"] for message in chat.messages[:2]] == ["be brief", "x"]
    chat.clear()
    assert chat.messages == [{"role": "system", "content": "be brief"}]
    chat.system = ""
    assert chat.messages == []
    chat.messages[:] = [{"role": "system", "content": ""}, {"role": "user", "content": "x"}]
    chat.system = "be kind"
    assert [message["content"] for message in chat.messages] == ["be kind", "x"]


def test_a_saved_session_goes_on_where_it_was(tmp_path: Path) -> None:
    llm = model()
    chat, other = llm.session(), llm.session()
    chat.send("hello", max_tokens=5).result()
    chat.save(tmp_path / "chat")
    other.load(tmp_path / "chat")
    assert other.messages == chat.messages
    assert other.send("more", max_tokens=5).result().ids == (
        chat.send("more", max_tokens=5).result().ids
    )
    with pytest.raises(SessionError, match="another model"):
        model(bundle=SimpleNamespace(digest="1" * 64)).session().load(tmp_path / "chat")


def test_more_sessions_than_fit_take_turns() -> None:
    llm = model(max_sessions=2)
    chats = [llm.session() for _ in range(5)]
    for turn in range(3):
        for number, chat in enumerate(chats):
            reply = chat.send(f"{number} {turn}", max_tokens=3).result()
            assert reply.ids == llm.chat(chat.messages[:-1], max_tokens=3).ids
    streams = [chat.send("more", max_tokens=9) for chat in chats]
    pieces = [next(stream) for stream in streams]  # all are under way
    for chat, stream, piece in zip(chats, streams, pieces, strict=True):
        assert piece + "".join(stream) == llm.chat(chat.messages[:-1], max_tokens=9).text


@pytest.mark.parametrize("how", ["closed", "left", "forgotten", "cleared"])
def test_a_session_that_is_over_gives_back_what_it_had(how: str) -> None:
    llm = model(max_sessions=2)
    chat = llm.session()
    assert chat.send("hello", max_tokens=2).result().text
    llm.generate("something else", max_tokens=2)
    llm._engine.room()  # where what has ended gives back what it had
    assert llm._store.room().slots == 1
    assert chat.send("again", max_tokens=2).result().stats.reused_tokens > 20
    if how == "closed":
        chat.close()
    elif how == "left":
        with chat:
            pass
    elif how == "cleared":
        chat.clear()
    else:
        del chat
        gc.collect()
    llm._engine.room()
    assert llm._store.room().slots == 2


def test_closing_ends_a_reply_under_way_which_is_kept() -> None:
    chat = model().session()
    stream = chat.send("hello")
    shown = next(stream)
    chat.close()
    assert list(stream) == []
    assert chat.messages[1] == {"role": "assistant", "content": shown}
    with pytest.raises(InputError, match="this session is closed"):
        chat.send("more").result()
    with pytest.raises(InputError, match="this session is closed"):
        chat.clear()


def test_a_reply_with_a_token_that_is_no_text_is_encoded_anew() -> None:
    """The next message would follow a token that no template wrote."""
    executable = fakes.FakeExecutable()
    llm = LLM(fakes.fake_model(executable))
    start = llm.chat([{"role": "user", "content": "hi"}], max_tokens=1).prompt_tokens
    executable.script = dict(enumerate([ord("a"), fakes.START, ord("b"), fakes.END], start))
    chat = llm.session()
    assert chat.send("hi").result().text == "ab"
    second = chat.send("go on", max_tokens=3).result()
    assert second.prompt_tokens == llm.chat(chat.messages[:3], max_tokens=1).prompt_tokens


def test_a_closed_session_takes_nothing_from_who_waited_meanwhile() -> None:
    chat = model().session()
    run = chat._lock.run

    def run_with_another_behind(function: Any, *arguments: Any) -> Any:
        result = run(function, *arguments)
        chat._lock.run = run  # type: ignore[method-assign]
        for late in (lambda: chat.send("late"), chat.clear, lambda: setattr(chat, "system", "Be.")):
            with pytest.raises(InputError, match="closed"):
                late()
        return result

    chat._lock.run = run_with_another_behind  # type: ignore[method-assign]
    chat.close()
    chat.close()
    assert chat.messages == []


def test_a_message_sent_by_another_thread_ends_the_reply_under_way() -> None:
    chat = model().session()
    first = chat.send("hello")
    shown = [next(first)]
    ended = threading.Event()

    def read() -> None:
        shown.extend(first)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    second = chat.send("go on", max_tokens=3).result()
    assert ended.wait(60)
    contents = [message["content"] for message in chat.messages]
    assert contents == ["hello", "".join(shown), "go on", second.text]
    assert first.completion.finish_reason in ("cancelled", "context")


def test_threads_that_share_a_session_leave_a_whole_conversation() -> None:
    """Whoever is interrupted learns it; no reply is in part another's."""
    llm = model(max_sessions=2, context=4096)
    chat = llm.session()

    def send(number: int) -> Completion:
        return chat.send(f"say {number}", max_tokens=4).result()

    with ThreadPoolExecutor(6) as pool:
        sent = [pool.submit(send, number) for number in range(18)]
        replies = [future.result() for future in sent]
    assert {reply.finish_reason for reply in replies} <= {"length", "cancelled"}
    roles = [message["role"] for message in chat.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    whole = [reply.text for reply in replies if reply.finish_reason == "length"]
    assert whole
    assert set(whole) <= {message["content"] for message in chat.messages}
    assert (
        chat.send("x", max_tokens=3).result().ids == llm.chat(chat.messages[:-1], max_tokens=3).ids
    )


def test_it_is_described_in_a_line() -> None:
    llm = model(max_sessions=2, backends=(make_backend("cpu"),))
    chat = llm.session()
    reply = chat.send("hello", max_tokens=2)
    assert repr(reply) == "<TextStream: Completion('', 0 tokens after 25, finish_reason='')>"
    text = reply.result().text
    assert repr(reply.completion) == (
        f"Completion({text!r}, 2 tokens after 25, finish_reason='length')"
    )
    assert repr(chat) == "<ChatSession: 2 messages, 26 of 512 tokens>"
    assert repr(llm) == "<LLM fake: context 512, 2 of 2 sequences free, cpu on 1 thread>"
    chat.close()
    llm.close()
    assert repr(chat) == "<ChatSession: 2 messages, closed>"
    assert repr(llm) == "<LLM fake: closed>"
