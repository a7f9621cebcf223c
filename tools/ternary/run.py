"""Whose layers a run's folder holds; no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from edgerun.errors import InputError
from edgerun_export.calibrate.fitted import digest
from edgerun_export.source.weights import SourceWeights

STATE = "logits.pt"  # of the second stage
_KEY = "run.json"


def model_digest(source: SourceWeights) -> str:
    """SHA-256 of all weights of a model."""
    shapes = source.spec.tensors()
    return digest(
        (name, source.vector(name) if len(shape) == 1 else source.matrix(name))
        for name, shape in sorted(shapes.items())
    )


def begin_run(run: Path, model: str, settings: Mapping[str, str]) -> None:
    """Makes the folder of the first stage, or sees that it was begun in the same way.

    Args:
        run: the folder.
        model: of ``model_digest``.
        settings: text and options.

    Raises:
        InputError: it holds layers of another model, or fitted with other text or options; or no
            layers, and what the second stage made of some.
    """
    run.mkdir(parents=True, exist_ok=True)
    key = {"model": model, "settings": dict(settings)}
    if not any(run.glob("layer-*.npz")):
        if (run / STATE).exists():
            raise InputError(
                f"'{run / STATE}' was learnt from layers that are gone, and the second stage would "
                "go on with it whatever is fitted now; remove it, or give another folder"
            )
        (run / _KEY).write_text(json.dumps(key), encoding="utf-8")
    elif _read(run) != key:
        raise InputError(
            f"'{run}' holds layers of another model, or fitted with other text or options; give "
            "another folder, or those with which it was begun"
        )


def check_model(run: Path, model: str) -> None:
    """Sees that the first stage was of the same model.

    Raises:
        InputError: it was not, or there was none.
    """
    if _read(run).get("model") != model:
        raise InputError(
            f"'{run}' has no layers of this model; run python -m tools.ternary.blocks first"
        )


def _read(run: Path) -> dict[str, object]:
    file = run / _KEY
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
