"""How checkpoints store what a decoder computes with, where that is not as it is.

Factors on the residual stream need no operator: they are put into the embedding and the last norm.
Rows of a projection in another order, and norms whose weights are stored less one, are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Factor: TypeAlias = float | tuple[float, ...]
EVERY_NORM = ("",)
MODEL, HEAD_WEIGHT, HEAD_BIAS = "model.", "lm_head.weight", "lm_head.bias"
MTP_LEFT_OUT = "its layers for multi-token prediction (MTP) are left out"


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Which rows of a stored query or key head are whose.

    Attributes:
        order: int64 ``[head_dim]``, the stored row of each row.
        factors: float32 ``[head_dim]``, what each row is multiplied by.
    """

    order: NDArray[np.int64]
    factors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PickedRows:
    """A projection whose rows are stored among those of others, in an order of their own.

    Attributes:
        path: of the stored tensor below ``model.layers.N``, without ``.weight``.
        rows: int64 ``[out_features]``, the stored row of each of its rows, of which layers with
            fewer have the first.
    """

    path: str
    rows: NDArray[np.int64]


def picked_in_turns(
    path: str, groups: int, parts: Sequence[tuple[str, int]]
) -> dict[str, PickedRows]:
    """Projections whose rows a tensor holds in turns: some of each, and the same again.

    Args:
        path: of the stored tensor below ``model.layers.N``.
        groups: how often.
        parts: short name of a projection and how many rows each time; a name that comes again has
            its later rows behind all of the earlier ones.
    """
    size = sum(count for _, count in parts)
    picked: dict[str, list[NDArray[np.int64]]] = {}
    begin = 0
    for name, count in parts:
        starts = np.arange(groups) * size + begin
        picked.setdefault(name, []).append((starts[:, None] + np.arange(count)).ravel())
        begin += count
    return {name: PickedRows(path, np.concatenate(rows)) for name, rows in picked.items()}


def stored_modules(
    num_layers: int, modules: Mapping[str, str], layers: str = "model.layers"
) -> dict[str, str]:
    """By the names of the tensors of modules of every layer those that they are stored under.

    Args:
        num_layers: how many layers there are.
        modules: by the path of a module below ``model.layers.N`` the stored one.
        layers: what layers are below.
    """
    return {
        f"model.layers.{layer}.{path}.{kind}": f"{layers}.{layer}.{stored}.{kind}"
        for layer in range(num_layers)
        for path, stored in modules.items()
        for kind in ("weight", "bias")
    }


@dataclass(frozen=True, slots=True)
class Storage:
    """Differences between the tensors of a checkpoint and those of a decoder.

    Attributes:
        joined: by the path of a stored tensor below ``model.layers.N`` the short names of the
            projections whose rows it has, one after the other; layers without them have none.
        picked: by the short name of a projection where its rows are, if they are not together;
            layers without such a projection have none.
        names: by the name of a tensor the one that it is stored under, if it is another.
        factors: by the name of a tensor what its values are multiplied by, or each of its rows.
        norm_offset: what is added to the stored weights of norms.
        bare_norms: how the paths of norms end that have no weights there: all are 1.
        plain_norms: how the paths of norms end to whose weights nothing is added.
        logarithms: paths of vectors below ``model.layers.N`` whose negatives are stored as
            logarithms.
        softplus: paths of vectors below ``model.layers.N`` that are the softplus of what is stored,
            plus a number.
        constants: paths of what layers have besides, by the one value that it has in all of them.
        normalised: by the name of a matrix the epsilon of a norm without a weight that its rows
            have gone through.
        rows: by the name of a tensor how many rows of it there are: if fewer, those behind are like
            the first; if more, they are left out.
        head_rows: how query and key heads are stored; ``None`` for as they are.
        own_head_rows: likewise by the number of a layer, of those that differ in it.
        unused: how the names of tensors begin that the decoder does not compute with.
        said_of_unused: by how their names begin a sentence, which a user should know of the model
            if there are such tensors.
        prefix: what stands in the place of ``model.`` in the names of all tensors.
        head: name of the head's weight.
    """

    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    picked: Mapping[str, PickedRows] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, Factor] = field(default_factory=dict)
    norm_offset: float = 0.0
    bare_norms: tuple[str, ...] = ()
    plain_norms: tuple[str, ...] = ()
    logarithms: tuple[str, ...] = ()
    softplus: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    normalised: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    head_rows: HeadRows | None = None
    own_head_rows: Mapping[int, HeadRows] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    said_of_unused: Mapping[str, str] = field(default_factory=dict)
    prefix: str = MODEL
    head: str = HEAD_WEIGHT

    def placed(self, name: str) -> str:
        """What a tensor is called that would be ``name`` if the text model were all there is."""
        if name == HEAD_WEIGHT:
            return self.head
        return f"{self.prefix}{name.removeprefix(MODEL)}" if name.startswith(MODEL) else name

    def unplaced(self, name: str) -> str:
        """The inverse of ``placed`` but for the head; names of other tensors stay as they are."""
        is_own = name.startswith(self.prefix)
        return f"{MODEL}{name.removeprefix(self.prefix)}" if is_own else name


PLAIN = Storage()
