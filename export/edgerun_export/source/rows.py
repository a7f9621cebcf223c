"""Where the rows of tensors are stored, if not by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import PickedRows


def joined_rows(spec: DecoderSpec) -> Iterator[tuple[str, tuple[str, int]]]:
    """By the name of a tensor whose rows are stored among those of others: where they begin."""
    for layer in range(spec.num_layers):
        every = [*spec.projections(layer), *spec.float_projections(layer)]
        projections = {each.name: each for each in every}
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
                    yield own, PickedRows(stored, picked.rows[: each.out_features])
