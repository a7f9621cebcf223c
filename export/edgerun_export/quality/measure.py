"""Measures settings one after the other, and remembers what is done."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgerun._version import __version__
from edgerun.errors import InputError
from edgerun.files.private import write_atomically
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import Cost, LayerFitter
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.quality.settings import Setting
from edgerun_export.recipe import make_recipe
from edgerun_export.sizes import weight_bytes
from edgerun_export.source.weights import SourceWeights

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
        bytes: of all weights in the bundle, with an int8 embedding and head.
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
            key = content["of"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"--save {path} is no table of this command; name another") from error
        if key != self._key:
            raise InputError(
                f"--save {path} was measured with another model, text or version; name another "
                "file, or delete it"
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
            write_atomically(self._path, json.dumps(content, indent=1).encode() + b"\n")


def key_of(location: str, text: CalibrationText) -> dict[str, Any]:
    """What rows depend on, but for the setting."""
    samples = [[sample.name, CalibrationText((), sample.windows).digest] for sample in text.samples]
    return {
        "version": __version__,
        "model": location,
        "calibration": text.as_dict(),
        "samples": samples,
    }


def measure(
    source: SourceWeights,
    settings: Sequence[Setting],
    text: CalibrationText,
    saved: Saved,
    threads: int,
    progress: Callable[[str, float], None],
) -> Iterator[Row]:
    """Measures settings, those that are saved excepted; the source's weights come first.

    Args:
        source: the model.
        settings: what is compared.
        text: what weights are fitted to and measured on.
        saved: what is known already, and where to put the rest.
        threads: how many work.
        progress: called with the setting's name and the fraction done.

    Raises:
        CheckpointError: the model computes what is no number.
        StorageError: results cannot be written.
    """
    for setting in settings:
        if setting.name not in saved.rows:
            row, unrounded = _measured(source, setting, text, threads, progress)
            if unrounded.setting not in saved.rows:
                saved.add(unrounded)
            saved.add(row)
    names = ["source", *(setting.name for setting in settings)]
    yield from (saved.rows[name] for name in names)


def _measured(
    source: SourceWeights,
    setting: Setting,
    text: CalibrationText,
    threads: int,
    progress: Callable[[str, float], None],
) -> tuple[Row, Row]:
    """Rows of a setting and of the source."""
    began = time.perf_counter()
    recipe = setting.recipe()
    with tempfile.TemporaryDirectory(prefix="edgerun-quality-") as folder:
        store = FittedLayers(Path(folder) / "layers", {})
        fitter = LayerFitter(
            source, recipe, text, store, threads, lambda done: progress(setting.name, done)
        )
        costs = fitter.run()
    seconds = round(time.perf_counter() - began, 1)
    texts = {cost.name: _figures(cost, cost.nats) for cost in costs}
    before = {cost.name: _figures(cost, cost.source_nats) for cost in costs}
    float_bytes = weight_bytes(source.spec, make_recipe("fp32"))
    return (
        Row(setting.name, weight_bytes(source.spec, recipe), texts, seconds),
        Row("source", float_bytes, before, 0.0),
    )


def _figures(cost: Cost, nats: float) -> Figures:
    bits = nats / math.log(2) / cost.bytes
    perplexity = math.exp(min(nats / cost.tokens, 700))
    return Figures(float(f"{bits:.{_DIGITS}g}"), float(f"{perplexity:.{_DIGITS}g}"))


def _row(content: dict[str, Any]) -> Row:
    texts = {name: Figures(**figures) for name, figures in content["texts"].items()}
    return Row(content["setting"], content["bytes"], texts, content["seconds"])
