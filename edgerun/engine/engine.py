"""Ids in, ids out: prefill in chunks, then decode and sample one token at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Executable, Phase
from edgerun.engine.sampling import History, SamplingParams, make_leading, make_sampler
from edgerun.engine.session import Session
from edgerun.engine.stats import Stats
from edgerun.errors import BackendError, InputError, PromptError
from edgerun.state import Batch, Leading

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


class Engine:
    """Runs one model's executables.

    Attributes:
        vocab_size: ids are below this.
        eos_ids: ids that end a reply.
        chunk_rows: most rows of one prefill call.
    """

    def __init__(
        self,
        executables: Mapping[Phase, Executable],
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
    ) -> None:
        """Takes compiled programs for both phases.

        Raises:
            InputError: ``chunk_rows`` is not positive.
        """
        if chunk_rows < 1:
            raise InputError(f"prefill chunk of {chunk_rows} rows; expected at least 1")
        self._executables = executables
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
        prompt = [int(id_) for id_ in prompt_ids]
        self._check_prompt(prompt, session.cache.context)
        return self._generate(session, prompt, params, Stats() if stats is None else stats)

    def _generate(
        self, session: Session, prompt: list[int], params: SamplingParams, stats: Stats
    ) -> Iterator[Step]:
        turn = session.begin()
        sample, leading = make_sampler(params), make_leading(params)
        stops = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        room = session.cache.context - len(prompt)
        limit = min(room, params.max_tokens or room)
        ended: FinishReason = "length" if limit == params.max_tokens else "context"
        logits = self._prefill(session, prompt, stats)
        history = History(prompt, len(prompt))
        for count in range(1, limit + 1):
            token = sample(logits, history)
            self._mark(stats, first=count == 1)
            reason = "stop" if token in stops else ended if count == limit else None
            stats.completion_tokens += token not in stops
            yield Step(token, reason)
            if reason:
                return
            session.check(turn)
            history.ids.append(token)
            wanted = leading(history) if leading else None
            logits = self._decode(session, token, stats, wanted)

    def logits(self, session: Session, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yields the logits of every row of a sequence, chunk by chunk, from an empty session.

        Each block is float32 ``[rows, vocab]`` and valid until the next one.
        """
        session.clear()
        for start in range(0, len(ids), self.chunk_rows):
            yield self._run(session, list(ids[start : start + self.chunk_rows]), "all")

    def _prefill(self, session: Session, prompt: list[int], stats: Stats) -> NDArray[np.float32]:
        kept = session.rewind(prompt)
        stats.prompt_tokens, stats.reused_tokens = len(prompt), kept
        began = time.perf_counter()
        last = np.empty((0, 0), np.float32)
        for start in range(kept, len(prompt), self.chunk_rows):
            chunk = prompt[start : start + self.chunk_rows]
            wanted = "last" if start + len(chunk) == len(prompt) else "none"
            last = self._run(session, chunk, wanted)
        stats.prefill_s += time.perf_counter() - began
        row: NDArray[np.float32] = last[0]
        return row

    def _decode(
        self, session: Session, token: int, stats: Stats, leading: Leading | None
    ) -> NDArray[np.float32]:
        stats.decode_steps += 1
        row: NDArray[np.float32] = self._run(session, [token], "last", leading)[0]
        return row

    def _run(
        self, session: Session, ids: list[int], wanted: str, leading: Leading | None = None
    ) -> NDArray[np.float32]:
        start = len(session.ids)
        session.cache.reserve(session.sequence, start + len(ids))
        phase = Phase.DECODE if len(ids) == 1 else Phase.PREFILL
        batch = Batch.of(ids, start, session.sequence, logits=wanted, leading=leading)
        logits = self._executables[phase](batch, session.cache)["logits"]
        if logits.shape != (len(batch.logit_rows), self.vocab_size):
            raise BackendError(
                f"the model returned logits of shape {logits.shape}; expected "
                f"({len(batch.logit_rows)}, {self.vocab_size})"
            )
        session.appended(ids)
        return logits

    def _mark(self, stats: Stats, *, first: bool) -> None:
        elapsed = time.perf_counter() - stats.started
        if first:
            stats.first_token_s = elapsed
        stats.decode_s = elapsed - stats.first_token_s

    def _check_prompt(self, prompt: list[int], context: int) -> None:
        if not prompt:
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
                "was made for one"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise PromptError(
                f"the prompt holds token id {wrong}; the vocabulary of the model ends at "
                f"{self.vocab_size - 1}"
            )

    def close(self) -> None:
        """Releases the executables."""
        for executable in set(self._executables.values()):
            executable.close()
