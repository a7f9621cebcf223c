"""A compiled model that many threads use: all of them get what they would get alone."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.base import NO_VALUES
from edgerun.llm.llm import LLM
from tests.engine.test_threads import OneBuffer
from tests.support import fakes
from tests.support.bundles import bundle_of
from tests.support.interrupts import repeat_until_interrupted

THREADS = 16
MESSAGES = 50
CHAT = 4  # messages of a chat, after which it is cleared


@pytest.fixture(scope="module")
def llm() -> Iterator[edgerun.LLM]:
    folder = bundle_of("llama")
    with edgerun.load(folder, backend="cpu", threads=2, max_sessions=THREADS + 1) as model:
        yield model


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def talk(llm: edgerun.LLM, number: int, messages: int) -> list[list[int]]:
    """The replies of one thread to its messages, all of its own session."""
    replies = []
    with llm.session() as chat:
        for turn in range(messages):
            if turn % CHAT == 0:
                chat.clear()
            text = f"{number} {turn % 100}"  # longer ones would not fit the context, CHAT of them
            stream = chat.send(text, max_tokens=2, seed=10_000 * number + turn, ignore_eos=True)
            replies.append(stream.result().ids)
    return replies


def check_threads_against_serial(llm: edgerun.LLM, messages: int) -> None:
    serial = [talk(llm, number, messages) for number in range(THREADS)]
    assert all(len(replies) == messages for replies in serial)
    assert len({str(replies) for replies in serial}) == THREADS  # they can be told apart
    assert in_threads(lambda number: talk(llm, number, messages)) == serial


def test_threads_get_their_serial_replies(llm: edgerun.LLM) -> None:
    check_threads_against_serial(llm, MESSAGES)


@pytest.mark.slow
def test_threads_get_their_serial_replies_for_long(llm: edgerun.LLM) -> None:
    check_threads_against_serial(llm, 40 * MESSAGES)


def test_threads_use_all_parts_of_the_api_at_a_time(llm: edgerun.LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 4, "seed": 7, "ignore_eos": True}

    def complete(number: int) -> Any:
        return llm.generate(f"text {number}", **options).ids

    def stream(number: int) -> Any:
        with llm.stream(f"text {number}", **options) as pieces:
            first = next(pieces, "")
            return first, pieces.completion.ids[:1]  # and the rest is not wanted

    def many(number: int) -> Any:
        prompts = [f"text {number}", f"text {number} b"]
        return [each.ids for each in llm.generate_many(prompts, **options)]

    def answer(number: int) -> Any:
        return llm.chat([{"role": "user", "content": f"text {number}"}], **options).ids

    def score(number: int) -> Any:
        ids = llm.tokenizer.encode(f"text {number} and some more of it")
        return np.concatenate(list(llm.logits(ids))).tobytes()

    kinds = (complete, stream, many, answer, score)

    def work(number: int) -> list[Any]:
        return [kinds[(number + turn) % len(kinds)](number) for turn in range(10)]

    serial = [work(number) for number in range(10)]
    assert in_threads(work, 10) == serial
    gc.collect()
    assert llm._engine.room().slots == THREADS + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals are POSIX")
def test_replies_that_are_interrupted_leave_the_model_to_the_others(llm: edgerun.LLM) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    expected = llm.generate("text", **options).ids
    prompts, rng, stop = ["text", "text and more", "something else"], random.Random(1), []
    replies: list[list[int]] = []

    def rival() -> None:
        while not stop:
            replies.append(llm.generate("text", **options).ids)

    def both() -> None:
        llm.generate_many(prompts, **options)
        llm.generate("text", **options)

    other = threading.Thread(target=rival, daemon=True)
    other.start()
    for _ in range(60):
        repeat_until_interrupted(both, rng, 5e-3)
    stop.append(True)
    other.join(60)
    assert not other.is_alive()
    assert replies
    assert all(reply == expected for reply in replies)
    assert llm.generate("text", **options).ids == expected
    gc.collect()
    assert llm._engine.room().slots == THREADS + 1


def test_whole_replies_need_one_sequence_for_all_threads() -> None:
    llm = LLM(fakes.fake_model(OneBuffer(), max_sessions=1))

    def work(number: int) -> list[list[int]]:
        message = {"role": "user", "content": str(number)}
        return [
            *(reply.ids for reply in llm.generate_many([str(number), "x"], max_tokens=5)),
            llm.generate(str(number), max_tokens=5).ids,
            llm.chat([message], max_tokens=5).ids,
        ]

    assert in_threads(work, 8) == [work(number) for number in range(8)]


def test_closing_waits_for_the_call_that_runs() -> None:
    class Slow(fakes.FakeExecutable):
        inside = False

        def __call__(self, batch: Any, cache: Any) -> Any:
            self.inside = True
            started.set()
            time.sleep(0.05)
            result = super().__call__(batch, cache)
            self.inside = False
            return result

        def close(self) -> None:
            assert not self.inside
            super().close()

    started, executable = threading.Event(), Slow()
    llm = LLM(fakes.fake_model(executable))
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(llm.generate, "text")
        started.wait()
        llm.close()
        with pytest.raises(edgerun.InputError, match="this model is closed"):
            reply.result(60)
    assert executable.closed == 1


def test_a_model_closed_under_running_threads_tells_them(llm: edgerun.LLM) -> None:
    with edgerun.load(bundle_of("llama"), backend="cpu", threads=2, max_sessions=5) as other:
        streams = [other.stream("text", ignore_eos=True) for _ in range(4)]
        for stream in streams:
            next(stream)

        def read(number: int) -> str:
            if number == 4:
                other.close()
                return "closed"
            try:
                streams[number].result()
            except edgerun.InputError as error:
                return str(error)
            return streams[number].completion.finish_reason

        outcomes = set(in_threads(read, 5))
    assert outcomes <= {"closed", "this model is closed: load it again", "context"}


def check_requests_against_serial(
    llm: edgerun.LLM, requests: int, threads: int, tasks: int
) -> None:
    """Threads and coroutines ask at a time; three in ten go away before their reply has ended."""
    rng = random.Random(3)
    texts = [f"{rng.choice('abc')} {number % 40}" for number in range(requests)]
    stays = [rng.random() < 0.7 for _ in texts]
    options: list[dict[str, Any]] = [
        {"max_tokens": rng.randint(2, 6), "seed": number % 40, "ignore_eos": True}
        for number in range(requests)
    ]
    serial = [llm.generate(text, **each).ids for text, each in zip(texts, options, strict=True)]
    replies: list[list[int]] = [[] for _ in texts]

    def ask(number: int) -> None:
        with llm.stream(texts[number], **options[number]) as stream:
            for _ in stream:
                if not stays[number]:
                    break
        replies[number] = stream.completion.ids

    async def ask_later(number: int) -> None:
        stream = llm.stream(texts[number], **options[number])
        reading = asyncio.ensure_future(stream)
        if not stays[number]:
            await asyncio.sleep(rng.random() * 1e-2)
            reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        replies[number] = stream.completion.ids

    async def main(numbers: range) -> None:
        free = asyncio.Semaphore(tasks)

        async def one_of_many(number: int) -> None:
            async with free:
                await ask_later(number)

        await asyncio.gather(*map(one_of_many, numbers))

    with ThreadPoolExecutor(threads) as pool:
        asked = pool.map(ask, range(0, requests, 2))
        asyncio.run(main(range(1, requests, 2)))
        list(asked)
    for number, expected in enumerate(serial):
        whole = expected if stays[number] else expected[: len(replies[number])]
        assert replies[number] == whole
    gc.collect()
    assert llm._engine.room().slots == llm.model.options.max_sessions


def test_threads_and_coroutines_get_their_serial_replies(llm: edgerun.LLM) -> None:
    check_requests_against_serial(llm, 100, threads=4, tasks=16)


@pytest.mark.slow
def test_a_thousand_requests_to_the_default_model() -> None:
    with edgerun.load(threads=2, max_sessions=12) as model:
        check_requests_against_serial(model, 1000, threads=16, tasks=64)


def test_a_coroutine_reads_piece_by_piece(llm: edgerun.LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "seed": 3, "ignore_eos": True}

    async def answer(text: str) -> edgerun.Completion:
        with llm.session() as chat:
            return await chat.send(text, **options)

    async def stream(text: str) -> str:
        async with llm.stream(text, **options) as pieces:
            return "".join([piece async for piece in pieces])

    async def main() -> Any:
        return await asyncio.gather(*map(answer, "abc"), *map(stream, "def"))

    replies = asyncio.run(main())
    with llm.session() as chat:
        for text, reply in zip("abc", replies[:3], strict=True):
            chat.clear()
            assert reply.ids == chat.send(text, **options).result().ids
    assert replies[3:] == [llm.generate(text, **options).text for text in "def"]


def test_a_piece_that_nobody_waits_for_any_more_comes_next(llm: edgerun.LLM) -> None:
    """Waits with a limit of time are cancelled while a thread takes the piece."""

    async def main() -> tuple[str, str]:
        text = ""
        async with llm.stream("text", max_tokens=40, seed=1, ignore_eos=True) as stream:
            while True:
                try:
                    text += await asyncio.wait_for(stream.__anext__(), 1e-4)
                except asyncio.TimeoutError:
                    await asyncio.sleep(1e-3)
                except StopAsyncIteration:
                    return text, stream.completion.text

    read, said = asyncio.run(main())
    assert read == said and len(said) > 10


def test_a_piece_that_nobody_waits_for_any_more_comes_to_a_thread_too(llm: edgerun.LLM) -> None:
    with llm.stream("text", max_tokens=20, seed=1, ignore_eos=True) as stream:
        while not stream._fetched:
            stream._fetch()  # as the thread does that a cancelled task has left behind
        assert "".join(stream) == stream.completion.text != ""


def test_a_task_that_is_cancelled_leaves_the_model_to_the_others(llm: edgerun.LLM) -> None:
    async def main() -> edgerun.Completion:
        stream = llm.stream("text", ignore_eos=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_forever(stream), 0.05)
        assert stream.completion.finish_reason in ("cancelled", "context")
        return await llm.stream("text", max_tokens=3, temperature=0, ignore_eos=True)

    async def _forever(stream: edgerun.TextStream) -> None:
        await stream
        await asyncio.sleep(60)

    assert len(asyncio.run(main()).ids) == 3
    assert llm._engine.room().slots == THREADS + 1


def test_streams_that_wait_for_their_turn_leave_the_pool_to_others() -> None:
    """A pool has few threads: of a stream that has no slot none waits for one."""
    rows: list[int] = []

    class Counting(OneBuffer):
        def __call__(self, batch: Any, cache: Any, values: Any = NO_VALUES) -> Any:
            rows.append(batch.rows)
            return super().__call__(batch, cache, values)

    async def main(model: LLM) -> list[edgerun.Completion]:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            streams = [model.stream(text, max_tokens=30, ignore_eos=True) for text in "abcdefgh"]
            replies = asyncio.gather(*streams)
            await asyncio.sleep(0)
            for _ in range(3):
                calls = len(rows)
                await asyncio.to_thread(int)
                assert len(rows) - calls <= len(streams)
            return await replies

    with LLM(fakes.fake_model(Counting(), max_sessions=2)) as model:
        replies = asyncio.run(main(model))
        assert sum(rows) <= sum(reply.prompt_tokens + 29 for reply in replies)


def test_coroutines_may_share_a_stream(llm: LLM) -> None:
    """Each of its pieces goes to one of them, and each of them comes to an end."""
    whole = list(llm.stream("Once", max_tokens=30, temperature=0))
    stream = llm.stream("Once", max_tokens=30, temperature=0)

    async def read() -> list[str]:
        return [piece async for piece in stream]

    async def read_all() -> list[list[str]]:
        return await asyncio.wait_for(asyncio.gather(*(read() for _ in range(8))), 60)

    pieces = asyncio.run(read_all())
    assert sorted(sum(pieces, [])) == sorted(whole)
