"""Command A+: Command A's layers with experts, and dense ones before them (Cohere 2026).

Source: transformers 5.24, ``modular_cohere2_moe.py``.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    natural,
    number,
    positive,
    section,
    sparse_layers,
    typed_windows,
)
from edgerun_export.architectures.decoder.layer import Dense, Experts, SharedExpert
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.layer_norms.cohere import of_kind

_NAME = "cohere2_moe"
_MAX_SHARED = 64  # more than any model has
_SHARED = "mlp.shared_experts"
_SCORES, _SHARES = ("softmax", "sigmoid"), {"average": 0.5, "sum": 1.0}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``cohere2_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    _check_rope(config)
    spec = of_kind({**config, "head_dim": positive(config, "head_dim", 128)}, _NAME, 10000.0)
    first = natural(config, "first_k_dense_replace", 0, limit=spec.num_layers)
    before = positive(config, "prefix_dense_sliding_window_pattern", 1)
    every = positive(config, "sliding_window_pattern", 4)
    slides = [(layer + 1) % before != 0 for layer in range(first)]
    slides += [(layer + 1) % every != 0 for layer in range(spec.num_layers - first)]
    windows = typed_windows(config, positive(config, "sliding_window", 4096), slides)
    are_sparse = sparse_layers(config, [layer >= first for layer in range(spec.num_layers)])
    # Dense layers have a rope without a window, too, unless some of them are to have none.
    turns = [
        bool(window) or (before == 1 and not sparse)
        for window, sparse in zip(windows, are_sparse, strict=True)
    ]
    width = positive(config, "intermediate_size")
    dense = Dense(positive(config, "prefix_dense_intermediate_size", width))
    share = _share(config)
    experts = _experts(config, width, share)
    spec = spec.with_windows(windows).with_ropes([0 if each else None for each in turns])
    spec = spec.with_feed_forward([experts if sparse else dense for sparse in are_sparse])
    return _with_norms(_shared_in_part(spec, share), config)


def _check_rope(config: Config) -> None:
    """Refuses what transformers' class of the configuration has a key for and does not read.

    Raises:
        UnsupportedError: ``rope_scaling`` asks for a rope that is scaled.
    """
    scaling = section(config, "rope_scaling")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise UnsupportedError(
            f"{_NAME} checkpoints with a rope_scaling of {shown(kind)}, which transformers does "
            "not heed, are not supported; say it in rope_parameters, or remove it"
        )


def _with_norms(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """RMS norms where there is an epsilon of such, and else layer norms."""
    if config.get("rms_norm_eps") is None:
        return spec
    return replace(spec, centres=False, norm_eps=number(config, "rms_norm_eps"))


def _experts(config: Config, width: int, share: float) -> Experts:
    said = config.get("expert_selection_fn") or "softmax"
    if said not in _SCORES:
        raise UnsupportedError(
            f"{_NAME} checkpoints with an expert_selection_fn of {shown(said)} are not supported; "
            f"those with {' or '.join(_SCORES)} are"
        )
    is_softmax = said == "softmax"
    count, top_k = experts_chosen(config, "num_experts")
    shared = natural(config, "num_shared_experts", 0, limit=_MAX_SHARED)
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        # A softmax of those that are chosen is one of all, divided by their sum.
        normalise=is_softmax or flag(config, "norm_topk_prob", True),
        scoring="softmax" if is_softmax else "sigmoid",
        scale=share if shared else 1.0,
        shared=SharedExpert(shared * width, _SHARED, gate="") if shared else None,
    )


def _share(config: Config) -> float:
    """How much experts and the network beside them count, of whose sum there may be an average."""
    strategy = config.get("shared_expert_combination_strategy") or "average"
    if strategy not in _SHARES:
        raise UnsupportedError(
            f"{_NAME} checkpoints with a shared_expert_combination_strategy of {shown(strategy)} "
            f"are not supported; those with {' or '.join(_SHARES)} are"
        )
    return _SHARES[strategy]


def _shared_in_part(spec: DecoderSpec, share: float) -> DecoderSpec:
    """The same decoder; what networks beside experts make is multiplied in their weights."""
    layers = [layer for layer in range(spec.num_layers) if spec.shared_expert(layer)]
    names = [f"model.layers.{layer}.{_SHARED}.down_proj.weight" for layer in layers]
    factors = {**spec.storage.factors, **(dict.fromkeys(names, share) if share != 1 else {})}
    return replace(spec, storage=replace(spec.storage, factors=factors))


ARCHITECTURE = describe
