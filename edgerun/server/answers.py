"""Sends answers: JSON, and events as they come; notices callers who went away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from edgerun.server.problems import Problem, problem_of

if TYPE_CHECKING:
    from starlette.types import Receive, Send


class EventForm(NamedTuple):
    """How events are written.

    Attributes:
        write: an event.
        failed: what is said of a reply that fails in the middle.
        done: behind the last event.
    """

    write: Callable[[Any], bytes]
    failed: Callable[[Problem], Any]
    done: bytes


async def send_json(status: int, value: Any, send: Send, headers: Mapping[str, str] = {}) -> None:  # noqa: B006 - never changed
    """Sends one JSON value."""
    await send_bytes(status, msgspec.json.encode(value), "application/json", send, headers)


async def send_bytes(
    status: int,
    body: bytes,
    kind: str,
    send: Send,
    headers: Mapping[str, str] = {},  # noqa: B006
) -> None:
    """Sends a whole body of a kind."""
    named = {**headers, "content-type": kind, "content-length": str(len(body))}
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def send_problem(
    problem: Problem, send: Send, body: Callable[[Problem], Any] = Problem.body
) -> None:
    """Says why a request is not answered, in the form of an API."""
    await send_json(problem.status, body(problem), send, problem.headers)


def _chunk(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(value: Any) -> bytes:
    """An event whose name is its type."""
    kind: str = value["type"]
    return b"event: " + kind.encode() + b"\n" + _chunk(value)


CHUNKS = EventForm(_chunk, Problem.body, b"data: [DONE]\n\n")


async def send_events(events: AsyncIterator[Any], send: Send, form: EventForm = CHUNKS) -> None:
    """Sends events as they come.

    Nothing is sent before the first, so that what fails until then has a status of its own; what
    fails later is an event, behind which nothing comes.
    """
    first = await anext(events)
    raw = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    await _send_event(form.write(first), send)
    last = form.done
    try:
        async for event in events:
            await _send_event(form.write(event), send)
    except Exception as error:
        last = form.write(form.failed(problem_of(error)))
    await send({"type": "http.response.body", "body": last})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does something for a caller whose request is read; ends it when the caller goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, gone):
            each.cancel()
        results = await asyncio.gather(task, gone, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_event(event: bytes, send: Send) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})
