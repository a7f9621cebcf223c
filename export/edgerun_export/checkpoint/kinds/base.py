"""What is said of an architecture that GGUF files name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHORT_CONV = "conv.conv"
DELTA_CONV = "linear_attn.conv1d"
STATE_SPACES = ("mamba", "mixer")  # what modules are called
# One axis more to Hugging Face, and one less.
CONVOLUTIONS = (
    f"{SHORT_CONV}.weight",
    f"{DELTA_CONV}.weight",
    *(f".{module}.conv1d.weight" for module in STATE_SPACES),
)
VECTORS = tuple(
    f".{module}.{name}" for module in STATE_SPACES for name in ("rate", "D", "norm.weight")
)
SIGMOID = 2  # of llama.cpp's functions that make scores of logits
SHARED_GATE = "mlp.shared_expert_gate"
SCORE_BIAS = "mlp.moe_statics.e_score_correction_bias"
ONE_ROW = (f"{SHARED_GATE}.weight", SCORE_BIAS)  # matrices to Hugging Face, vectors in GGUF
NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Experts:
    """How a model with experts is described to Hugging Face.

    Attributes:
        module: path of a layer's experts.
        names: of an expert's gate, up and down projection.
        router: what the router is called.
        count_key: configuration key of their number.
        width_key: configuration key of their width, and the one of GGUF.
        normalises: whether the scores of those that are chosen add up to 1.
        has_shared: whether there is one that all tokens go through.
        are_scaled: whether routers have a scale, and each expert a factor, beside their weights.
    """

    module: str = "mlp"
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    count_key: str = "num_experts"
    width_key: tuple[str, str] = ("intermediate_size", "feed_forward_length")
    normalises: bool = True
    router: str = "gate"
    has_shared: bool = False
    are_scaled: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of ``general.architecture``.

    Attributes:
        model_type: Hugging Face ``model_type``.
        class_name: entry of ``architectures``.
        pairs_interleaved: whether llama.cpp's converter interleaves the rows of Q and K.
        extra: configuration that GGUF leaves to the architecture.
        experts: what its layers have; None for those of dense models.
        tensors: names in a layer that other architectures do not have, without their suffix, and
            Hugging Face's.
        rope: parameters of YaRN that GGUF leaves to the architecture.
        windows: whether some layers have a sliding window.
        long_rope: whether divisors for short and for long texts are read.
        factors: metadata keys of factors, and those of the configuration; 0 stands for none.
        own_keys: metadata keys that ``gguf_families.py`` reads and other architectures must not
            have.
        partial: whether a part of each head may be turned.
        epsilon: configuration key of the epsilon of layer norms; empty for RMS norms.
        norm_offset: what the converter adds to the weights of norms.
        plain_norm: norm in a layer to whose weights the converter adds nothing.
        convolutions: whether layers without key heads have something else than attention.
        embedding: what Hugging Face calls the table of token embeddings.
        final_norm: what Hugging Face calls the norm before the head.
        is_latent: whether keys and values are made of narrow rows; then heads have other sizes.
        told: configuration keys that say whether a tensor of the first layer is there.
        rows: configuration keys of sizes, and the tensors whose rows say them.
        lacking: configuration keys that say whether some layer has the first of two tensors without
            the second.
        renamed: how names begin to Hugging Face that begin otherwise as a rule.
        by_layer: metadata keys of sizes that may differ from layer to layer, of which
            ``gguf_families.py`` makes sense.
    """

    model_type: str
    class_name: str
    pairs_interleaved: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    experts: Experts | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)
    windows: bool = False
    long_rope: bool = False
    factors: Mapping[str, str] = field(default_factory=dict)
    own_keys: tuple[str, ...] = ()
    partial: bool = False
    epsilon: str = ""
    norm_offset: float = 0.0
    plain_norm: str = ""
    convolutions: bool = False
    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    is_latent: bool = False
    told: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    by_layer: tuple[str, ...] = ()

    def rename(self, name: str) -> str:
        """What Hugging Face calls a tensor that would be ``name`` as a rule."""
        for begin, own in self.renamed.items():
            if name.startswith(begin):
                return f"{own}{name.removeprefix(begin)}"
        return name
