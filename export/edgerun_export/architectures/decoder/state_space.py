"""Layers of state space duality (Mamba-2, Dao and Gu 2024), as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgerun_export.architectures.decoder.layer import Projection


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A state space in the place of attention, or beside it.

    A short convolution makes inputs of all heads, keys and queries of all groups (x, B and C).
    Every head keeps a matrix ``[state_dim, head_dim]``, which a token lets decay, adds its key and
    input to, and reads by its query (``edgerun/ops/recurrent/state_space.py``). What comes of it is
    gated and normalised.

    Attributes:
        heads: heads of inputs.
        groups: groups of keys and queries, which as many heads share.
        head_dim: elements of an input of a head.
        state_dim: elements of a key or query.
        taps: tokens that the convolution reads, the row's own included.
        norm_eps: epsilon of its norm, of each group by itself.
        norm: whether that is behind the gate or before it; empty for none.
        module: its path below ``model.layers.N``.
        is_beside: whether there is attention, too, which reads the same, and what both make is
            added.
    """

    heads: int
    groups: int
    head_dim: int
    state_dim: int
    taps: int
    norm_eps: float
    norm: Literal["behind", "before", ""] = "behind"
    module: str = "mamba"
    is_beside: bool = False

    @property
    def inner(self) -> int:
        """Elements of the inputs of all heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of the keys of all groups, and of their queries."""
        return self.groups * self.state_dim

    @property
    def width(self) -> int:
        """Elements of all inputs, keys and queries of a token, in this order."""
        return self.inner + 2 * self.keys

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the matrices of all heads."""
        return self.heads, self.state_dim, self.head_dim

    @property
    def norms(self) -> dict[str, int]:
        """Path of the norm, and its width."""
        return {f"{self.module}.norm": self.inner} if self.norm else {}

    @property
    def weight(self) -> str:
        """Path of the weight of the convolution, ``[width, 1, taps]``, the latest token's last."""
        return f"{self.module}.conv1d.weight"

    @property
    def bias(self) -> str:
        """Path of what is added to the convolution."""
        return f"{self.module}.conv1d.bias"

    @property
    def rate(self) -> str:
        """Path of how fast matrices decay, less than 0."""
        return f"{self.module}.rate"

    @property
    def offset(self) -> str:
        """Path of what is added to what a token says of its time."""
        return f"{self.module}.dt_bias"

    @property
    def skip(self) -> str:
        """Path of what inputs are multiplied by that are added to results."""
        return f"{self.module}.D"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Paths and shapes of what belongs to no projection and no norm."""
        vectors = dict.fromkeys((self.rate, self.offset, self.skip), (self.heads,))
        return {self.weight: (self.width, 1, self.taps), self.bias: (self.width,), **vectors}

    def projections(self, hidden_size: int) -> dict[str, Projection]:
        """What makes the gate, what makes inputs, keys and queries, and what reads the result."""
        out = "space_o_proj" if self.is_beside else "o_proj"
        shapes = {
            "z_proj": ("in_proj_z", self.inner, hidden_size),
            "xbc_proj": ("in_proj_xbc", self.width, hidden_size),
            out: ("out_proj", hidden_size, self.inner),
        }
        return {
            name: Projection(name, f"{self.module}.{path}", rows, columns)
            for name, (path, rows, columns) in shapes.items()
        }

    def gates(self, hidden_size: int) -> dict[str, Projection]:
        """What makes the time of a token for each head, a few rows."""
        path = f"{self.module}.in_proj_dt"
        return {"dt_proj": Projection("dt_proj", path, self.heads, hidden_size)}
