"""What a layer of a decoder consists of, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias


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
class Dense:
    """A gated feed-forward part that every token goes through.

    Attributes:
        width: of what is between its projections.
    """

    width: int


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
class Experts:
    """Many gated networks, of which a router chooses a few for each token.

    Attributes:
        count: networks.
        top_k: how many a token goes through.
        width: of what is between the projections of one.
        normalise: whether the scores of those that are chosen add up to 1.
        scoring: what makes scores of the router's logits.
        selection_bias: path below ``model.layers.N`` of what is added to scores for the choice
            alone, ``[count]``; none where it is empty, and logits decide.
        selection_bias_axes: axes that it has in checkpoints, all but the last of one element.
        epsilon: what is added to the sum that scores are divided by.
        scale: factor of the scores.
        module: path of the layer below ``model.layers.N``.
        names: what its ``gate_proj``, ``up_proj`` and ``down_proj`` are called.
        router: what its router is called.
        biases: whether the router and all projections have a bias.
        shared: one more, that all tokens go through.
    """

    count: int
    top_k: int
    width: int
    normalise: bool
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    selection_bias: str = ""
    selection_bias_axes: int = 1
    epsilon: float = 0.0
    scale: float = 1.0
    module: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    biases: bool = False
    shared: SharedExpert | None = None


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
class LayerSpec:
    """What may differ from layer to layer.

    Attributes:
        feed_forward: the part after attention.
        conv: what stands in the place of attention; ``None`` for attention.
        window: number of latest positions that it attends to, or ``None`` for all.
        rope: which of the decoder's ropes its queries and keys go through; ``None`` for none.
    """

    feed_forward: FeedForward
    conv: ShortConv | None = None
    window: int | None = None
    rope: int | None = 0
