"""Measures settings one after the other, and remembers what is done."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgerun._version import __version__
from edgerun.errors import InputError
from edgerun.files.output import write_output
from edgerun_export.calibrate.costs import Cost
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.mixed import (
    check_budget,
    check_held_out,
    mixed_recipe,
    sensitivity_of,
)
from edgerun_export.calibrate.sensitivity import Sensitivity
from edgerun_export.calibrate.text import CalibrationText, Sample
from edgerun_export.calibrate.workers import single_threaded
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.quality.settings import Setting
from edgerun_export.recipe import Recipe, make_recipe
from edgerun_export.rules import check_offsets
from edgerun_export.sizes import weight_bytes
from edgerun_export.source.weights import SourceWeights

# How a refusal names what a table was measured with, by its key in the file.
_SAID = {
    "version": "version of edgerun",
    "model": "model",
    "weights_sha256": "model",
    "transforms": "transform",
    "calibration": "text to fit to, or number of its windows",
    "samples": "text, or number of its windows",
}
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What a text costs.

    Attributes:
        bits_per_byte: of the text; does not depend on the vocabulary.
        perplexity: a token.
    """

    bits_per_byte: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class Row:
    """What a setting costs.

    Attributes:
        setting: its name; ``source`` for the weights as they are.
        bytes: of all weights in the bundle, with an int8 embedding and head (fp32 where their
            rows have no whole blocks).
        texts: figures by the name of the text.
        seconds: that it took.
    """

    setting: str
    bytes: int
    texts: dict[str, Figures]
    seconds: float


class Saved:
    """Rows in a file, so that a measurement that was stopped goes on.

    Args:
        path: the file; None for rows that are forgotten.
        key: what they depend on, but for the setting.

    Raises:
        InputError: the file holds something else.
    """

    def __init__(self, path: Path | None, key: dict[str, Any]) -> None:
        self._path, self._key = path, json.loads(json.dumps(key))
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            rows = [_row(each) for each in content["rows"]]
            key = dict(content["of"])
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise InputError(f"--save {path} is no table of this command; name another") from error
        others = {said: 0 for name, said in _SAID.items() if key.get(name) != self._key[name]}
        if others:
            raise InputError(
                f"--save {path} was measured with another {' and another '.join(others)}; name "
                "another file, or delete it"
            )
        self.rows = {row.setting: row for row in rows}

    def add(self, row: Row) -> None:
        """Remembers a row.

        Raises:
            StorageError: the file cannot be written.
        """
        self.rows[row.setting] = row
        if self._path is not None:
            content = {"of": self._key, "rows": [asdict(each) for each in self.rows.values()]}
            write_output(self._path, json.dumps(content, indent=1).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Texts:
    """What is read.

    Attributes:
        calibration: what weights are fitted to, with samples that are held out of it; may have
            no windows.
        measured: what rows are measured on.
    """

    calibration: CalibrationText
    measured: tuple[Sample, ...]

    @property
    def fitted(self) -> CalibrationText:
        """What weights are fitted to, with what is measured for its samples."""
        return replace(self.calibration, samples=self.measured)


def key_of(checkpoint: Checkpoint, transforms: Sequence[str], texts: Texts) -> dict[str, Any]:
    """What rows depend on, but for the setting.

    Args:
        checkpoint: the model, all of whose weights are read once.
        transforms: what is done to them, and the setting that this is done for.
        texts: what weights are fitted to and measured on.
    """
    samples = [
        [sample.name, sample.tokens, CalibrationText((), sample.windows).digest]
        for sample in texts.measured
    ]
    return {
        "version": __version__,
        "model": checkpoint.source.location,
        "weights_sha256": checkpoint.digest(),
        "transforms": list(transforms),
        "calibration": texts.calibration.as_dict(),
        "samples": samples,
    }


class Measurement:
    """Measures settings one after the other.

    Args:
        source: the model.
        texts: what weights are fitted to and measured on.
        threads: how many work.
        progress: called with what is at work and the fraction done.
    """

    def __init__(
        self,
        source: SourceWeights,
        texts: Texts,
        threads: int,
        progress: Callable[[str, float], None],
    ) -> None:
        self._source, self._texts = source, texts
        self._threads, self._progress = threads, progress
        self._sensitivities: dict[str, Sensitivity] = {}

    def run(self, settings: Sequence[Setting], saved: Saved) -> Iterator[Row]:
        """Measures settings, those that are saved excepted; the source's weights come first.

        Args:
            settings: what is compared.
            saved: what is known already, and where to put the rest.

        Raises:
            UnsupportedError: there is nothing to choose formats for, or no bundle has a setting.
            InputError: no mix of formats has a size that is asked for, or no text is left to weigh
                them on.
            CheckpointError: the model computes what is no number.
            StorageError: results cannot be written.
        """
        for setting in settings:
            recipe = setting.recipe(self._source.spec.hidden_size)
            check_offsets(recipe, self._source.spec)
            if setting.budget is not None:
                check_held_out(self._texts.calibration)
                check_budget(self._source, recipe, setting.budget)
        for setting in settings:
            if setting.name not in saved.rows:
                row, unrounded = self._measured(setting)
                if unrounded.setting not in saved.rows:
                    saved.add(unrounded)
                saved.add(row)
        names = ["source", *(setting.name for setting in settings)]
        yield from (saved.rows[name] for name in names)

    def _measured(self, setting: Setting) -> tuple[Row, Row]:
        """Rows of a setting and of the source."""
        began = time.perf_counter()
        recipe, spec = self._recipe(setting), self._source.spec
        size = weight_bytes(spec, recipe)  # which may be refused, and that before hours of work
        with _scratch() as folder:
            store = FittedLayers(folder / "layers", {})
            fitter = LayerFitter(
                self._source,
                recipe,
                self._texts.fitted,
                store,
                self._threads,
                lambda done: self._progress(setting.name, done),
            )
            costs = fitter.run()
        seconds = round(time.perf_counter() - began, 1)
        texts = {cost.name: _figures(cost, cost.nats) for cost in costs}
        before = {cost.name: _figures(cost, cost.source_nats) for cost in costs}
        return (
            Row(setting.name, size, texts, seconds),
            Row("source", weight_bytes(spec, make_recipe("fp32")), before, 0.0),
        )

    def _recipe(self, setting: Setting) -> Recipe:
        recipe = setting.recipe(self._source.spec.hidden_size)
        if setting.budget is None:
            return recipe
        if setting.method not in self._sensitivities:
            what = f"what formats cost, by {setting.method}"
            with single_threaded(), _scratch() as folder:
                self._sensitivities[setting.method] = sensitivity_of(
                    self._source,
                    recipe,
                    self._texts.calibration,
                    folder,
                    lambda done: self._progress(what, done),
                )
        sensitivity = self._sensitivities[setting.method]
        text = self._texts.calibration
        return mixed_recipe(self._source, recipe, text, sensitivity, setting.budget)[0]


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for what is computed, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgerun-quality-") as folder:
        yield Path(folder)


def _figures(cost: Cost, nats: float) -> Figures:
    bits = nats / math.log(2) / cost.bytes
    perplexity = math.exp(min(nats / cost.tokens, 700))
    return Figures(float(f"{bits:.{_DIGITS}g}"), float(f"{perplexity:.{_DIGITS}g}"))


def _row(content: dict[str, Any]) -> Row:
    texts = {name: Figures(**figures) for name, figures in content["texts"].items()}
    return Row(content["setting"], content["bytes"], texts, content["seconds"])
