"""Turns the values of all heads round, and what reads them."""

from __future__ import annotations

import numpy as np

from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.recipe import Recipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.transforms.transform import Transform
from edgerun_export.transforms.weights import Change, TransformedWeights


def apply(source: SourceWeights, recipe: Recipe, text: CalibrationText | None) -> SourceWeights:
    spec = source.spec
    value, output = (spec.attention(0)[name] for name in ("v_proj", "o_proj"))
    changes, vectors = {}, {}
    for layer in range(spec.num_layers):
        module = f"model.layers.{layer}"
        turned = -np.ones(value.out_features, np.float32)
        changes[f"{module}.{value.path}.weight"] = Change(outputs=turned)
        if value.bias:
            vectors[f"{module}.{value.path}.bias"] = -source.vector(f"{module}.{value.path}.bias")
        turned = -np.ones(output.in_features, np.float32)
        changes[f"{module}.{output.path}.weight"] = Change(inputs=turned)
    return TransformedWeights(source, spec, changes, vectors, {})


TRANSFORM = Transform(apply)
