"""edgerun as a peer: its programs, without sampling and text."""

from __future__ import annotations

from pathlib import Path

import edgerun
from edgerun.llm.loading import Model, prepare
from edgerun.llm.options import LoadOptions
from edgerun.state import Batch, SequenceStore
from edgerun.state.capacity import cached_bytes


class EdgerunRunner:
    """One sequence in a cache of its own."""

    version = edgerun.__version__

    def __init__(self, model: Model) -> None:
        self._model = model
        self.vocab_size = model.vocab_size
        self.cache_bytes = cached_bytes(model.states, model.context)
        self._cache = SequenceStore(model.states, model.context)
        self._sequence = self._cache.open()
        self._length = 0

    def reset(self) -> None:
        self._cache.rewind(self._sequence, 0)
        self._length = 0

    def run(self, ids: list[int]) -> int:
        chunk_rows = self._model.chunk_rows
        for start in range(0, len(ids), chunk_rows):
            token = self._chunk(ids[start : start + chunk_rows], start + chunk_rows >= len(ids))
        return token

    def _chunk(self, ids: list[int], last: bool) -> int:
        start, self._length = self._length, self._length + len(ids)
        self._cache.reserve(self._sequence, self._length)
        batch = Batch.of(ids, start, self._sequence, logits="last" if last else "none")
        logits = self._model.programs.run(batch, self._cache)["logits"]
        self._cache.commit(self._sequence, self._length)
        return int(logits[0].argmax()) if last else -1


def load(path: Path, threads: int, context: int) -> EdgerunRunner:
    """Loads a bundle."""
    options = LoadOptions(backend="cpu", threads=threads, context=context, max_sessions=1)
    return EdgerunRunner(prepare(path, options))
