"""What configurations of many families have in common, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tools.golden.byte_tokenizer import BOS, EOS

Config: TypeAlias = dict[str, Any]
CONTEXT = 256
FULL, SLIDING = "full_attention", "sliding_attention"
USUAL_ROPES = ("default", "linear", "llama3", "yarn", "yarn")

_HEADS = ((1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (4, 2), (6, 2), (3, 3), (4, 4))
_HEAD_DIMS = (8, 12, 16, 20, 24, 32, 40, 48)
_WIDEST = 200


class Draw(random.Random):
    """Random numbers, with words for what generators ask of them."""

    def of(self, *values: Any) -> Any:
        """One of some values."""
        return self.choice(values)

    def chance(self, probability: float = 0.5) -> bool:
        """True in so many cases."""
        return self.random() < probability


Family: TypeAlias = Callable[[Draw], Config]


def flags(draw: Draw, *keys: str) -> Config:
    """Keys that are true or false."""
    return {key: draw.chance() for key in keys}


def own_heads(draw: Draw) -> Config:
    """A decoder whose heads have a size of their own."""
    heads, key_heads = draw.of(*_HEADS)
    return {
        **_sizes(draw, heads, key_heads),
        "hidden_size": heads * (draw.randint(36, 110) // heads),
        "head_dim": draw.of(*_HEAD_DIMS),
    }


def shared_width(draw: Draw) -> Config:
    """A decoder whose heads share its width among them."""
    heads, key_heads = draw.of(*_HEADS)
    head_dim = draw.of(*(size for size in _HEAD_DIMS if heads * size <= _WIDEST))
    return {**_sizes(draw, heads, key_heads), "hidden_size": heads * head_dim}


def any_heads(draw: Draw) -> Config:
    """A decoder of either kind."""
    sizes: Config = draw.of(own_heads, shared_width)(draw)
    return sizes


def _sizes(draw: Draw, heads: int, key_heads: int) -> Config:
    return {
        "vocab_size": draw.of(264, 271, 300, 333),
        "num_hidden_layers": draw.of(1, 2, 3, 3, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": draw.of(33, 48, 64, 72, 100),
        "max_position_embeddings": CONTEXT,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "tie_word_embeddings": draw.chance(),
        "rms_norm_eps": draw.of(1e-6, 1e-5, 1e-2),
    }


def head_dim_of(config: Config) -> int:
    """Elements of a head."""
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def without(config: Config, *keys: str) -> Config:
    """All other keys."""
    return {key: value for key, value in config.items() if key not in keys}


def rope(draw: Draw, kinds: Sequence[str] = USUAL_ROPES, **more: Any) -> Config:
    """``rope_parameters`` of one of some kinds."""
    kind = draw.of(*kinds)
    theta = draw.of(100.0, 10000.0, 500000.0, 1e6)
    return {"rope_type": kind, "rope_theta": theta, **_SCALINGS[kind](draw), **more}


def ropes_by_type(draw: Draw, full: float, sliding: float, kinds: Sequence[str]) -> Config:
    """A rope of layers that attend to everything, and one of ``kinds`` where there is a window.

    Args:
        draw: random numbers.
        full: theta of the first.
        sliding: theta of the second.
        kinds: of the second.
    """
    # transformers looks for `truncate` beside these two and not in them.
    everywhere = without(rope(draw, rope_theta=full), "truncate")
    return {FULL: everywhere, SLIDING: rope(draw, kinds, rope_theta=sliding)}


def part_that_turns(draw: Draw, head_dim: int, *fractions: float) -> Config:
    """A ``partial_rotary_factor`` that leaves an even number of elements."""
    even = [fraction for fraction in fractions if head_dim * fraction % 2 == 0]
    return {"partial_rotary_factor": draw.of(*even)}


def _linear(draw: Draw) -> Config:
    return {"factor": draw.of(1.5, 2.0, 4.0, 8.0)}


def _llama3(draw: Draw) -> Config:
    return {
        "factor": draw.of(8.0, 32.0),
        "low_freq_factor": 1.0,
        "high_freq_factor": draw.of(4.0, 8.0),
        "original_max_position_embeddings": draw.of(16, 32, 64),
    }


def _yarn(draw: Draw) -> Config:
    return {
        "factor": draw.of(2.0, 4.0, 8.0, 40.0),
        "original_max_position_embeddings": draw.of(16, 32, 64),
        **draw.of({}, {"truncate": True}, {"truncate": False}),
        **draw.of({}, {"beta_fast": 4.0, "beta_slow": 1.0}, {"beta_fast": 16.0, "beta_slow": 0.5}),
        **draw.of(
            {},
            {"mscale": 0.8},
            {"mscale": 0.707, "mscale_all_dim": 0.707},
            {"mscale": 1.0, "mscale_all_dim": 0.5},
            {"attention_factor": 1.3},
        ),
    }


def _alpha(draw: Draw) -> Config:
    return {"factor": draw.of(1.0, 2.0), "alpha": draw.of(1.5, 50.0, 1000.0)}


_SCALINGS: dict[str, Callable[[Draw], Config]] = {
    "default": lambda draw: {},
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _alpha,  # Hunyuan's
}


def layer_types(draw: Draw, config: Config, *kinds: str) -> list[str]:
    """A kind of each layer; the last of ``kinds`` is among them."""
    types = [draw.of(*kinds) for _ in range(config["num_hidden_layers"])]
    return types if kinds[-1] in types else [*types[:-1], kinds[-1]]


def window(draw: Draw) -> Config:
    """The size of a window."""
    return {"sliding_window": draw.of(1, 2, 4, 8, 13, 16)}


def usual_windows(draw: Draw, config: Config, *otherwise: Config) -> Config:
    """A window in some layers, which are told one by one or by another key."""
    kinds = draw.of((SLIDING, FULL), (FULL, SLIDING))
    types = {"layer_types": layer_types(draw, config, *kinds)}
    return {**window(draw), **draw.of(types, *otherwise)}


def switched_windows(draw: Draw, config: Config) -> Config:
    """Qwen's windows: none unless a key says so, and then from some layer on."""
    if draw.chance():
        return {"use_sliding_window": False}
    later = {"max_window_layers": draw.of(0, 1, 2)}
    return {"use_sliding_window": True, **usual_windows(draw, config, later)}


def experts(draw: Draw, count: str = "num_experts", top: str = "num_experts_per_tok") -> Config:
    """How many experts there are, and how many a token goes to, under these names."""
    return {count: draw.of(3, 5, 8), top: draw.of(1, 2, 3)}


def expert_width(draw: Draw) -> Config:
    """The width of an expert."""
    return {"moe_intermediate_size": draw.of(33, 40, 48)}
