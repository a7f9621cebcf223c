"""Scales inputs by how large they are, so that weights of large inputs are rounded finely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgerun.activations.base import UNCHANGED
from edgerun.activations.registry import ACTIVATIONS
from edgerun_export.architectures import DecoderSpec, Projection
from edgerun_export.architectures.decoder.layer import Dense, Experts
from edgerun_export.calibrate.observed import batches, products
from edgerun_export.calibrate.taps import all_groups
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.quantize.method import Inputs
from edgerun_export.recipe import Recipe, TensorRecipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.transforms.transform import Transform
from edgerun_export.transforms.weights import Change, TransformedWeights
from edgerun_export.verify.numpy_ends import embedded
from edgerun_export.verify.numpy_model import Layer

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
_STEPS = 20  # of the exponent
_WINDOWS = 8
_ROWS = 64  # of a matrix, evenly spread, on which exponents are compared


@dataclass(frozen=True, slots=True)
class _Pair:
    """What makes a value, and the projections that read it.

    Attributes:
        producer: path of the norm or projection.
        readers: projections whose columns are multiplied.
        columns: which output of the producer each of these columns is of, ``[K]``.
        others: projections that are never quantised, whose columns are multiplied as well.
    """

    producer: str
    readers: tuple[Projection, ...]
    columns: NDArray[np.int64]
    others: tuple[Projection, ...] = ()


def apply(source: SourceWeights, recipe: Recipe, text: CalibrationText | None) -> SourceWeights:
    """Multiplies columns by ``s = rms(x)^a`` and divides what makes their inputs by it.

    AWQ (Lin et al. 2024, section 3.2), with the a of 20 that makes the smallest output error,
    seen on some rows, and the root mean square in the place of the mean magnitude. What makes the
    inputs is the norm before, the values' projection, or the ``up`` projection of a gated network.
    """
    assert text is not None
    spec = source.spec
    changes: dict[str, Change] = {}
    vectors: dict[str, F32] = {}
    some = text.windows[:: -(-len(text.windows) // _WINDOWS)]
    stream = [embedded(spec, source, window) for window in some]
    for layer in range(spec.num_layers):
        weights = LayerWeights(source, layer)
        pairs = {pair.readers[0].path: pair for pair in _pairs(spec, layer)}
        read = [group for group in all_groups(spec, layer) if group[0].path in pairs]
        for groups in batches([read]):
            for path, inputs in products(spec, weights, layer, stream, groups).items():
                scales = _scales(pairs[path], weights, inputs, recipe, layer)
                _scale(source, layer, pairs[path], scales, changes, vectors)
        stream = [Layer(spec, weights, layer).run(hidden) for hidden in stream]
    return TransformedWeights(source, spec, changes, vectors, {})


def _pairs(spec: DecoderSpec, layer: int) -> Iterator[_Pair]:
    hidden = np.arange(spec.hidden_size)
    # Laurel adds what it reads.
    around, part = spec.norms_around(layer), spec.layers[layer].feed_forward
    # Experts, which are left as they are, may read the norm as well.
    is_own = not isinstance(part, Experts) or around.before_feed_forward != around.before
    if spec.mixer(layer) and around.before is not None and spec.laurel is None and is_own:
        readers = spec.mixer_groups(layer)[0][0]
        if around.before_feed_forward == around.before:
            readers += tuple(spec.feed_forward(layer)[0].values())[:-1]
        others = tuple(each for each in spec.mixer_readers(layer) if each not in readers)
        yield _Pair(around.before, readers, hidden, others)
    if spec.has_keys(layer) and spec.attention_sub_norm is None and not spec.normalises_values:
        kv_heads, head_dim = spec.num_kv_heads_of(layer), spec.head_dim_of(layer)
        values = np.arange(kv_heads * head_dim).reshape(-1, head_dim)
        read = values.repeat(spec.num_heads_of(layer) // kv_heads, axis=0).ravel()
        own = spec.attention(layer)
        value = own.get("v_proj", own["k_proj"])
        yield _Pair(value.path, (own["o_proj"],), read)
    if not isinstance(part, Dense):
        return
    (network,) = spec.feed_forward(layer)
    if around.before_feed_forward not in (None, around.before):
        yield _Pair(around.before_feed_forward, tuple(network.values())[:-1], hidden)
    if part.gated and spec.sub_norm(layer) is None and ACTIVATIONS[spec.activation].up is UNCHANGED:
        width = np.arange(network["down_proj"].in_features)
        yield _Pair(network["up_proj"].path, (network["down_proj"],), width)


def _scales(pair: _Pair, weights: LayerWeights, inputs: Inputs, recipe: Recipe, layer: int) -> F32:
    """The best factors of a producer's outputs, one for each."""
    shares = np.bincount(pair.columns)
    sizes = np.sqrt(np.bincount(pair.columns, inputs.importance) / shares)
    sizes = np.maximum(sizes, 1e-4 * sizes.max() + 1e-12)
    best, least = np.ones(len(sizes), np.float32), np.inf
    for step in range(_STEPS):
        scales = sizes ** (step / _STEPS)
        given = (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)
        error = 0.0
        for reader in pair.readers:
            module = f"model.layers.{layer}.{reader.path}"
            rows = weights.matrix(f"{module}.weight")
            some = rows[:: max(1, len(rows) // _ROWS)]
            error += _error(some, given[pair.columns], inputs, recipe.tensor(module))
        if error < least:
            best, least = given, error
    return best


def _error(rows: F32, scales: F32, inputs: Inputs, kind: TensorRecipe) -> float:
    """Mean squared error of the outputs, with columns that are multiplied and rounded."""
    if kind.weights == "fp32":
        return 0.0
    packed = quantise_rows(rows * scales, kind.weights, kind.group_size)
    difference = block_layout(kind.weights).unpack(packed) / scales - rows
    assert inputs.hessian is not None
    return inputs.hessian.error(difference)


def _scale(
    source: SourceWeights,
    layer: int,
    pair: _Pair,
    scales: F32,
    changes: dict[str, Change],
    vectors: dict[str, F32],
) -> None:
    """Notes what becomes of a pair."""
    module = f"model.layers.{layer}"
    for reader in (*pair.readers, *pair.others):
        name = f"{module}.{reader.path}.weight"
        changes[name] = replace(changes.get(name, Change()), inputs=scales[pair.columns])
    name, bias = (f"{module}.{pair.producer}.{kind}" for kind in ("weight", "bias"))
    if bias in source.spec.tensors():
        vectors[bias] = source.vector(bias) / scales
    if len(source.shape(name)) == 1:
        vectors[name] = source.vector(name) / scales
    else:
        changes[name] = replace(changes.get(name, Change()), outputs=np.reciprocal(scales))


TRANSFORM = Transform(apply, needs_text=True)
