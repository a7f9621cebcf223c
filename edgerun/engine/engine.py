"""Ids in, ids out: prefill in chunks, then decode and sample one token at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.session import Session
from edgerun.engine.stats import Stats
from edgerun.errors import BackendError, InputError, PromptError
from edgerun.plan.programs import Programs
from edgerun.state import Batch, KVCache

FinishReason = Literal["stop", "length", "context"]
DEFAULT_CHUNK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Step:
    """One sampled token.

    Attributes:
        id: the token.
        finish_reason: why it is the last one, or None: ``"stop"`` for a stop id (which belongs to
            no text), ``"length"`` for max_tokens, ``"context"`` for the end of the context.
    """

    id: int
    finish_reason: FinishReason | None = None


class Reply:
    """Chooses the tokens of one reply from the logits behind what came before.

    Attributes:
        ids: the prompt and the tokens chosen, but for one that ended the reply.
    """

    def __init__(
        self, prompt: list[int], params: SamplingParams, context: int, engine: Engine
    ) -> None:
        """Begins a reply to ``prompt`` in a sequence of at most ``context`` tokens."""
        self.ids = prompt
        self._prompt_tokens = len(prompt)
        self._chooser = Chooser(params, prompt, engine.vocab_size)
        self._stops = frozenset(params.stop_ids)
        if not params.ignore_eos:
            self._stops |= engine.eos_ids
        room = context - len(prompt)
        self._left = min(room, params.max_tokens or room)
        self._limited: FinishReason = "length" if self._left == params.max_tokens else "context"

    def next(self, logits: NDArray[np.float32], stats: Stats) -> Step:
        """Chooses a token by its logits ``[vocab]``."""
        token = self._chooser.draw(logits)
        stats.mark(first=len(self.ids) == self._prompt_tokens)
        self._left -= 1
        reason = "stop" if token in self._stops else None if self._left else self._limited
        stats.completion_tokens += token not in self._stops
        if reason is None:
            self._chooser.accept(token)
            self.ids.append(token)
        return Step(token, reason)


class Engine:
    """Runs one model's programs.

    Several threads may generate at a time, each on a session of its own: every call of the model
    is a turn of one thread, which holds the lock of the cache until it has its token. An engine
    serves one cache at a time.

    Attributes:
        vocab_size: ids are below this.
        eos_ids: ids that end a reply.
        chunk_rows: most rows of one prefill call.
    """

    def __init__(
        self,
        programs: Programs,
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
    ) -> None:
        """Takes the compiled programs of a model.

        Raises:
            InputError: ``chunk_rows`` is not positive.
        """
        if chunk_rows < 1:
            raise InputError(f"prefill chunk of {chunk_rows} rows; expected at least 1")
        self._programs: Programs | None = programs
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        self.chunk_rows = chunk_rows

    def generate(
        self,
        session: Session,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        stats: Stats | None = None,
    ) -> Iterator[Step]:
        """Yields tokens until the reply ends.

        Closing the iterator between tokens is safe: the session keeps what was computed.

        Args:
            session: its cached prefix of the prompt is reused; afterwards it holds the prompt and
                all generated tokens but the last.
            prompt_ids: the whole conversation so far, at least one id.
            params: sampling and limits.
            stats: filled in along the way.

        Raises:
            PromptError: the prompt is empty, holds an id outside the vocabulary, or leaves no room
                for one token.
            BackendError: the model computed NaN, or failed.
        """
        self.check_prompt(prompt_ids, session.cache.context)
        return self._generate(session, prompt_ids, params, Stats() if stats is None else stats)

    def _generate(
        self, session: Session, prompt: Sequence[int], params: SamplingParams, stats: Stats
    ) -> Iterator[Step]:
        turn = session.begin()
        reply = self.reply(prompt, params, session.cache.context)
        step = self._prefill(session, turn, reply, stats)
        while step.finish_reason is None:
            yield step
            stats.decode_steps += 1
            step = session.cache.lock.run(self._next, session, turn, [step.id], reply, stats)
        yield step

    def _prefill(self, session: Session, turn: int, reply: Reply, stats: Stats) -> Step:
        """Computes a prompt, a chunk a turn, and chooses the first token."""
        prompt, lock, rows = reply.ids, session.cache.lock, self.chunk_rows
        began = time.perf_counter()
        kept = lock.run(self.rewind, session, turn, prompt)
        stats.prompt_tokens, stats.reused_tokens = len(prompt), kept
        *chunks, last = [prompt[start : start + rows] for start in range(kept, len(prompt), rows)]
        for chunk in chunks:
            lock.run(self.compute, session, turn, chunk, "none")
        return lock.run(self._first, session, turn, last, reply, stats, began)

    def rewind(self, session: Session, turn: int, prompt: list[int]) -> int:
        """``Session.rewind`` for the generation that began as ``turn``; holds the cache's lock."""
        session.check(turn)
        return session.rewind(prompt)

    def _first(
        self, session: Session, turn: int, ids: list[int], reply: Reply, stats: Stats, began: float
    ) -> Step:
        logits = self.compute(session, turn, ids, "last")
        stats.prefill_s += time.perf_counter() - began
        return reply.next(logits[0], stats)

    def _next(
        self, session: Session, turn: int, ids: list[int], reply: Reply, stats: Stats
    ) -> Step:
        return reply.next(self.compute(session, turn, ids, "last")[0], stats)

    def reply(self, prompt: Sequence[int], params: SamplingParams, context: int) -> Reply:
        """Begins a reply to a prompt, in a sequence of at most ``context`` tokens."""
        return Reply([int(id_) for id_ in prompt], params, context, self)

    def logits(self, session: Session, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yields the logits of every row of a sequence, chunk by chunk, from an empty session.

        Each block is float32 ``[rows, vocab]``.

        Raises:
            PromptError: an id is outside the vocabulary.
            InputError: the engine was closed, or, later, another generation began on the session.
        """
        self._check_open()
        self.check_ids(ids)
        return self._logits(session, ids)

    def _logits(self, session: Session, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        session.clear()
        turn = session.begin()
        for start in range(0, len(ids), self.chunk_rows):
            chunk = list(ids[start : start + self.chunk_rows])
            yield session.cache.lock.run(self._block, session, turn, chunk)

    def _block(self, session: Session, turn: int, ids: list[int]) -> NDArray[np.float32]:
        logits = self.compute(session, turn, ids, "all")
        return logits.copy()  # the next turn may be another thread's

    def compute(
        self, session: Session, turn: int, ids: list[int], wanted: str
    ) -> NDArray[np.float32]:
        """Appends ids to a session, for the thread that holds the cache's lock.

        Args:
            session: the session.
            turn: what ``Session.begin`` returned to the generation.
            ids: what follows the ids of the session.
            wanted: for which rows to compute logits, see ``Batch.of``.

        Returns:
            Logits of these rows, float32 ``[n, vocab]``, valid until the next call.

        Raises:
            InputError: another generation has begun on the session, or it or the engine was closed.
            BackendError: the model failed.
        """
        session.check(turn)
        start = len(session.ids)
        session.cache.reserve(session.sequence, start + len(ids))
        batch = Batch.of(ids, start, session.sequence, logits=wanted)
        logits = self.forward(batch, session.cache)
        session.appended(ids)
        return logits

    def forward(self, batch: Batch, cache: KVCache) -> NDArray[np.float32]:
        """Computes a batch for which the cache has room; for the thread that holds its lock.

        Returns:
            Logits of the rows that it wants, float32 ``[n, vocab]``, valid until the next call.

        Raises:
            InputError: the engine was closed.
            BackendError: the model failed.
        """
        logits: NDArray[np.float32] = self._check_open().run(batch, cache)["logits"]
        if logits.shape != (len(batch.logit_rows), self.vocab_size):
            raise BackendError(
                f"the model returned logits of shape {logits.shape}; expected "
                f"({len(batch.logit_rows)}, {self.vocab_size})"
            )
        return logits

    def check_prompt(self, prompt: Sequence[int], context: int) -> None:
        """Makes sure that a reply to a prompt can begin.

        Raises:
            PromptError: see ``generate``.
            InputError: the engine was closed.
        """
        self._check_open()
        if len(prompt) == 0:
            raise PromptError("the prompt is empty: pass at least one token")
        if context < 2:
            raise PromptError(
                "the context is 1 token, which leaves no room for a prompt and a reply: load the "
                "model with a context of 2 or more"
            )
        if len(prompt) >= context:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens and the context is {context}, one of which "
                "must stay free: shorten the prompt, or load the model with a larger context if it "
                "was made for one",
                tokens=len(prompt),
                context=context,
            )
        self.check_ids(prompt)

    def close(self) -> None:
        """Releases the programs; calling it twice is allowed."""
        programs, self._programs = self._programs, None
        if programs is not None:
            programs.close()

    def check_ids(self, ids: Sequence[int]) -> None:
        """Makes sure that all ids, of which there is one at least, are in the vocabulary.

        Raises:
            PromptError: one is not.
        """
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise PromptError(
                f"the prompt holds token id {wrong}; the vocabulary of the model ends at "
                f"{self.vocab_size - 1}"
            )

    def _check_open(self) -> Programs:
        if self._programs is None:
            raise InputError("this model is closed: load it again")
        return self._programs
