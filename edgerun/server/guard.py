"""Stands before all routes and methods: who may call, from which page, and how many at a time.

Paths are made uniform here, so that what is allowed and what answers go by the same one.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from edgerun.server.answers import send_problem
from edgerun.server.hosts import Hosts, is_same_origin, split_target
from edgerun.server.messages.problems import problem_body
from edgerun.server.options import ServerOptions
from edgerun.server.page import FILES
from edgerun.server.problems import Problem, problem_of, stopping
from edgerun.values import shown

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = ("/health", *FILES)  # say nothing about the model or anybody's texts
MOST_REQUESTS = 1024  # at a time, most of them waiting for their body or for being refused
ALLOWED_HEADERS = "authorization, *"  # which * is not for; clients add some of their own
METHODS = "GET, POST, OPTIONS"


ANSWER = "edgerun.answer"  # of a scope: its ``Answer``
ID_HEADERS = ("x-request-id", "request-id")  # where clients of OpenAI's and of Anthropic's look


@dataclass
class Answer:
    """What became of a request.

    Attributes:
        method: of it.
        path: the same, as the routes have it.
        status: of HTTP.
        seconds: from the request to the end of the answer.
        tokens: counts those of replies; None where there are none.
        id: by which caller and log name it.
    """

    method: str
    path: str
    status: int = 0
    seconds: float = 0.0
    tokens: Callable[[], int] | None = None
    id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex}")


@dataclass
class Guard:
    """An ASGI application before another.

    Attributes:
        app: what it stands before.
        options: who may call.
        tell: is told of each request that was answered, when its answer ends.
    """

    app: ASGIApp
    options: ServerOptions
    tell: Callable[[Answer], None]

    def __post_init__(self) -> None:
        self._hosts = Hosts(self.options.host, self.options.hosts)
        self._origins = frozenset(origin.lower() for origin in self.options.origins)
        self._key = None if self.options.key is None else self.options.key.encode()
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or refuses it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            self._requests += 1
            called, path = split_target(scope["path"])
            path = path.removesuffix("/") or "/"
            answer = Answer(scope["method"], path)
            sending = _Sending(answer, self.tell, send)
            try:
                scope = {**scope, "path": path, ANSWER: answer}
                await self._http(scope, called, receive, sending)
            finally:
                self._requests -= 1
                sending.end()
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "there are none here"})

    async def _http(
        self, scope: Scope, called: str | None, receive: Receive, send: _Sending
    ) -> None:
        headers, body = Headers(scope=scope), problem_body(scope["path"])
        try:
            send.origin = self._checked(scope, called, headers)
            if scope["method"] == "OPTIONS" and send.origin is not None:
                await self._preflight(send)
            else:
                self._check_key(scope["path"], headers)
                await self.app(scope, receive, send)
        except asyncio.CancelledError:  # the server waits no longer
            if not send.has_begun:
                await send_problem(stopping(), send, body)
            raise
        except Exception as error:
            if not send.has_begun:
                await send_problem(problem_of(error), send, body)
            # Else the connection ends in the middle, which a caller can tell from a whole answer.

    def _checked(self, scope: Scope, called: str | None, headers: Headers) -> str | None:
        """The page that calls, if another server's does.

        Args:
            scope: of the request.
            called: the host that its target names, which counts more than the header; often None.
            headers: of the request.

        Raises:
            Problem: the request is refused.
        """
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if called is not None and len(hosts) == 1:
            hosts = [called]
        if len(hosts) != 1 or not self._hosts.allow(hosts[0]):
            raise Problem(
                403,
                f"the request is for the host {shown(', '.join(hosts))}, which is not this "
                "server: call it by an address of this machine, or start it with --allow-host NAME",
                "host_not_allowed",
            )
        origin = None
        if origins and not (len(origins) == 1 and is_same_origin(origins[0], hosts[0])):
            origin = ", ".join(origins)
            if origin.lower() not in self._origins:
                raise Problem(
                    403,
                    f"pages of {shown(origin)} may not call this server: start it with "
                    "--allow-origin ORIGIN to let them",
                    "origin_not_allowed",
                )
        if "content-length" in headers and "transfer-encoding" in headers:
            raise Problem(  # a proxy may have read another body than we would
                400,
                "the body has both a Content-Length and a Transfer-Encoding: leave one out",
                headers={"Connection": "close"},
            )
        if self._requests > MOST_REQUESTS and scope["path"] not in OPEN_PATHS:
            raise Problem(
                429, "too many requests at a time", "too_many", headers={"Retry-After": "1"}
            )
        return origin

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._key is None or path in OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = self._is_key(given) and scheme.lower() == "bearer"
        if not (self._is_key(headers.get("x-api-key", "")) or is_right):
            raise Problem(
                401,
                "this server asks for its key: send the header Authorization: Bearer KEY, or "
                "x-api-key: KEY",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _is_key(self, given: str) -> bool:
        """Whether a text is the key, in a time that does not tell how much of it is right."""
        assert self._key is not None
        return hmac.compare_digest(given.strip().encode(), self._key)

    async def _preflight(self, send: _Sending) -> None:
        allowed = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": ALLOWED_HEADERS,
            "access-control-max-age": "600",
        }
        raw = [(name.encode(), value.encode()) for name, value in allowed.items()]
        await send({"type": "http.response.start", "status": 204, "headers": raw})
        await send({"type": "http.response.body", "body": b""})


class _Sending:
    """Sends an answer: its headers name the page that may read it.

    Who is told of it hears so before the caller has all of it.
    """

    def __init__(self, answer: Answer, tell: Callable[[Answer], None], send: Send) -> None:
        self._answer, self._tell, self._send = answer, tell, send
        self._began = time.monotonic()
        self._has_ended = False
        self.origin: str | None = None
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers["x-content-type-options"] = "nosniff"
            headers.append("vary", "Origin")
            for name in ID_HEADERS:
                headers[name] = self._answer.id
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["access-control-expose-headers"] = ", ".join(ID_HEADERS)
            self._answer.status = message["status"]
        elif not message.get("more_body"):
            self.end()
        await self._send(message)

    def end(self) -> None:
        """Tells of the answer, once, if there was one."""
        if self.has_begun and not self._has_ended:
            self._has_ended = True
            self._answer.seconds = time.monotonic() - self._began
            self._tell(self._answer)
