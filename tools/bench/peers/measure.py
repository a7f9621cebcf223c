"""What is measured of the peers, and in which order: they always take turns."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from tools.bench.peers.entry import Entry, say

Tick = Callable[[], None]

CONTEXT_STEPS = 16


def compare(entries: Sequence[Entry], arguments: argparse.Namespace, tick: Tick) -> None:
    """Decoding after a short prompt, and prompts of some lengths."""
    for number in range(arguments.rounds):
        say(f"round {number + 1}")
        for entry in entries:
            _decode(entry, arguments)
            for tokens in arguments.prefill:
                _prefill(entry, tokens, arguments)
        tick()


def prompt(entries: Sequence[Entry], arguments: argparse.Namespace, tick: Tick) -> None:
    """Prompts of many lengths."""
    for number in range(arguments.rounds):
        say(f"round {number + 1}")
        for tokens in arguments.points:
            for entry in entries:
                _prefill(entry, tokens, arguments)
        tick()


def context(entries: Sequence[Entry], arguments: argparse.Namespace, tick: Tick) -> None:
    """Decoding at growing lengths of context; every peer keeps its sequence meanwhile."""
    for index, length in enumerate(arguments.points):
        say(f"context of {length} tokens")
        for entry in entries:
            entry.ask(do="extend", to=length, first=index == 0)
        for _ in range(arguments.rounds):
            for entry in entries:
                steps: dict[str, Any] = {"do": "steps", "tokens": CONTEXT_STEPS}
                entry.sample(f"decode@{length}", arguments.quiet, **steps)
        tick()


def _decode(entry: Entry, arguments: argparse.Namespace) -> None:
    command = {"do": "decode", "prompt": arguments.prompt, "tokens": arguments.decode}
    entry.sample("decode", arguments.quiet, **command)


def _prefill(entry: Entry, tokens: int, arguments: argparse.Namespace) -> None:
    entry.sample(f"prefill-{tokens}", arguments.quiet, do="prefill", tokens=tokens)


def room(arguments: argparse.Namespace) -> int:
    """Tokens that a sequence needs room for."""
    if arguments.what == "context":
        return int(max(arguments.points)) + CONTEXT_STEPS * (arguments.rounds + 1) * 3
    if arguments.what == "prompt":
        return int(max(arguments.points))
    return int(max(arguments.prompt + arguments.decode, *arguments.prefill))


WAYS: dict[str, Callable[[Sequence[Entry], argparse.Namespace, Tick], None]] = {
    "compare": compare,
    "prompt": prompt,
    "context": context,
    "threads": compare,
}
