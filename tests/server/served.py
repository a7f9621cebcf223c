"""A model that is served in a thread, for tests that call it as any program does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from edgerun.llm.llm import LLM
from edgerun.server import serving
from edgerun.server.app import Server
from edgerun.server.options import ServerOptions
from tests.support import fakes

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "Hello"}]


class Paced(fakes.FakeExecutable):
    """Makes a call only when it is let: for tests in which replies are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)

    def __call__(self, *arguments: Any) -> Any:
        self.gate.acquire(timeout=30)
        return super().__call__(*arguments)

    def let(self, calls: int = 1_000_000) -> None:
        for _ in range(min(calls, 10_000)):
            self.gate.release()


class Served(httpx.Client):
    """A client of a server that runs.

    Attributes:
        server: the server.
        stop: ends it; callable from any thread.
    """

    def __init__(self, server: Server, address: str, stop: Callable[[], None]) -> None:
        super().__init__(base_url=address, timeout=30)
        self.server, self.stop = server, stop

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post(CHAT, json={"messages": HELLO, **fields})

    def text(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.post(TEXT, json={"prompt": prompt, **fields})


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Waits for something that comes soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


@contextmanager
def served(
    llm: LLM | None = None, log: Callable[[str], None] = lambda line: None, **options: Any
) -> Iterator[Served]:
    llm = llm or LLM(fakes.fake_model())
    with serving.listen("127.0.0.1", 0) as listening:
        address = serving.address_of(listening)
        server = Server(llm, ServerOptions(**{"name": "fake", **options}), log)
        stops: list[Callable[[], None]] = []
        is_ready = threading.Event()

        def ready(stop: Callable[[], None]) -> None:
            stops.append(stop)
            is_ready.set()

        thread = threading.Thread(target=serving.serve, args=(server, listening, ready))
        thread.start()
        assert is_ready.wait(30)
        with Served(server, address, stops[0]) as client:
            try:
                yield client
            finally:
                client.stop()
                thread.join(30)
        assert not thread.is_alive()
        llm.close()
