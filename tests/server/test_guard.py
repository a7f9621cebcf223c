"""Who may call: every route, every method."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from itertools import product

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from edgerun.llm.llm import LLM
from edgerun.server import answers, connections, guard
from edgerun.server.options import ServerOptions
from tests.server.served import CHAT, HELLO, MESSAGES, RESPONSES, TEXT, Paced, Served, served, until
from tests.support import fakes

KEY = "correct-horse-battery"
PAGE = "https://page.example"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with served(key=KEY, origins=[PAGE], hosts=["box.lan"]) as client:
        yield client


def _status(client: Served, method: str, path: str, **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request(method, path, headers=given)


def paths_of(client: Served) -> list[str]:
    """A path of every route that there is, and one of none."""
    return [path.replace("{name:path}", "fake") for path in client.server._paths] + ["/x"]


def test_all_routes_are_looked_at(locked: Served) -> None:
    paths = {"/", CHAT, TEXT, RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens", "/metrics"}
    assert paths | {"/v1/models/fake"} < {*paths_of(locked)}


@pytest.mark.parametrize("method", METHODS)
def test_every_route_is_guarded(locked: Served, method: str) -> None:
    good = f"Bearer {KEY}"
    for path in paths_of(locked):
        for host, origin in product(
            ("localhost", "evil.example"), (None, PAGE, "https://evil.example")
        ):
            headers = {"Host": host, **({"Origin": origin} if origin else {})}
            allowed = host == "localhost" and origin in (None, PAGE)
            answer = _status(locked, method, path, Authorization=good, **headers)
            assert (answer.status_code != 403) is allowed, (method, path, headers)
            assert ("access-control-allow-origin" in answer.headers) is (allowed and origin == PAGE)
            is_preflight = method == "OPTIONS" and origin == PAGE
            for wrong in (
                {},
                {"Authorization": "Bearer x"},
                {"Authorization": f"Basic {KEY}"},
                {"X-API-Key": "x"},
                {"X-API-Key": f"Bearer {KEY}"},
            ):
                answer = _status(locked, method, path, **headers, **wrong)
                needs = allowed and path not in guard.OPEN_PATHS and not is_preflight
                assert (answer.status_code == 401) is needs, (method, path, headers, wrong)
                if needs and method != "HEAD":
                    assert answer.json()["error"]["type"] == "authentication_error"


def test_with_the_key_all_is_there(locked: Served) -> None:
    headers = {"Authorization": f"bearer {KEY}", "Origin": PAGE, "Host": "box.lan:1"}
    answer = locked.post(CHAT, json={"messages": HELLO, "max_tokens": 2}, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("other", [{}, {"Authorization": "Bearer none"}])
def test_the_key_may_have_a_header_of_its_own(locked: Served, other: dict[str, str]) -> None:
    """As clients of Anthropic's API send it, some of them beside another."""
    for path in ("/v1/models", "/v1/models/fake", "/metrics"):
        assert locked.get(path, headers={"x-api-key": KEY, **other}).status_code == 200


@pytest.mark.parametrize("key", [KEY[:-1], KEY + "x", KEY.upper(), "é" * 9, "x y"])
def test_a_wrong_key_is_refused(locked: Served, key: str) -> None:
    for name, value in (("Authorization", f"Bearer {key}"), ("x-api-key", key)):
        headers = {name: value.encode()}
        assert locked.get("/v1/models", headers=headers).status_code == 401


def test_what_stands_before_messages_refuses_in_their_form(
    locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"x-api-key": KEY}
    json = {**good, "Content-Type": "application/json"}
    for path, headers, status, kind in (
        (MESSAGES, {}, 401, "authentication_error"),
        (f"{MESSAGES}/", {**good, "Host": "evil.example"}, 403, "permission_error"),
        (f"{MESSAGES}/batches", good, 404, "not_found_error"),
        (f"{MESSAGES}/count_tokens", json, 413, "request_too_large"),
        (MESSAGES, good, 415, "invalid_request_error"),
    ):
        answer = locked.post(path, headers=headers, content=b" " * (2 << 20))
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
        assert answer.json()["error"]["type"] == kind
    answer = locked.get(MESSAGES, headers=good)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    monkeypatch.setattr(guard, "MOST_REQUESTS", 0)
    answer = locked.post(MESSAGES, headers=good)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
    assert "type" not in locked.post(CHAT, headers=good).json()


def test_a_preflight_says_what_a_page_may_send(locked: Served) -> None:
    headers = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    answer = locked.options(CHAT, headers=headers)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"].split(", ") == ["authorization", "*"]
    assert "Origin" in answer.headers["vary"]


def test_a_page_of_the_server_itself_may_call(client: Served) -> None:
    origin = str(client.base_url).rstrip("/")
    assert client.get("/v1/models", headers={"Origin": origin}).status_code == 200
    assert client.get("/v1/models", headers={"Origin": "null"}).status_code == 403


@pytest.mark.parametrize(
    "head",
    [
        "GET /health HTTP/1.0\r\n\r\n",
        "GET /health HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nOrigin: x\r\n\r\n",
        "GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/health HTTP/1.0\r\n\r\n",
    ],
)
def test_a_request_without_a_name_or_with_two_is_refused(client: Served, head: str) -> None:
    assert _raw(client, head).split()[1] in (b"403", b"400")


def test_web_sockets_are_closed(client: Served, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = (
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        "Origin: http://evil.example\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b" 403 " in _raw(client, upgrade).splitlines()[0]
    assert not caplog.records  # about packages that would be needed for them


def test_too_many_requests_are_refused_but_for_health(
    client: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MOST_REQUESTS", 0)
    answer = client.get("/v1/models")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert client.get("/health").json() == {"status": "ok"}


def test_who_does_not_read_is_let_go(client: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that nobody takes ends after a while, and with it what is done for it."""
    monkeypatch.setattr(connections, "SEND_S", 0.2)
    long = answers.CHUNKS._replace(write=lambda event: b"x" * (8 << 20))
    monkeypatch.setattr(answers.send_events, "__defaults__", (long,))
    fields = {"messages": HELLO, "stream": True}
    with client.stream("POST", CHAT, json=fields) as answer:
        until(lambda: client.server.app._requests == 0)
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()


def test_a_line_is_written_for_each_answer_which_no_path_can_forge() -> None:
    lines: list[str] = []
    with served(log=lines.append) as client:
        client.get("/health")
        client.get("/a%0aGET%20/x%20200%1b[2J%e2%80%ae")
        client.get("/" + "x" * 9000)
    assert [re.sub(r" \d+\.\d{3} s( req_[0-9a-f]{32})?$", "", line) for line in lines] == [
        "GET /health 200",
        "GET /a%0AGET%20/x%20200%1B%5B2J%E2%80%AE 404",
        f"GET /{'x' * 199}... 404",
    ]


def test_a_line_says_how_long_an_answer_took_and_what_came_of_it() -> None:
    lines: list[str] = []
    executable = Paced()
    with served(LLM(fakes.fake_model(executable)), lines.append) as client:
        executable.let(40)
        client.chat(max_tokens=5, n=2)
        client.chat(max_tokens=0)
        while executable.gate.acquire(blocking=False):
            pass
        executable.let(6)
        with client.stream("POST", CHAT, json={"messages": HELLO, "stream": True}) as answer:
            rest = answer.iter_lines()  # with which the connection would end
            next(rest)
            assert len(lines) == 2  # it has not ended
        until(lambda: bool(executable.let(1)) or len(lines) == 3)
    assert re.fullmatch(rf"POST {CHAT} 200 \d\.\d{{3}} s 10 tokens", lines[0])
    assert re.fullmatch(rf"POST {CHAT} 400 \d\.\d{{3}} s req_[0-9a-f]{{32}}", lines[1])
    assert re.fullmatch(rf"POST {CHAT} 200 \d\.\d{{3}} s [1-9]\d* tokens", lines[2])


def test_an_answer_has_an_id_by_which_the_line_of_a_failure_names_it() -> None:
    lines: list[str] = []
    with served(log=lines.append) as client:
        answers = [client.get("/health"), client.get("/nowhere"), client.chat(max_tokens=0)]
        stream = client.chat(max_tokens=2, stream=True)
    ids = [each.headers["x-request-id"] for each in (*answers, stream)]
    assert len(set(ids)) == 4
    assert [each.headers["request-id"] for each in (*answers, stream)] == ids
    assert [line.endswith(id_) for line, id_ in zip(lines, ids, strict=True)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("path", ["/v1", "/v1/models", "/v1/models/fake", "/health", "/metrics"])
def test_a_slash_at_the_end_of_a_path_makes_no_difference(client: Served, path: str) -> None:
    without, with_ = client.get(path), client.get(f"{path}/")
    assert (with_.status_code, with_.headers["content-type"]) == (
        without.status_code,
        without.headers["content-type"],
    )
    assert client.post(f"{CHAT}/", json={"messages": HELLO, "max_tokens": 1}).status_code == 200
    assert client.get(f"{path}//").status_code == 404
    route = "/v1/models/{name:path}" if path == "/v1/models/fake" else path
    assert f'path="{route}",status="200"' in client.get("/metrics/").text


def test_a_slash_opens_nothing_to_who_has_no_key() -> None:
    with served(key="k" * 16) as client:
        assert client.get("/v1/models/").status_code == 401
        assert client.post(f"{CHAT}/", json={}).status_code == 401
        assert client.get("/health//").status_code == 401
        assert client.get("/health/").json() == {"status": "ok"}


@pytest.mark.parametrize("target", ["http://localhost/health", "HTTP://127.0.0.1:80/health/?a=b"])
def test_a_target_may_be_a_whole_address(locked: Served, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n"
    assert _raw(locked, request).split()[1] == b"200"
    elsewhere = request.replace("health", "v1/models")
    assert _raw(locked, elsewhere).split()[1] == b"401"
    assert _raw(locked, request.replace("/health", "", 1)).split()[1] == b"200"


def test_answers_go_on_where_nobody_reads_the_lines() -> None:
    def log(line: str) -> None:
        raise BrokenPipeError

    with served(log=log) as client:
        assert client.get("/health").status_code == 200
        assert client.chat(max_tokens=1).status_code == 200
        assert client.get("/x").status_code == 404


@pytest.mark.parametrize("has_begun", [False, True])
def test_who_is_waited_for_no_longer_is_told_so(has_begun: bool) -> None:
    sent: list[Message] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def cancel() -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/health",
            "headers": [(b"host", b"localhost")],
        }
        stands = guard.Guard(answer, ServerOptions(), lambda answer: None)
        task = asyncio.create_task(stands(scope, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    if has_begun:
        assert [message["type"] for message in sent] == ["http.response.start"]
    else:
        assert sent[0]["status"] == 503 and b"is being stopped" in sent[1]["body"]


def _raw(client: Served, head: str) -> bytes:
    address = (client.base_url.host, client.base_url.port or 80)
    with socket.create_connection(address, timeout=5) as connection:
        connection.sendall(head.encode())
        return connection.recv(4096)
