"""The server as an ASGI application: its routes, and what stands before them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.routing import Route, Router

from edgerun.llm.loading import is_own_model, model_name
from edgerun.server.answers import send_bytes, send_json, unless_gone
from edgerun.server.body import BODY_BYTES_PER_TOKEN, LEAST_BODY_BYTES, read_json
from edgerun.server.chat import read_chat
from edgerun.server.guard import ANSWER, Answer, Guard
from edgerun.server.messages.problems import PATH as MESSAGES
from edgerun.server.messages.request import read_count, read_message
from edgerun.server.metrics import Metrics
from edgerun.server.options import ServerOptions
from edgerun.server.page import FILES, HEADERS, page
from edgerun.server.problems import Problem
from edgerun.server.replies import Replies
from edgerun.server.responses.request import read_response
from edgerun.server.text import read_text
from edgerun.server.work import Asked, Head
from edgerun.values import shown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from edgerun.llm.llm import LLM

METHODS = ("GET", "POST", "OPTIONS")
MOST_LOGGED = 200  # characters of a path
METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"


class Server:
    """One model, served.

    Attributes:
        llm: the model.
        name: what callers know it as.
        app: the ASGI application.
        metrics: what is counted.
        replies: under way; there while the application runs.
    """

    replies: Replies

    def __init__(
        self,
        llm: LLM,
        options: ServerOptions,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Takes a loaded model.

        Args:
            llm: stays the caller's to close.
            options: who may call.
            log: is told of every answer, in one line.
        """
        self.llm, self._options, self._log = llm, options, log
        path = llm.model.path
        self.name = options.name or ("edgerun" if is_own_model(path) else model_name(path))
        self.metrics = Metrics()
        self._started = int(time.time())
        most = max(LEAST_BODY_BYTES, llm.model.context * BODY_BYTES_PER_TOKEN)
        routes = [
            *(Route(path, Get(self._page)) for path in FILES),
            Route("/v1", Get(self._overview)),
            Route("/health", Get(self._health)),
            Route("/metrics", Get(self._metrics)),
            Route("/v1/models", Get(self._models)),
            Route("/v1/models/{name:path}", Get(self._model)),
            Route("/v1/chat/completions", Post(self, read_chat, "chatcmpl", most)),
            Route("/v1/completions", Post(self, read_text, "cmpl", most)),
            Route("/v1/responses", Post(self, read_response, "resp", most)),
            Route(MESSAGES, Post(self, read_message, "msg", most)),
            Route(f"{MESSAGES}/count_tokens", Post(self, read_count, "", most)),
        ]
        self._paths = {route.path: route.path_regex for route in routes}
        router = Router(routes, redirect_slashes=False, default=_no_route, lifespan=self._lifespan)
        self.app = Guard(router, options, self._answered)

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        self.replies = Replies(self.llm, self._options.queue, self.metrics)
        try:
            yield
        finally:
            await self.replies.close()

    def head(self, prefix: str) -> Head:
        """What the objects of an answer have in common."""
        return Head(prefix, self.name, f"fp_{self.llm.model.digest[:12]}")

    def check_name(self, name: str | None) -> None:
        """Makes sure that a request is for this model.

        Raises:
            Problem: it names another.
        """
        if name not in (None, self.name):
            raise Problem(
                404,
                f"there is no model {shown(name)} here: this server has {self.name!r}",
                "model_not_found",
                "model",
            )

    async def _overview(self, request: Request, send: Send) -> None:
        paths = [*self._paths]
        await send_json(200, {"server": "edgerun", "model": self.name, "paths": paths}, send)

    async def _page(self, request: Request, send: Send) -> None:
        body, kind = page(request.url.path)
        await send_bytes(200, body, kind, send, HEADERS)

    async def _health(self, request: Request, send: Send) -> None:
        await send_json(200, {"status": "ok"}, send)

    async def _metrics(self, request: Request, send: Send) -> None:
        await send_bytes(200, self.metrics.text(), METRICS_KIND, send)

    async def _models(self, request: Request, send: Send) -> None:
        await send_json(200, {"object": "list", "data": [self._description()]}, send)

    async def _model(self, request: Request, send: Send) -> None:
        self.check_name(request.path_params["name"])
        await send_json(200, self._description(), send)

    def _description(self) -> dict[str, Any]:
        model = self.llm.model
        return {
            "id": self.name,
            "object": "model",
            "created": self._started,
            "owned_by": "edgerun",
            "context_length": model.context,
            "has_chat_template": self.llm.has_chat_template,
        }

    def _answered(self, answer: Answer) -> None:
        """Counts an answer under a route that there is: callers think of any number of paths."""
        method, path = answer.method, answer.path
        routes = (route for route, pattern in self._paths.items() if pattern.match(path))
        self.metrics.answered(
            method if method in METHODS else "other", next(routes, "other"), answer.status
        )
        line = quote(answer.path, safe="/:")  # so that no path can look like other lines
        if len(line) > MOST_LOGGED:
            line = f"{line[:MOST_LOGGED]}..."
        line = f"{method} {line} {answer.status} {answer.seconds:.3f} s"
        if answer.tokens is not None and answer.status == HTTPStatus.OK:
            line += f" {answer.tokens()} tokens"
        if answer.status >= HTTPStatus.BAD_REQUEST:
            line += f" {answer.id}"
        with suppress(OSError):  # nobody reads the lines any more, which is no caller's matter
            self._log(line)


class Get:
    """A route that is only read."""

    def __init__(self, answer: Callable[[Request, Send], Any]) -> None:
        """Takes what sends the answer."""
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers GET and HEAD."""
        _check_method(scope, "GET", "HEAD")
        await self._answer(Request(scope, receive), send)


class Post:
    """A route that replies."""

    def __init__(
        self,
        server: Server,
        read: Callable[[dict[str, Any], LLM, Head], Asked],
        prefix: str,
        most_bytes: int,
    ) -> None:
        """Takes what makes work of a body, what ids begin with, and how large a body may be."""
        self._server, self._read = server, read
        self._prefix, self._most_bytes = prefix, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers POST."""
        _check_method(scope, "POST")
        reading = read_json(Request(scope, receive), self._most_bytes)
        body = await self._server.replies.unless_stopped(reading)
        work = self._read(body, self._server.llm, self._server.head(self._prefix))
        self._server.check_name(work.model)
        scope[ANSWER].tokens = work.tokens
        await unless_gone(receive, work.answer(self._server.replies, send))


def _check_method(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise Problem(
            405,
            f"{scope['path']} is there for {methods[0]}, not for {scope['method']}",
            "method_not_allowed",
            headers={"Allow": ", ".join(methods)},
        )


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise Problem(404, f"there is no {scope['path']} here: /v1 lists what there is", "not_found")
