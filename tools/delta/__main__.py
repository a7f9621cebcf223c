"""``python -m tools.delta BASE FINE_TUNE --text FILE --calibrate FILE [--base-text FILE]``."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgerun.formats.base import PackedWeight
from edgerun.kernels.host.cores import worker_threads
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
from edgerun_export.quantize import block_layout
from edgerun_export.quantize.columns import corrected
from edgerun_export.recipe import make_recipe
from edgerun_export.source.model import interpret
from edgerun_export.source.weights import SourceWeights
from tools.delta.forms import F64, Beside, dense, pruned
from tools.rivals.forms import blocks

ALONE = {"int4:32": ("int4", 32), "int2:32": ("int2", 32)}
BESIDE: Mapping[str, Beside] = {
    "10% at random, 16 bits, times 10 (DARE)": pruned(0.1, "random", "dare", 16),
    "10% at random, 16 bits, best factor (DARE-q)": pruned(0.1, "random", "best", 16),
    "10% at random, 2 bits, best factor": pruned(0.1, "random", "best"),
    "10% at random, 2 bits, fitted": pruned(0.1, "random", "fitted"),
    "the 10% that weigh most, 2 bits, fitted": pruned(0.1, "most", "fitted"),
    "the 30% that weigh most, 2 bits, fitted": pruned(0.3, "most", "fitted"),
    "int2:64": dense("int2", 64),
    "int2:32": dense("int2", 32),
}


class Pair(LayerFitter):
    """Stores a fine-tune as its base and something beside, or alone where there is no base.

    Args:
        source: the fine-tune.
        text: what it is fitted to and measured on.
        base: the base's projections as its bundle has them, by name; None for none.
        beside: makes what is added; without a base it gets zeros.
    """

    def __init__(
        self,
        source: SourceWeights,
        text: CalibrationText,
        base: Mapping[str, F64] | None,
        beside: Beside,
    ) -> None:
        store = FittedLayers(Path(tempfile.mkdtemp(prefix="edgerun-delta-")), {})
        recipe = make_recipe("int2", method="residual")
        super().__init__(source, recipe, text, store, worker_threads(None))
        self._base, self._beside = base, beside
        self.bytes = 0.0

    def perplexity(self) -> tuple[float, float]:
        """As stored, and with the fine-tune's own weights."""
        try:
            (cost,) = self.run()
        finally:
            self._store.remove()
        return math.exp(cost.nats / cost.tokens), math.exp(cost.source_nats / cost.tokens)

    def _fit(self, work: Work, groups: Sequence[Group]) -> dict[str, PackedWeight]:
        seen = self._inputs(work, groups)
        for group in groups:
            inputs = seen[group[0].path]
            assert inputs.hessian is not None
            hessian = inputs.hessian.whole()
            for projection in group:
                name = f"model.layers.{work.layer}.{projection.path}.weight"
                rows = work.source.matrix(name)
                base = np.zeros(rows.shape) if self._base is None else self._base[name]
                target = corrected(rows, inputs, 1)
                stored = self._beside(base)(target, hessian)
                values = stored.values.astype(np.float32)
                work.quantised.replace(name, lambda values=values: values)
                self.bytes += stored.bytes
        return {}


def rounded_base(source: SourceWeights, text: CalibrationText) -> dict[str, F64]:
    """The projections of a bundle ``int4:32`` of a model, by name."""
    recipe = make_recipe("int4", method="residual", scales="fp16")
    values = {}
    with tempfile.TemporaryDirectory(prefix="edgerun-delta-") as folder:
        store = FittedLayers(Path(folder), {})
        LayerFitter(source, recipe, text, store, worker_threads(None)).run()
        for layer in range(source.spec.num_layers):
            for projection in source.spec.projections(layer):
                name = f"model.layers.{layer}.{projection.path}.weight"
                packed = store.packed(name)
                assert packed is not None
                values[name] = block_layout(packed.format).unpack(packed).astype(np.float64)
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each form: bits a weight beside the base's, perplexity of the text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base")
    parser.add_argument("fine_tune")
    parser.add_argument("--text", type=Path, required=True, help="of the fine-tune's kind")
    parser.add_argument("--calibrate", type=Path, required=True, help="of the fine-tune's kind")
    parser.add_argument("--base-text", type=Path, help="of the base's kind; else the former")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--calibration-windows", type=int, default=64)
    given = parser.parse_args(arguments)
    with open_checkpoint(given.base) as first, open_checkpoint(given.fine_tune) as second:
        sources = [interpret(each)[0] for each in (first, second)]
        tokenizer = tokenizer_of(first.tokenizer_files())

        def fitted_to(file: Path) -> CalibrationText:
            return read_calibration([file], tokenizer, given.calibration_windows, given.tokens)

        sample = read_sample(given.text, tokenizer, given.windows, given.tokens)
        base_text = fitted_to(given.base_text or given.calibrate)
        text = fitted_to(given.calibrate)
        text = CalibrationText(text.names, text.windows, (sample,))
        base = rounded_base(sources[0], base_text)
        weights = sum(each.size for each in base.values())
        print("fine-tune stored as\tbits a weight\tperplexity\tin floats")
        for name, (kind, block) in ALONE.items():
            form = blocks(kind, block)
            _print(f"{name} alone", Pair(sources[1], text, None, lambda _, f=form: f), weights)
        for name, beside in BESIDE.items():
            _print(f"base int4:32 and {name}", Pair(sources[1], text, base, beside), weights)


def _print(name: str, pair: Pair, weights: int) -> None:
    stored, floats = pair.perplexity()
    print(f"{name}\t{pair.bytes * 8 / weights:.2f}\t{stored:.4g}\t{floats:.4g}", flush=True)


if __name__ == "__main__":
    main()
