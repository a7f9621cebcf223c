"""Rows of training tokens: whole documents, drawn from sources by weight, packed into a context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
PAD = -1


class Source:
    """Documents in a random order, reshuffled every epoch.

    Args:
        ids: of all documents.
        starts: where each begins, and where the last ends.
        first: the place of the first token among those of all sources.
    """

    def __init__(self, ids: Array, starts: Array, first: int = 0) -> None:
        self.ids, self.starts, self.first = ids, starts, first
        self.documents: Array = np.arange(len(starts) - 1)  # that are read
        self.order: Array = np.empty(0, np.int64)
        self.at = 0

    def lengths(self) -> Array:
        """Tokens of each document that is read."""
        return np.diff(self.starts)[self.documents]

    def next(self, rng: np.random.Generator) -> Array:
        """Ids and places [2, tokens] of the next document."""
        if self.at >= len(self.order):
            self.order, self.at = rng.permutation(self.documents), 0
        document = self.order[self.at]
        self.at += 1
        places = np.arange(self.starts[document], self.starts[document + 1])
        return np.stack([self.ids[places].astype(np.int64), places + self.first])


def load_sources(folder: Path) -> dict[str, Source]:
    """All sources of a folder; places are counted through them in the order of their names."""
    sources, first = {}, 0
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            sources[path.stem] = Source(file["ids"], file["starts"], first)
        first += len(sources[path.stem].ids)
    return sources


def check_mix(names: Iterable[str], sources: Mapping[str, Source], vocab_size: int) -> None:
    """Whether a mix can be drawn for a model.

    Raises:
        ValueError: a source that it names is not there, or has tokens that the model does not.
    """
    if missing := sorted(set(names) - sources.keys()):
        raise ValueError(
            f"the mix names {', '.join(missing)}, and --tokens has {', '.join(sources)}"
        )
    for name in names:
        largest = int(sources[name].ids.max(initial=0))
        if largest >= vocab_size:
            raise ValueError(
                f"{name} has a token {largest}, and the model's vocabulary is {vocab_size}: make "
                "--tokens with the model's tokenizer"
            )


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
        """Continue; a source whose documents have changed since begins a new epoch."""
        self.rng.bit_generator.state = state["rng"]
        for name, (order, at) in state["places"].items():
            source = self.sources.get(name)
            if source and np.array_equal(np.sort(order), source.documents):
                source.order, source.at = np.asarray(order, np.int64), at

    def _fill(self, weights: Mapping[str, float], length: int) -> None:
        names = [name for name in weights if name in self.sources and weights[name] > 0]
        # Weights are shares of tokens, draws are documents: divide by what one brings on average.
        shares = np.array([weights[name] / self._tokens_a_draw(name, length) for name in names])
        while len(self.pool) < self.pool_size:
            name = names[self.rng.choice(len(names), p=shares / shares.sum())]
            document = self.sources[name].next(self.rng)
            if not self.whole or document.shape[1] <= length:
                self.pool.append(document)

    def _tokens_a_draw(self, name: str, length: int) -> float:
        """Tokens that a drawn document brings into rows of a length, on average.

        Raises:
            ValueError: none, since every document is left out.
        """
        lengths = self.sources[name].lengths()
        taken = np.where(lengths <= length, lengths, 0 if self.whole else length)
        if not taken.any():
            raise ValueError(
                f"no document of {name} fits into a row of {length} tokens, the shortest has "
                f"{min(lengths, default=0)}: leave {name} out of the mix, take a longer context, "
                "or let documents be cut (whole = false)"
            )
        return float(taken.mean())

    def _row(self, length: int) -> Array:
        row, at = np.full((2, length), PAD, np.int64), 0
        document = self.pool.pop(0)[:, :length]
        while True:
            row[:, at : at + document.shape[1]] = document
            at += document.shape[1]
            sizes = [other.shape[1] for other in self.pool]
            fitting = [i for i, size in enumerate(sizes) if size <= length - at]
            if fitting:
                document = self.pool.pop(max(fitting, key=sizes.__getitem__))
            elif length - at > length // 16 and not self.whole:
                shortest = min(range(len(sizes)), key=sizes.__getitem__)
                document = self.pool.pop(shortest)[:, : length - at]
            else:
                return row

    def rows(self, weights: Mapping[str, float], count: int, context: int) -> Array:
        """[count, context + 1] token ids; PAD after the last document."""
        return self.placed_rows(weights, count, context)[:, 0]

    def placed_rows(self, weights: Mapping[str, float], count: int, context: int) -> Array:
        """[count, 2, context + 1]: token ids, and their places among those of all sources."""
        rows = np.empty((count, 2, context + 1), np.int64)
        for row in rows:
            self._fill(weights, context + 1)
            row[:] = self._row(context + 1)
        return rows
