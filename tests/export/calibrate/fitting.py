"""Weights fitted to random ids, in tests of calibration."""

import numpy as np

from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.text import CalibrationText, Sample

KEY = {"of": "tests"}


def text_of(spec, windows=6, tokens=24, held_out=1, seed=0):
    ids = np.random.default_rng(seed).integers(0, spec.vocab_size, (windows + held_out, tokens))
    return CalibrationText(("text",), ids[:windows], (Sample("text", ids[windows:], 100),))


def fitted(source, folder, recipe, threads=1, **options):
    store = FittedLayers(folder, KEY)
    fitter = LayerFitter(source, recipe, text_of(source.spec), store, threads, **options)
    fitter.run()
    return store, fitter


def contents(store, spec):
    names = [
        f"model.layers.{layer}.{projection.path}.weight"
        for layer in range(spec.num_layers)
        for projection in spec.projections(layer)
    ]
    projections = {name: store.packed(name) for name in names}
    return {
        name: (packed.codes.tobytes(), packed.scales.tobytes())
        for name, packed in projections.items()
        if packed is not None
    }
