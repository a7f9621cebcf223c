"""Rotates the residual stream and the values of heads, so that outliers are spread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.recipe import Recipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.transforms.transform import Transform
from edgerun_export.transforms.weights import Change, TransformedWeights

F32 = NDArray[np.float32]
_SEED = 0


def apply(source: SourceWeights, recipe: Recipe, text: CalibrationText | None) -> SourceWeights:
    """Folds norms into the projections behind them and rotates what is between.

    QuaRot (Ashkboos et al. 2024, section 4), its R1 on the residual stream and R2 on the values of
    every head, random and folded into weights, so that nothing is computed at run time. The head
    is no longer tied, for the last norm is folded into it alone.
    """
    spec = source.spec
    _check(spec)
    rotation, changes, vectors = _orthogonal(spec.hidden_size, _SEED), {}, dict[str, F32]()
    changes[spec.embedding_weight] = Change(inputs=rotation)
    turns = rotation, np.ascontiguousarray(rotation.T)
    for layer in range(spec.num_layers):
        _rotate_layer(source, layer, turns, changes, vectors)
    last = source.vector(spec.final_norm_weight)
    vectors[spec.final_norm_weight] = np.ones_like(last)
    changes[HEAD_WEIGHT] = Change(inputs=rotation, columns=last)
    origins = {HEAD_WEIGHT: spec.head_weight}
    return TransformedWeights(source, replace(spec, tied=False), changes, vectors, origins)


def _check(spec: DecoderSpec) -> None:
    around = [spec.norms_around(layer) for layer in range(spec.num_layers)]
    if any(norms.behind or norms.behind_feed_forward for norms in around):
        raise UnsupportedError(
            f"--transform rotate: the layers of this {spec.architecture} have norms behind their "
            "parts, through which a rotation does not pass; leave it out"
        )
    if spec.centres:
        raise UnsupportedError(
            f"--transform rotate: the norms of this {spec.architecture} subtract the mean, which "
            "is another one after a rotation; leave it out"
        )


def _rotate_layer(
    source: SourceWeights,
    layer: int,
    turns: tuple[F32, F32],
    changes: dict[str, Change],
    vectors: dict[str, F32],
) -> None:
    """Turns what reads the residual stream, and back what is added to it; ``turns`` are both."""
    spec, module = source.spec, f"model.layers.{layer}"
    rotation, outputs = turns
    around = spec.norms_around(layer)
    readers = {around.before: [each.name for each in spec.mixer_readers(layer)]}
    of_networks = readers.setdefault(around.before_feed_forward, [])  # which may be the same norm
    of_networks += ["gate_proj", "up_proj", "router", "shared_gate"]
    projections = [*spec.projections(layer), *spec.float_projections(layer)]
    for norm, names in readers.items():
        if norm not in spec.norms(layer):
            continue
        weight = source.vector(f"{module}.{norm}.weight")
        vectors[f"{module}.{norm}.weight"] = np.ones_like(weight)
        change = Change(inputs=rotation, columns=weight)
        for projection in projections:
            if projection.name in names:
                changes[f"{module}.{projection.path}.weight"] = change
    for projection in projections:
        if projection.name in ("o_proj", "space_o_proj", "down_proj"):
            changes[f"{module}.{projection.path}.weight"] = Change(outputs=outputs)
            if projection.bias:
                name = f"{module}.{projection.path}.bias"
                vectors[name] = np.asarray(outputs @ source.vector(name), np.float32)
    # What heads give is multiplied element by element where it is gated.
    if spec.attends(layer) and spec.attention_sub_norm is None and not spec.gates_attention:
        _rotate_values(source, layer, changes, vectors)


def _rotate_values(
    source: SourceWeights, layer: int, changes: dict[str, Change], vectors: dict[str, F32]
) -> None:
    """One rotation for the values of all heads of a layer; the output projection undoes it."""
    spec, module = source.spec, f"model.layers.{layer}"
    turn = _orthogonal(spec.head_dim_of(layer), _SEED + 1 + layer)
    value, output = (spec.attention(layer)[name] for name in ("v_proj", "o_proj"))
    names = [f"{module}.{each.path}.weight" for each in (value, output)]
    changes[names[0]] = replace(changes.get(names[0], Change()), outputs=turn.T)
    changes[names[1]] = replace(changes[names[1]], inputs=turn)
    if value.bias:
        name = f"{module}.{value.path}.bias"
        heads = source.vector(name).reshape(-1, len(turn))
        vectors[name] = np.asarray(heads @ turn, np.float32).ravel()


def _orthogonal(size: int, seed: int) -> F32:
    """A random rotation, the same for the same seed."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)), np.float32)


TRANSFORM = Transform(apply)
