"""nanochat: norms without weights, also of embedded tokens (Karpathy 2025)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import check_activation, number, positive
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import (
    EVERY_NORM,
    HeadRows,
    Storage,
    stored_modules,
)

_CAP = "final_logit_softcapping"
_MODULES = {"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``nanochat``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_activation(config, "nanochat", "relu2")
    spec = llama.describe({**config, "hidden_act": "relu"})  # times what it is made of: squared
    if spec.tied:
        raise UnsupportedError(
            "nanochat checkpoints whose head is the embedding are not supported, since the rows of "
            "the embedding are normalised"
        )
    network = Dense(positive(config, "intermediate_size"), gated=False)
    cap = {_CAP: 15.0, **config}
    return replace(
        spec.with_feed_forward([network] * spec.num_layers),
        architecture="nanochat",
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        norms_after_rope=True,
        softcap=None if cap[_CAP] is None else number(cap, _CAP),
        storage=Storage(
            names=stored_modules(spec.num_layers, _MODULES),
            bare_norms=EVERY_NORM,
            normalised={spec.embedding_weight: spec.norm_eps},
            head_rows=_turned_back(spec.head_dim),
        ),
    )


def _turned_back(head_dim: int) -> HeadRows:
    """Halves of a head change places, for it is turned the other way round."""
    order = np.roll(np.arange(head_dim), head_dim // 2)
    return HeadRows(order, np.ones(head_dim, np.float32))


ARCHITECTURE = describe
