"""How many bytes weights take in a bundle."""

from __future__ import annotations

import math

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.spec import HEAD_WEIGHT
from edgerun_export.quantize import block_layout
from edgerun_export.recipe import Recipe, TensorRecipe, vocabulary_block

_FLOAT_BYTES = 4


def matrix_bytes(shape: tuple[int, ...], kind: TensorRecipe) -> int:
    """Bytes of a matrix ``[N, K]`` with its scales."""
    rows, columns = shape
    if kind.weights == "fp32":
        return rows * columns * _FLOAT_BYTES
    blocks = -(-columns // kind.group_size)
    codes = kind.group_size * block_layout(kind.weights).bits // 8
    return rows * blocks * (codes + _FLOAT_BYTES)


def weight_bytes(spec: DecoderSpec, recipe: Recipe) -> int:
    """Bytes of all weights but for the gaps between tensors."""
    shapes = spec.tensors()
    quantised = {
        f"model.layers.{layer}.{projection.path}.weight"
        for layer in range(spec.num_layers)
        for projection in spec.projections(layer)
    }
    body = sum(
        matrix_bytes(shape, recipe.tensor(name.removesuffix(".weight")))
        if name in quantised
        else math.prod(shape) * _FLOAT_BYTES
        for name, shape in shapes.items()
        if name not in (spec.embedding_weight, HEAD_WEIGHT)
    )
    return body + _vocabulary_bytes(spec, recipe)


def _vocabulary_bytes(spec: DecoderSpec, recipe: Recipe) -> int:
    """Embedding and head; one table where they are tied and alike."""
    shape = (spec.vocab_size, spec.hidden_size)
    head = recipe.head_weights
    if head == "fp32":
        return math.prod(shape) * _FLOAT_BYTES * (1 if spec.tied else 2)
    block = vocabulary_block(spec.hidden_size, recipe.group_size)
    table = matrix_bytes(shape, TensorRecipe("int8", block))
    if spec.tied and head == "int8":
        return table
    return table + matrix_bytes(shape, TensorRecipe(head, block))
