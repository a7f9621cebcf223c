"""What a tiny checkpoint is, and what nearly all of them have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tools.golden.byte_tokenizer import BOS, EOS

VOCAB_SIZE = 264
BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": True,
}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 16}
ONE_LAYER = {"num_hidden_layers": 1}
YARN = {"rope_type": "yarn", "factor": 8.0}
# What Granite's kinds multiply by.
FACTORS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 8.0,
}

LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
LONG = {"max_position_embeddings": 128, "original_max_position_embeddings": 64}


@dataclass(frozen=True, slots=True)
class Golden:
    """One tiny checkpoint.

    Attributes:
        family: prefix of the classes in transformers.
        changes: configuration beyond the common one.
        tokens: length of the prompt.
        quantization: arguments of BitNetQuantConfig.
        norm_offset: what the model adds to the weights of norms.
        model: prefix of the model's class where it is another than that of the configuration.
        reply: tokens that the model goes on with, each the most likely one.
        stacked: experts are stored as transformers has them, all of a layer in one tensor.
        names: parts of names of tensors, and what they are where models are released.
        joined: by the path of a tensor below a layer, as models are released, in how many turns it
            has rows of others, and which.
        said: keys of config.json that models are released with; None for those that they lack.
        beside: configuration beside the text model's, of those that transformers has as a part of
            others alone.
    """

    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    tokens: int = 24
    quantization: dict[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0
    model: str | None = None
    reply: int = 0
    stacked: bool = False
    names: dict[str, str] = field(default_factory=dict)
    joined: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        """The model's class in transformers."""
        kind = "ForConditionalGeneration" if self.beside else "ForCausalLM"
        return f"{self.model or self.family}{kind}"
