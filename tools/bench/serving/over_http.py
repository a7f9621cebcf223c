"""What it costs to ask a model over HTTP (``edgerun serve``) instead of in Python.

    python -m tools.bench.serving.over_http [MODEL] [--replies 1 4 16] [--tokens 128] [--rounds 5]

The same conversations, so many at a time, are answered by a model in this process and by a server
in another, in turns; never both at once. The client is a third process, a few lines over plain
sockets, which reads events and parses none but the last. The table has tokens a second of all
replies together, from the first request to the last token, and the seconds until the first piece
(the middle of the replies of a round); medians of rounds, and of the ratios the least and the most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import edgerun

QUESTION = "Tell me a story about "
SUBJECTS = ("a dog", "a boat", "a tree", "a king", "a cake", "a bird", "the sea", "a train")


def conversations(count: int, turn: int) -> list[list[dict[str, str]]]:
    """Different ones, as of different callers, and in each turn others: no prompt is known."""
    return [
        [{"role": "user", "content": f"{turn}. {QUESTION}{SUBJECTS[index % 8]} and {index} more."}]
        for index in range(count)
    ]


async def _ask(port: int, messages: Any, options: dict[str, Any]) -> tuple[float, int]:
    """Seconds until the first piece, and tokens of the reply."""
    body = json.dumps(
        {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **options}
    ).encode()
    began, first, last = time.perf_counter(), 0.0, b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    async for line in reader:
        if line.startswith(b"data: {"):
            first, last = first or time.perf_counter() - began, line
    writer.close()
    return first, json.loads(last[6:])["usage"]["completion_tokens"]


def _ask_all(port: int, count: int, options: dict[str, Any], answers: Any) -> None:
    """In the client's process."""

    async def run(turn: int) -> list[tuple[float, int]]:
        asked = [_ask(port, each, options) for each in conversations(count, turn)]
        return list(await asyncio.gather(*asked))

    for turn in iter(answers.recv, None):
        began = time.perf_counter()
        came = asyncio.run(run(turn))
        seconds = time.perf_counter() - began
        answers.send((sum(tokens for _, tokens in came) / seconds, [first for first, _ in came]))


def in_python(
    llm: Any, count: int, turn: int, options: dict[str, Any]
) -> tuple[float, list[float]]:
    """Tokens a second, and seconds until the first of each reply."""
    began = time.perf_counter()
    replies = llm.chat_many(conversations(count, turn), **options)
    seconds = time.perf_counter() - began
    tokens = sum(len(reply.ids) for reply in replies)
    return tokens / seconds, [reply.stats.first_token_s for reply in replies]


def serve(model: Path | None, count: int) -> tuple[subprocess.Popen[str], int]:
    """A server that is ready, and its port."""
    command = [sys.executable, "-m", "edgerun", "serve", "--port", "0", "--quiet"]
    command += ["--draft", "none", "--parallel", str(count), *([str(model)] if model else [])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"127\.0\.0\.1:(\d+)", line):
            return process, int(match[1])
    raise SystemExit("the server did not start")


def compare(model: Path | None, count: int, tokens: int, rounds: int) -> str:
    """A row of the table."""
    options = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.7, "seed": 1}
    process, port = serve(model, count)
    here, there = multiprocessing.Pipe()
    client = multiprocessing.Process(target=_ask_all, args=(port, count, options, there))
    client.start()
    measured: list[tuple[tuple[float, list[float]], tuple[float, list[float]]]] = []
    with process, edgerun.load(model, max_sessions=count, draft="none") as llm:
        for turn in range(rounds + 1):
            own = in_python(llm, count, turn, options)
            here.send(turn)
            measured.append((own, here.recv()))
        here.send(None)
        client.join()
        process.terminate()
    measured = measured[1:]
    ratios = [http / python for (python, _), (http, _) in measured]
    python, http = (statistics.median(each[side][0] for each in measured) for side in (0, 1))
    firsts = [
        statistics.median(statistics.median(each[side][1]) for each in measured) for side in (0, 1)
    ]
    return (
        f"| {count} | {python:.0f} | {http:.0f} | {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f}-{max(ratios):.3f}) | {firsts[0] * 1e3:.1f} | {firsts[1] * 1e3:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--replies", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print("| replies at a time | Python, tokens/s | HTTP, tokens/s | HTTP / Python | first, ms | |")
    print("|---|---|---|---|---|---|")
    for count in given.replies:
        print(compare(given.model, count, given.tokens, given.rounds), flush=True)


if __name__ == "__main__":
    main()
