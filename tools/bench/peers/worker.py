"""A peer in a process of its own: loads a model once, then measures on command.

    python -m tools.bench.peers.worker KIND PATH --threads N

Speaks JSON lines: one after loading, then one reply for every command read from standard input.
What the runtimes print goes to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tools.bench.peers.usage import CpuUsage, memory

# Module of each kind; imported only in the process that runs it.
KINDS = {
    "edgerun": "tools.bench.peers.runners.edgerun",
    "onnxruntime": "tools.bench.peers.runners.onnxruntime",
    "openvino": "tools.bench.peers.runners.openvino",
    "genai": "tools.bench.peers.runners.genai",
    "llamacpp": "tools.bench.peers.runners.llamacpp",
}
SETTLE_SECONDS = 1.0
IDLE_SECONDS = 0.5
SEED = 1
PIECE_TOKENS = 512
MIN_SECONDS = 0.3  # a sample; processor time is counted in hundredths of a second


class Runner(Protocol):
    """A loaded model with one sequence.

    Attributes:
        version: of the runtime.
        vocab_size: ids are below it.
    """

    version: str
    vocab_size: int

    def reset(self) -> None:
        """Forgets the sequence."""

    def run(self, ids: list[int]) -> int:
        """Appends tokens and returns the likeliest next one."""


class Worker:
    """Answers commands about one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._generator = np.random.default_rng(SEED)
        self._length = 0

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out ``{"do": name, ...}``."""
        actions: dict[str, Callable[..., dict[str, Any]]] = {
            "decode": self._decode,
            "prefill": self._prefill,
            "extend": self._extend,
            "steps": self._steps,
            "state": self._state,
        }
        return actions[command.pop("do")](**command)

    def _decode(self, prompt: int, tokens: int) -> dict[str, Any]:
        """Times single-token steps after a prompt, again and again if they are short."""
        usage, steps = CpuUsage(), []
        while sum(steps) < MIN_SECONDS:
            self._runner.reset()
            self._runner.run(self._ids(prompt))
            steps += self._timed_steps(tokens)
        return {"tokens_per_s": len(steps) / sum(steps), "fastest_s": min(steps)} | usage.since()

    def _extend(self, to: int, first: bool) -> dict[str, Any]:
        """Fills the sequence up to a length, from nothing or from where it is."""
        if first:
            self._runner.reset()
            self._length = 0
        start = time.perf_counter()
        count = max(1, to - self._length)
        # In pieces: some runtimes compute the logits of every token of a call.
        for done in range(0, count, PIECE_TOKENS):
            self._runner.run(self._ids(min(PIECE_TOKENS, count - done)))
        self._length += count
        return {"tokens": count, "seconds": time.perf_counter() - start}

    def _steps(self, tokens: int) -> dict[str, Any]:
        """Times single-token steps from where the sequence is."""
        usage = CpuUsage()
        steps = self._timed_steps(tokens)
        self._length += tokens
        return {"tokens_per_s": tokens / sum(steps), "fastest_s": min(steps)} | usage.since()

    def _timed_steps(self, tokens: int) -> list[float]:
        steps = []
        for id_ in self._ids(tokens):
            start = time.perf_counter()
            self._runner.run([id_])
            steps.append(time.perf_counter() - start)
        return steps

    def _prefill(self, tokens: int) -> dict[str, Any]:
        """Times the pass over a prompt, up to the first token after it; short ones repeatedly."""
        usage, seconds, passes = CpuUsage(), 0.0, 0
        while seconds < MIN_SECONDS:
            self._runner.reset()
            ids = self._ids(tokens)
            start = time.perf_counter()
            self._runner.run(ids)
            seconds += time.perf_counter() - start
            passes += 1
        return {"tokens_per_s": passes * tokens / seconds} | usage.since()

    def _state(self) -> dict[str, Any]:
        """Memory, and the processor time used while there is nothing to do."""
        time.sleep(SETTLE_SECONDS)
        usage = CpuUsage()
        time.sleep(IDLE_SECONDS)
        return memory() | {"idle_cores": usage.since()["own_cores"]}

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = self._generator.integers(0, self._runner.vocab_size, count).tolist()
        return ids


def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("path", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    arguments = parser.parse_args()
    faulthandler.enable()  # a crash in native code then says where it was
    # Whatever libraries print must not get between the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = time.perf_counter()
    runner: Runner = importlib.import_module(KINDS[arguments.kind]).load(
        arguments.path, arguments.threads, arguments.context
    )
    ready = {
        "load_s": time.perf_counter() - start,
        "version": runner.version,
        "cache_bytes": getattr(runner, "cache_bytes", None),
    }
    _reply(replies, ready)
    worker = Worker(runner)
    for line in sys.stdin:
        _reply(replies, worker.answer(json.loads(line)))


def _reply(stream: Any, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
