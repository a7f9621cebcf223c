"""Replies under way: many at a time, callers who go away, too many, and the end."""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType
from typing import Any

import httpx
import pytest
import uvicorn

from edgerun.llm.llm import LLM
from edgerun.llm.pump import Pump
from edgerun.llm.replies.several import chat_replies
from edgerun.llm.replies.stream import TextStream
from edgerun.server import serving
from edgerun.server.app import Server
from edgerun.server.options import ServerOptions
from tests.server.served import CHAT, HELLO, TEXT, Paced, Served, served, until
from tests.support import fakes


@pytest.fixture
def paced() -> Iterator[tuple[Served, Paced]]:
    """A server whose model makes a call when it is let; two replies run and three wait."""
    executable = Paced()
    with served(LLM(fakes.fake_model(executable, max_sessions=2)), queue=3) as client:
        yield client, executable
        executable.let()


def begin(client: Served, **fields: Any) -> Any:
    """A stream that is under way; its ``with`` block ends it."""
    body = {"messages": HELLO, "stream": True, **fields}
    return client.stream("POST", CHAT, json=body)


def test_many_streams_of_which_some_are_given_up_say_what_each_says_alone() -> None:
    count, llm = 120, LLM(fakes.fake_model(max_sessions=8))
    options = [{"temperature": 1.5, "seed": seed, "max_tokens": 24} for seed in range(count)]
    with LLM(fakes.fake_model()) as other:
        alone = [str(other.chat(HELLO, **each)) for each in options]
    with served(llm, queue=1000) as client:
        room, files = llm._engine.room(), len(list(Path("/proc/self/fd").iterdir()))

        def call(index: int) -> str:
            with begin(client, **options[index]) as answer:
                text = ""
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        delta = json.loads(line[6:])["choices"][0]["delta"]
                        text += delta.get("content", "")
                    if index % 10 < 3 and len(text) > index % 7:
                        return alone[index] if alone[index].startswith(text) else text
            return text

        client.get("/health")
        with ThreadPoolExecutor(24) as pool:
            assert list(pool.map(call, range(count))) == alone
        until(lambda: client.server.replies.under_way == 0)
        until(lambda: llm._engine.room() == room)
        assert not client.server.replies._groups
        client.close()
        until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= files)


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_goes_away_before_anything_came_ends_the_reply(
    paced: tuple[Served, Paced], stream: bool
) -> None:
    client, executable = paced
    with pytest.raises(httpx.ReadTimeout):
        client.post(CHAT, json={"messages": HELLO, "stream": stream}, timeout=0.2)
    assert client.server.replies.under_way == 1
    until(lambda: executable.let(1) or client.server.replies.under_way == 0)
    assert len(executable.rows) < 200  # of 480 tokens that there is room for


def test_callers_who_go_away_in_the_middle_end_their_replies(paced: tuple[Served, Paced]) -> None:
    client, executable = paced
    for _ in range(20):  # a cancellation is easily lost when it comes just behind a piece
        before = len(executable.rows)
        executable.let(6)
        with begin(client) as answer:
            next(answer.iter_lines())
        until(lambda: executable.let(1) or client.server.replies.under_way == 0)
        assert len(executable.rows) < before + 200  # of 480 tokens that there is room for


def test_too_many_replies_are_refused_while_the_server_says_that_it_is_well(
    paced: tuple[Served, Paced],
) -> None:
    client, executable = paced
    with ThreadPoolExecutor(50) as pool:
        calls = [pool.submit(client.chat, max_tokens=2) for _ in range(50)]
        until(lambda: sum(call.done() for call in calls) == 45)
        waits = []
        for _ in range(20):
            began = time.perf_counter()
            assert client.get("/health").status_code == 200
            waits.append(time.perf_counter() - began)
        assert max(waits) < 1  # of a machine that others use, too
        executable.let()
        answers = [call.result() for call in calls]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 45 and sum(answer.status_code == 200 for answer in answers) == 5
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert refused[0].json()["error"]["type"] == "rate_limit_error"
    assert "edgerun_replies_refused_total 45.0" in client.get("/metrics").text


def test_replies_that_wait_come_in_their_turn(paced: tuple[Served, Paced]) -> None:
    client, executable = paced
    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(client.chat, max_tokens=2) for _ in range(5)]
        until(lambda: client.server.replies.under_way == 5)
        executable.let()
        assert [call.result().status_code for call in calls] == [200] * 5


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_the_server_ends_replies_and_says_so(stream: bool) -> None:
    executable = Paced()
    answers: list[httpx.Response] = []
    with served(LLM(fakes.fake_model(executable))) as client:
        executable.let(3)

        def call() -> None:
            answers.append(client.chat(stream=stream))

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: len(executable.rows) >= 3)
        client.stop()
        until(lambda: executable.let(1) or not thread.is_alive())
    (answer,) = answers
    if stream:
        last = answer.text.strip().split("\n\n")[-1]
        assert answer.status_code == 200 and "[DONE]" not in answer.text
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 503
        error = answer.json()["error"]
    assert error["message"] == "the server is being stopped"
    assert len(executable.rows) < 200


def test_callers_who_go_away_while_others_are_encoded_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prompts() -> int:
        gc.collect()  # what other tests left
        return sum(
            getattr(each, "__qualname__", "") == "read_text.<locals>.make"
            for each in gc.get_objects()
            if issubclass(type(each), FunctionType)  # weak proxies of what is gone would raise
        )

    before, go_on = prompts(), threading.Event()
    llm = LLM(fakes.fake_model())
    encode = llm.tokenizer.encode_many
    monkeypatch.setattr(
        llm.tokenizer, "encode_many", lambda texts: go_on.wait(30) and encode(texts)
    )
    with served(llm, queue=100) as client, ThreadPoolExecutor(32) as pool:
        replies = client.server.replies
        slow = [pool.submit(client.text, "slow", max_tokens=1) for _ in range(2)]
        until(lambda: replies.under_way == 2)

        def go_away(_: int) -> None:
            with pytest.raises(httpx.ReadTimeout):
                client.post(TEXT, json={"prompt": "in vain"}, timeout=0.2)

        list(pool.map(go_away, range(30)))
        until(lambda: replies.under_way == 2)
        until(lambda: prompts() <= before + 2)
        go_on.set()
        assert [each.result().status_code for each in slow] == [200, 200]
        assert client.text("next", max_tokens=1).status_code == 200


def test_a_prompt_that_is_encoded_when_the_server_ends_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    llm = LLM(fakes.fake_model())

    def slowly(*arguments: Any, **sampling: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return chat_replies(*arguments, **sampling)

    monkeypatch.setattr("edgerun.server.chat.chat_replies", slowly)
    with served(llm) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.chat)
        assert begun.wait(30)
        client.server.replies.stop()
        go_on.set()
        assert call.result().json()["error"]["code"] == "stopped"
        assert client.server.replies.under_way == 0


def test_a_signal_while_the_server_starts_ends_it() -> None:
    with LLM(fakes.fake_model()) as llm:
        server = Server(llm, ServerOptions())
        runner = serving._Uvicorn(uvicorn.Config(server.app), server, lambda stop: None)
        runner.handle_exit(signal.SIGTERM, None)  # its replies are not there yet
        assert runner.should_exit and not runner.force_exit


def test_a_signal_while_replies_begin_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    executable, runners, add = Paced(), [], Pump.add

    class Runner(serving._Uvicorn):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            runners.append(self)

    def interrupted(pump: Pump, streams: list[TextStream]) -> None:
        add(pump, streams)
        runners[0].handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(serving, "_Uvicorn", Runner)
    monkeypatch.setattr(Pump, "add", interrupted)
    with served(LLM(fakes.fake_model(executable))) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.chat, n=2)
        until(lambda: client.server.replies.is_stopped)
        executable.let()
        assert call.result().json()["error"]["code"] == "stopped"


def test_what_comes_after_the_end_is_refused(paced: tuple[Served, Paced]) -> None:
    client, executable = paced
    executable.let()
    client.server.replies.stop()
    answer = client.chat(max_tokens=1)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_replies_are_counted(client: Served) -> None:
    def value(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return float(next((line.split()[-1] for line in lines if line.startswith(name)), 0))

    names = (
        'edgerun_replies_total{finish_reason="length"}',
        "edgerun_prompt_tokens_total",
        "edgerun_completion_tokens_total",
        "edgerun_first_token_seconds_count",
        'edgerun_requests_total{method="POST",path="/v1/completions",status="200"}',
        'edgerun_requests_total{method="other",path="other",status="404"}',
        'edgerun_requests_total{method="GET",path="/v1/models/{name:path}",status="404"}',
    )
    before = [value(name) for name in names]
    client.text("Once", max_tokens=7)
    client.request("BREW", "/coffee")
    for name in ("a", "b/c", "a"):
        client.get(f"/v1/models/{name}")
    after = [value(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 5, 7, 1, 1, 1, 3]
    assert value("edgerun_replies_under_way") == 0


def test_threads_end_with_the_server() -> None:
    before = set(threading.enumerate())
    with served() as client:
        assert client.chat(max_tokens=1).status_code == 200
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert {"edgerun-pump", "edgerun-encode_0"} <= names
    until(lambda: set(threading.enumerate()) <= before)  # encoders end by themselves
