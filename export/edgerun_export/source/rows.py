"""Where the rows of tensors are stored, if not by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import PickedRows

Parts = TypeVar("Parts", bound=tuple[NDArray[Any], ...])
# Reads rows of a stored tensor: values, or codes with what belongs to them; None if it has none.
Read = Callable[[str, slice], Parts | None]


def joined_rows(spec: DecoderSpec) -> Iterator[tuple[str, tuple[str, int]]]:
    """By the name of a tensor whose rows are stored among those of others: where they begin."""
    for layer in range(spec.num_layers):
        projections = {each.name: each for each in spec.projections(layer)}
        for path, names in spec.storage.joined.items():
            if not projections.keys() >= {*names}:
                continue
            first = 0
            for name in names:
                for kind in ("weight", "bias") if projections[name].bias else ("weight",):
                    own = f"model.layers.{layer}.{projections[name].path}.{kind}"
                    yield own, (f"model.layers.{layer}.{path}.{kind}", first)
                first += projections[name].out_features


def picked_rows(spec: DecoderSpec) -> Iterator[tuple[str, PickedRows]]:
    """By the name of a tensor whose rows are stored among others, one here and one there: where."""
    for layer in range(spec.num_layers):
        for each in [*spec.projections(layer), *spec.float_projections(layer)]:
            picked = spec.storage.picked.get(each.name)
            if picked is not None:
                for kind in ("weight", "bias") if each.bias else ("weight",):
                    stored = f"model.layers.{layer}.{picked.path}.{kind}"
                    own = f"model.layers.{layer}.{each.path}.{kind}"
                    yield own, PickedRows(stored, picked.rows)


def read_in_runs(stored: str, rows: NDArray[np.int64], read: Read[Parts]) -> Parts | None:
    """Reads rows of any order, those together that lie together."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    parts = [read(stored, slice(int(run[0]), int(run[-1]) + 1)) for run in runs]
    if any(part is None for part in parts):
        return None
    pieces = zip(*(part for part in parts if part is not None), strict=True)
    return cast(Parts, tuple(np.concatenate(each) for each in pieces))
