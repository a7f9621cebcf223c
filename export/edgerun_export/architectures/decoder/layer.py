"""What a layer of a decoder consists of, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgerun_export.architectures.decoder.state_space import StateSpace
    from edgerun_export.architectures.decoder.xielu import Xielu


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer of a decoder layer.

    Attributes:
        name: short name, such as ``q_proj``, the same in all architectures.
        path: module path below ``model.layers.N``, such as ``self_attn.q_proj``.
        out_features: rows of the weight.
        in_features: columns of the weight.
        bias: whether the checkpoint holds a bias for it.
    """

    name: str
    path: str
    out_features: int
    in_features: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) in the half-split form.

    Attributes:
        inv_freq: float32 ``[head_dim / 2]``, radians a position; 0 for pairs that are not turned.
        attention_factor: multiplies cosine and sine (1 except for yarn).
    """

    inv_freq: NDArray[np.float32]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Dense:
    """A gated feed-forward part that every token goes through.

    Attributes:
        width: of what is between its projections.
        deviations: what the gate's projection makes is cut off so many standard deviations above
            its mean, and what is left counts from there; ``None`` for as it is.
        gated: whether the gate has a projection of its own; else what goes through the activation
            is multiplied by itself, as in squared ReLU.
        curve: goes without a gate in the place of the decoder's activation.
    """

    width: int
    deviations: float | None = None
    gated: bool = True
    curve: Xielu | None = None


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """A gated network that every token goes through beside the experts that are chosen for it.

    What it makes counts as much as the sigmoid of one more logit says, or as it is.

    Attributes:
        width: of what is between its projections.
        module: its path below ``model.layers.N``.
        gate: path of what makes the logit; empty for none.
    """

    width: int
    module: str = "mlp.shared_expert"
    gate: str = "mlp.shared_expert_gate"

    def as_experts(self) -> Experts:
        """The same as a layer of one expert, whose router says how much it counts."""
        return Experts(
            1, 1, self.width, normalise=False, scoring="sigmoid", module=self.module, router=""
        )


@dataclass(frozen=True, slots=True)
class NormsBeside:
    """Norms of experts that read the residual stream by themselves (Gemma 4).

    The network that all tokens go through reads it through the layer's norm; what it makes and
    what the experts make is normalised apart and then added.

    Attributes:
        router: path of the norm that the router reads through.
        experts: likewise of the experts.
        experts_out: of what they make.
        shared_out: of what the other network makes.
    """

    router: str = "mlp.router.norm"
    experts: str = "pre_feedforward_layernorm_2"
    experts_out: str = "post_feedforward_layernorm_2"
    shared_out: str = "post_feedforward_layernorm_1"

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them."""
        return self.router, self.experts, self.experts_out, self.shared_out


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Groups of experts, some of which are chosen before the experts (DeepSeek V2 and V3).

    Attributes:
        count: groups, of as many experts each, one after the other.
        chosen: how many of them a token's experts come from.
        best: how many experts make a group's rank, the sum of theirs: 1 or 2.
    """

    count: int
    chosen: int
    best: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Many gated networks, of which a router chooses a few for each token.

    Attributes:
        count: networks.
        top_k: how many a token goes through.
        width: of what is between the projections of one.
        normalise: whether the scores of those that are chosen add up to 1.
        scoring: what makes scores of the router's logits (``edgerun/ops/route.py``).
        softcap: these become ``softcap * tanh(logits / softcap)``; ``None`` for as they are.
        margin: of a ``sparse_mixer``, how far logits may be apart to count for each other.
        selection_bias: path below ``model.layers.N`` of what is added for the choice alone,
            ``[count]``; none where it is empty, and logits decide.
        biased: what it is added to.
        selection_bias_axes: axes that it has in checkpoints, all but the last of one element.
        groups: of experts, of which some are chosen first; ``None`` where all experts compete.
        epsilon: what is added to the sum that scores are divided by.
        scale: factor of the scores.
        module: path of the layer below ``model.layers.N``.
        names: what its ``gate_proj``, ``up_proj`` and ``down_proj`` are called.
        router: what its router is called.
        biases: whether the router and all projections have a bias.
        shared: one more, that all tokens go through.
        beside: norms of their own; ``None`` where experts and router read what it reads.
        gated: as of ``Dense``, and of a shared expert likewise.
    """

    count: int
    top_k: int
    width: int
    normalise: bool
    scoring: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    softcap: float | None = None
    margin: float = 0.0
    selection_bias: str = ""
    biased: Literal["scores", "logits"] = "scores"
    selection_bias_axes: int = 1
    groups: ExpertGroups | None = None
    epsilon: float = 0.0
    scale: float = 1.0
    module: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    biases: bool = False
    shared: SharedExpert | None = None
    beside: NormsBeside | None = None
    gated: bool = True


FeedForward: TypeAlias = Dense | Experts


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated convolution in the place of attention (LFM2, Liquid AI 2025).

    Of the projections b, c and x of a token, ``c * convolution(b * x)`` is projected back; each
    element is convolved by itself, with its latest values.

    Attributes:
        taps: tokens that it reads, the row's own included.
        module: its path below ``model.layers.N``.
    """

    taps: int
    module: str = "conv"

    @property
    def weight(self) -> str:
        """Path of the weight, ``[hidden_size, 1, taps]``, the latest token's last."""
        return f"{self.module}.conv.weight"


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Linear attention with a gated delta rule in the place of attention (Yang et al. 2024).

    Queries, keys and values go through a short convolution of each element. Every value head keeps
    a matrix ``[key_dim, value_dim]``, which a token lets decay, corrects by its key and value, and
    reads by its query (``edgerun/ops/recurrent/gated_delta.py``). What comes of it is normalised
    head by head and gated.

    Attributes:
        key_heads: heads of queries and of keys.
        value_heads: heads of values, as many for each key head.
        key_dim: elements of a query or key head.
        value_dim: elements of a value head.
        taps: tokens that the convolution reads, the row's own included.
        strength: the most that a token's change may count, which a sigmoid is multiplied by.
        norm_eps: epsilon of the norm of heads; ``None`` for the decoder's.
        module: its path below ``model.layers.N``.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    strength: float = 1.0
    norm_eps: float | None = None
    module: str = "linear_attn"

    epsilon: ClassVar[float] = 1e-6  # of the lengths that queries and keys are divided by

    @property
    def width(self) -> int:
        """Elements of all queries, keys and values of a token, in this order."""
        return 2 * self.key_heads * self.key_dim + self.value_width

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the matrices of all heads."""
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def value_width(self) -> int:
        """Elements of all values of a token."""
        return self.value_heads * self.value_dim

    @property
    def norm(self) -> str:
        """Path of the norm of every head, whose weight is stored as it is."""
        return f"{self.module}.norm"

    @property
    def norms(self) -> dict[str, int]:
        """The same with its width."""
        return {self.norm: self.value_dim}

    @property
    def weight(self) -> str:
        """Path of the weight of the convolution, ``[width, 1, taps]``, the latest token's last."""
        return f"{self.module}.conv1d.weight"

    @property
    def rate(self) -> str:
        """Path of how fast matrices decay, less than 0."""
        return f"{self.module}.rate"

    @property
    def offset(self) -> str:
        """Path of what is added to what a token says of the decay."""
        return f"{self.module}.dt_bias"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Paths and shapes of what belongs to no projection and no norm."""
        heads = (self.value_heads,)
        return {
            self.weight: (self.width, 1, self.taps),
            self.rate: heads,
            self.offset: heads,
        }

    def projections(self, hidden_size: int) -> dict[str, Projection]:
        """What makes queries, keys and values, what makes the gate, and what reads the result."""
        shapes = {
            "qkv_proj": ("in_proj_qkv", self.width, hidden_size),
            "z_proj": ("in_proj_z", self.value_width, hidden_size),
            "o_proj": ("out_proj", hidden_size, self.value_width),
        }
        return {
            name: Projection(name, f"{self.module}.{path}", rows, columns)
            for name, (path, rows, columns) in shapes.items()
        }

    def gates(self, hidden_size: int) -> dict[str, Projection]:
        """What makes decay and strength of a token's change, a few rows."""
        paths = {"decay_proj": "in_proj_a", "write_proj": "in_proj_b"}
        return {
            name: Projection(name, f"{self.module}.{path}", self.value_heads, hidden_size)
            for name, path in paths.items()
        }


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values that are made of a narrow row (DeepSeek-V2 2024, section 2.1).

    Every head has keys and values of its own. Some elements of a key are a product with the
    normalised row, the others are turned by the position, and the same in all heads; so what makes
    these has zeros for the first ones, and is added to every head.

    Attributes:
        rank: width of the row.
        plain: elements of a query or key head that are not turned, the first ones in a checkpoint.
        turned: those that are.
        values: elements of a value head; the rest up to ``head_dim`` are zeros.
        query_rank: width of the row that queries are made of likewise; None for the layer's input.
        norm_eps: epsilon of the norms of these rows.
    """

    rank: int
    plain: int
    turned: int
    values: int
    query_rank: int | None = None
    norm_eps: float = 1e-6

    row_norm: ClassVar[str] = "self_attn.kv_a_layernorm"
    query_norm: ClassVar[str] = "self_attn.q_a_layernorm"

    @property
    def readers(self) -> tuple[tuple[str, ...], ...]:
        """Short names of the projections of each row."""
        of_queries = () if self.query_rank is None else (("q_proj",),)
        return (("k_proj", "v_proj"), *of_queries)

    @property
    def norms(self) -> dict[str, int]:
        """Paths of the norms of its rows, with their widths."""
        of_queries = {} if self.query_rank is None else {self.query_norm: self.query_rank}
        return {self.row_norm: self.rank, **of_queries}


@dataclass(frozen=True, slots=True)
class NormsAround:
    """Norms before the parts of a layer and of what these add, by their paths; ``None`` for none.

    Attributes:
        before: attention, or what stands in its place.
        behind: it.
        before_feed_forward: the feed-forward part.
        behind_feed_forward: that.
    """

    before: str | None
    behind: str | None
    before_feed_forward: str | None
    behind_feed_forward: str | None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer.

    Attributes:
        feed_forward: the part after attention; ``None`` for none.
        mixes: whether there is attention or something in its place.
        conv: a convolution in the place of attention; ``None`` for none.
        delta: linear attention in its place; ``None`` for none.
        space: a state space in its place, or beside it; ``None`` for none.
        window: number of latest positions that it attends to, or ``None`` for all.
        rope: which of the decoder's ropes its queries and keys go through; ``None`` for none.
        head_dim: width of a head; ``None`` for the decoder's.
        num_heads: query heads; ``None`` for the decoder's.
        num_kv_heads: key and value heads; ``None`` for the decoder's.
        keys_are_values: values are what keys are made of, before their norm and rope.
        kv_source: the earlier layer whose keys and values it attends to; ``None`` for its own.
        norms: those around its parts; ``None`` for the decoder's.
    """

    feed_forward: FeedForward | None
    mixes: bool = True
    conv: ShortConv | None = None
    delta: GatedDelta | None = None
    space: StateSpace | None = None
    window: int | None = None
    rope: int | None = 0
    head_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    keys_are_values: bool = False
    kv_source: int | None = None
    norms: NormsAround | None = None
