"""Rows of training tokens: whole documents, drawn from sources by weight, packed into a context."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
PAD = -1


class Source:
    """Documents in a random order, reshuffled every epoch."""

    def __init__(self, ids: Array, starts: Array) -> None:
        self.ids, self.starts = ids, starts
        self.order: Array = np.empty(0, np.int64)
        self.at = 0

    def next(self, rng: np.random.Generator) -> Array:
        if self.at >= len(self.order):
            self.order, self.at = rng.permutation(len(self.starts) - 1), 0
        document = self.order[self.at]
        self.at += 1
        return self.ids[self.starts[document] : self.starts[document + 1]].astype(np.int64)


def load_sources(folder: Path) -> dict[str, Source]:
    sources = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            sources[path.stem] = Source(file["ids"], file["starts"])
    return sources


class Mix:
    """Packs documents by best fit from a small pool; what a row leaves open is padding (PAD).

    A row begins with a document's beginning. Where nothing in the pool fits any more and much of
    the row is open, the shortest document is cut, and its rest is dropped. With `whole` none is
    cut: the row stays open, and documents longer than a row are left out.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        seed: int,
        pool_size: int = 64,
        whole: bool = False,
    ) -> None:
        self.sources, self.pool_size, self.whole = sources, pool_size, whole
        self.rng = np.random.default_rng(seed)
        self.pool: list[Array] = []

    def state(self) -> dict[str, Any]:
        places = {name: (source.order.tolist(), source.at) for name, source in self.sources.items()}
        return {"rng": self.rng.bit_generator.state, "places": places}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue; a source whose size has changed since begins a new epoch."""
        self.rng.bit_generator.state = state["rng"]
        for name, (order, at) in state["places"].items():
            source = self.sources.get(name)
            if source and len(order) == len(source.starts) - 1:
                source.order, source.at = np.asarray(order, np.int64), at

    def _fill(self, weights: Mapping[str, float], length: int) -> None:
        names = [name for name in weights if name in self.sources and weights[name] > 0]
        # Weights are shares of tokens, draws are documents: divide by the mean length.
        lengths = [
            len(self.sources[name].ids) / (len(self.sources[name].starts) - 1) for name in names
        ]
        shares = np.array([weights[name] for name in names]) / lengths
        while len(self.pool) < self.pool_size:
            name = names[self.rng.choice(len(names), p=shares / shares.sum())]
            document = self.sources[name].next(self.rng)
            if not self.whole or len(document) <= length:
                self.pool.append(document)

    def _row(self, length: int) -> Array:
        row, at = np.full(length, PAD, np.int64), 0
        document = self.pool.pop(0)[:length]
        while True:
            row[at : at + len(document)] = document
            at += len(document)
            fitting = [i for i, other in enumerate(self.pool) if len(other) <= length - at]
            if fitting:
                document = self.pool.pop(max(fitting, key=lambda i: len(self.pool[i])))
            elif length - at > length // 16 and not self.whole:
                document = self.pool.pop(
                    min(range(len(self.pool)), key=lambda i: len(self.pool[i]))
                )[: length - at]
            else:
                return row

    def rows(self, weights: Mapping[str, float], count: int, context: int) -> Array:
        """[count, context + 1] token ids; PAD after the last document."""
        rows = np.empty((count, context + 1), np.int64)
        for row in rows:
            self._fill(weights, context + 1)
            row[:] = self._row(context + 1)
        return rows
