"""``python -m tools.rivals MODEL --text FILE --calibrate FILE [--forms NAME ...]``."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgerun.formats.base import PackedWeight
from edgerun.kernels.host.cores import worker_threads
from edgerun_export.calibrate.costs import Cost
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.observed import Work
from edgerun_export.calibrate.taps import Group
from edgerun_export.calibrate.text import (
    CalibrationText,
    read_calibration,
    read_sample,
    tokenizer_of,
)
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.quantize.columns import corrected
from edgerun_export.recipe import make_recipe
from edgerun_export.source.model import interpret
from edgerun_export.source.weights import SourceWeights
from tools.rivals.forms import (
    INT3,
    NF4,
    Form,
    binary,
    blocks,
    levels,
    low_rank,
    points,
    pulses,
    wide_columns,
)

_BOTH_SIGNS = [ratio * sign for ratio in np.linspace(0.6, 1.04, 6) for sign in (1, -1)]
FORMS: Mapping[str, Form] = {
    "int2:32": blocks("int2", 32),
    "int4:32": blocks("int4", 32),
    "int4:64": blocks("int4", 64),
    "ternary:64": blocks("ternary", 64),
    "int3:32": levels(INT3, 32, _BOTH_SIGNS),
    "int3:64": levels(INT3, 64, _BOTH_SIGNS),
    "nf4:32": levels(NF4, 32, np.linspace(0.7, 1.05, 8).tolist()),
    "e8:32": points(32),
    "pulses:32,20": pulses(32, 20),
    "pulses:32,56": pulses(32, 56),
    "ptq1.61": binary(),
    "int2:32 + rank 2": low_rank(blocks("int2", 32), 2),
    "int4:64 + rank 2": low_rank(blocks("int4", 64), 2),
    "int2:32, 16 columns in 8 bits": wide_columns(
        blocks("int2", 32), lambda block: blocks("int8", block), 16
    ),
    "int2:32, 16 columns in 4 bits": wide_columns(
        blocks("int2", 32), lambda block: blocks("int4", block), 16
    ),
}


class Rival(LayerFitter):
    """Stores all projections in one form, fitted to what ``residual`` is fitted to."""

    def __init__(self, form: Form, source: SourceWeights, text: CalibrationText) -> None:
        recipe = make_recipe("int2", method="residual")
        store = FittedLayers(Path(tempfile.mkdtemp(prefix="edgerun-rivals-")), {})
        super().__init__(source, recipe, text, store, worker_threads(None))
        self._form = form
        self.bytes = 0.0

    def cost(self) -> Cost:
        """What the text costs that is measured."""
        try:
            (cost,) = self.run()
        finally:
            self._store.remove()
        return cost

    def _fit(self, work: Work, groups: Sequence[Group]) -> dict[str, PackedWeight]:
        inputs = self._inputs(work, groups)
        for group in groups:
            seen = inputs[group[0].path]
            assert seen.hessian is not None
            hessian = seen.hessian.whole()
            for projection in group:
                name = f"model.layers.{work.layer}.{projection.path}.weight"
                rows = work.source.matrix(name)
                stored = self._form(corrected(rows, seen, 1), hessian)
                values = stored.values.astype(np.float32)
                work.quantised.replace(name, lambda values=values: values)
                self.bytes += stored.bytes
        return {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each form: bytes of all projections, bits a weight, perplexity."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--calibrate", type=Path, required=True)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--calibration-windows", type=int, default=64)
    given = parser.parse_args(arguments)
    with open_checkpoint(given.model) as checkpoint:
        source, _ = interpret(checkpoint)
        tokenizer = tokenizer_of(checkpoint.tokenizer_files())
        text = read_calibration(
            [given.calibrate], tokenizer, given.calibration_windows, given.tokens
        )
        sample = read_sample(given.text, tokenizer, given.windows, given.tokens)
        text = CalibrationText(text.names, text.windows, (sample,))
        weights = sum(
            math.prod(source.shape(f"model.layers.{layer}.{projection.path}.weight"))
            for layer in range(source.spec.num_layers)
            for projection in source.spec.projections(layer)
        )
        print("form\tMB\tbits\tperplexity\tsource")
        for name in given.forms:
            rival = Rival(FORMS[name], source, text)
            cost = rival.cost()
            stored, unrounded = (math.exp(n / cost.tokens) for n in (cost.nats, cost.source_nats))
            bits = rival.bytes * 8 / weights
            print(f"{name}\t{rival.bytes / 1e6:.4f}\t{bits:.2f}\t{stored:.4g}\t{unrounded:.4g}")


if __name__ == "__main__":
    main()
