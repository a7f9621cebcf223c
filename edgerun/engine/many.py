"""Several prompts at once: their rows share calls, and what all begin with is computed once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine, Reply, Step
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
    """A request that has a session."""

    number: int
    request: Request
    reply: Reply
    session: Session
    ended: bool = False

    @property
    def pending(self) -> list[int]:
        """Ids that have no keys and values yet: one in a reply, any number in a prompt."""
        return self.reply.ids[len(self.session.ids) :]


def generate_many(
    engine: Engine, root: Session, requests: Sequence[Request]
) -> Generator[tuple[int, Step], None, None]:
    """Yields ``(index of the request, step)`` until every reply has ended.

    Each call takes a row of every sequence and fills up with rows of prompts, so that weights are
    read once for all of them and nothing is padded. Requests wait, in order, until the cache has a
    sequence for them. If it has none beside that of ``root``, they run there, one after the other.

    Args:
        engine: the model.
        root: a session of the cache to use, which afterwards holds what all prompts begin with.
        requests: what to generate.

    Raises:
        PromptError: a prompt is empty, holds an id outside the vocabulary, or leaves no room for a
            token; nothing has been computed then.
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
        self._place: Session | None = None

    def steps(self) -> Generator[tuple[int, Step], None, None]:
        lock = self._cache.lock
        self._place = lock.run(self._take_place)
        if self._place is None:
            yield from self._one_by_one()
            return
        try:
            turn = self._root.begin()
            self._compute_prefix(turn)
            while self._waiting or self._running:
                yield from lock.run(self._advance, turn)
        finally:
            for session in (self._place, *(each.session for each in self._running)):
                session.close()

    def _take_place(self) -> Session | None:
        """A session that keeps a sequence free for the first request, if there is one."""
        return Session(self._cache) if self._cache.room().slots else None

    def _one_by_one(self) -> Generator[tuple[int, Step], None, None]:
        for number, request in self._waiting:
            engine, root = self._engine, self._root
            for step in engine.generate(root, request.prompt, request.params, request.stats):
                yield number, step
                if request.unwanted:
                    break

    def _advance(self, turn: int) -> list[tuple[int, Step]]:
        """One call of the model, and the tokens of those who are due."""
        self._root.check(turn)
        self._release()
        self._admit()
        if not self._running:
            return []
        return [(due.number, self._take(due, logits)) for due, logits in self._call()]

    def _compute_prefix(self, turn: int) -> None:
        """Writes what all prompts begin with, but for the last token of any, once."""
        prompts = [request.prompt for _, request in self._waiting]
        if not prompts:
            return
        first = prompts[0]
        self._prefix = min(min(shared_prefix(first, one), len(one) - 1) for one in prompts)
        prefix, rows, lock = list(first[: self._prefix]), self._engine.chunk_rows, self._cache.lock
        kept = lock.run(self._engine.rewind, self._root, turn, [*prefix, first[self._prefix]])
        for start in range(kept, self._prefix, rows):
            chunk = prefix[start : start + rows]
            lock.run(self._engine.compute, self._root, turn, chunk, "none")

    def _admit(self) -> None:
        """Gives sessions to those who wait; one is due to them while nobody else has any."""
        if self._place is not None:
            self._place.close()
        while self._waiting and len(self._running) < self._engine.chunk_rows:
            if self._running and not self._cache.room().slots:
                return
            number, request = self._waiting.popleft()
            request.stats.prompt_tokens = len(request.prompt)
            request.stats.reused_tokens = self._prefix
            reply = self._engine.reply(request.prompt, request.params, self._cache.context)
            session = self._root.fork(self._prefix)
            self._running.append(_Running(number, request, reply, session))

    def _call(self) -> list[tuple[_Running, NDArray[np.float32]]]:
        """Computes a row of each and some of the prompts; returns the logits of who is due."""
        parts, due = [], []
        spare = self._engine.chunk_rows - len(self._running)
        for each in self._running:
            session, pending = each.session, each.pending
            rows = min(len(pending), 1 + spare)
            spare -= rows - 1
            wanted = "last" if rows == len(pending) else "none"
            if wanted == "last":
                due.append(each)
            start = len(session.ids)
            self._cache.reserve(session.sequence, start + rows)
            parts.append(Batch.of(pending[:rows], start, session.sequence, logits=wanted))
        began = time.perf_counter()
        logits = self._engine.forward(Batch.join(parts), self._cache)
        self._record(parts, time.perf_counter() - began)
        return list(zip(due, logits, strict=True))

    def _record(self, parts: list[Batch], seconds: float) -> None:
        for each, part in zip(self._running, parts, strict=True):
            stats = each.request.stats
            if len(each.session.ids) < len(each.request.prompt):
                stats.prefill_s += seconds
            else:
                stats.decode_steps += 1
            each.session.appended(each.pending[: part.rows])

    def _take(self, due: _Running, logits: NDArray[np.float32]) -> Step:
        step = due.reply.next(logits, due.request.stats)
        due.ended = step.finish_reason is not None
        return step

    def _release(self) -> None:
        """Gives back the sequences of replies that have ended."""
        for each in self._running:
            each.ended |= each.request.unwanted
            if each.ended:
                each.session.close()
        self._running = [each for each in self._running if not each.ended]
