"""Several prompts at once: their rows share calls, and what all begin with is computed once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.engine import Engine, Reply, Step
from edgerun.engine.sampling import SamplingParams
from edgerun.engine.session import Session, shared_prefix
from edgerun.engine.stats import Stats
from edgerun.state import Batch


@dataclass(slots=True)
class Request:
    """One prompt of many.

    Attributes:
        prompt: ids, at least one.
        params: sampling and limits.
        stats: filled in along the way; ``prefill_s`` is the time of the calls that computed the
            prompt, whatever else they computed.
        unwanted: set it to end the reply before its next token.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stats: Stats = field(default_factory=Stats)
    unwanted: bool = False


@dataclass(slots=True)
class _Running:
    """A request that has a sequence of the cache, of which ``cached`` tokens are written."""

    number: int
    request: Request
    reply: Reply
    sequence: int
    cached: int
    ended: bool = False

    @property
    def left(self) -> int:
        """Tokens that have no keys and values yet: one in a reply, any number in a prompt."""
        return len(self.reply.history.ids) - self.cached


def generate_many(
    engine: Engine, root: Session, requests: Sequence[Request]
) -> Generator[tuple[int, Step], None, None]:
    """Yields ``(index of the request, step)`` until every reply has ended.

    Each call takes a row of every sequence and fills up with rows of prompts, so that weights are
    read once for all of them and nothing is padded. Requests wait, in order, until the cache has a
    sequence for them.

    Args:
        engine: the model.
        root: a session of the cache to use, which afterwards holds what all prompts begin with.
        requests: what to generate.

    Raises:
        PromptError: a prompt is empty, holds an id outside the vocabulary, or leaves no room for a
            token; nothing has been computed then.
        InputError: no sequence of the cache is free beside ``root``.
        BackendError: the model computed NaN, or failed.
    """
    for request in requests:
        engine.check_prompt(request.prompt, root.cache.context)
    return _Together(engine, root, requests).steps()


class _Together:
    def __init__(self, engine: Engine, root: Session, requests: Sequence[Request]) -> None:
        self._engine, self._root, self._cache = engine, root, root.cache
        self._waiting = deque(enumerate(requests))
        self._running: list[_Running] = []
        self._prefix = 0

    def steps(self) -> Generator[tuple[int, Step], None, None]:
        turn = self._root.begin()
        try:
            self._compute_prefix()
            while self._waiting or self._running:
                self._root.check(turn)
                self._admit()
                for one, logits in self._call():
                    yield one.number, self._take(one, logits)
                self._release()
        finally:
            for one in self._running:
                self._cache.close(one.sequence)

    def _compute_prefix(self) -> None:
        """Writes what all prompts begin with, but for the last token of any, once."""
        prompts = [request.prompt for _, request in self._waiting]
        if not prompts:
            return
        first = prompts[0]
        self._prefix = min(min(shared_prefix(first, one), len(one) - 1) for one in prompts)
        kept = self._root.rewind(first[: self._prefix + 1])
        for start in range(kept, self._prefix, self._engine.chunk_rows):
            stop = min(self._prefix, start + self._engine.chunk_rows)
            self._engine.extend(self._root, list(first[start:stop]), "none")

    def _admit(self) -> None:
        """Gives sequences to those who wait; one is due to them while nobody else has any."""
        while self._waiting and len(self._running) < self._engine.chunk_rows:
            if self._running and not self._cache.free_sequences:
                return
            number, request = self._waiting.popleft()
            request.stats.prompt_tokens = len(request.prompt)
            request.stats.reused_tokens = self._prefix
            reply = self._engine.reply(request.prompt, request.params, self._cache.context)
            sequence = self._cache.fork(self._root.sequence, self._prefix)
            self._running.append(_Running(number, request, reply, sequence, self._prefix))

    def _call(self) -> list[tuple[_Running, NDArray[np.float32]]]:
        """Computes a row of each and some of the prompts; returns the logits of who is due."""
        parts, due = [], []
        spare = self._engine.chunk_rows - len(self._running)
        for one in self._running:
            rows = min(one.left, 1 + spare)
            spare -= rows - 1
            wanted = "last" if rows == one.left else "none"
            if wanted == "last":
                due.append(one)
            ids = one.reply.history.ids[one.cached : one.cached + rows]
            self._cache.reserve(one.sequence, one.cached + rows)
            parts.append(Batch.of(ids, one.cached, one.sequence, logits=wanted))
        began = time.perf_counter()
        logits = self._engine.forward(Batch.join(parts), self._cache)
        self._record(parts, time.perf_counter() - began)
        return list(zip(due, logits, strict=True))

    def _record(self, parts: list[Batch], seconds: float) -> None:
        for one, part in zip(self._running, parts, strict=True):
            stats = one.request.stats
            if one.cached < len(one.request.prompt):
                stats.prefill_s += seconds
            else:
                stats.decode_steps += 1
            one.cached += part.rows
            self._cache.extend(one.sequence, one.cached)

    def _take(self, one: _Running, logits: NDArray[np.float32]) -> Step:
        step = one.reply.next(logits, one.request.stats)
        one.ended = step.finish_reason is not None
        return step

    def _release(self) -> None:
        """Gives back the sequences of replies that have ended."""
        for one in self._running:
            one.ended |= one.request.unwanted
            if one.ended:
                self._cache.close(one.sequence)
        self._running = [one for one in self._running if not one.ended]
