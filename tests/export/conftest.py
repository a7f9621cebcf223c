"""Bundles made from the golden checkpoints, each once a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.pipeline import ExportOptions, ExportResult, export
from edgerun_export.source.weights import SourceWeights

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@dataclass(frozen=True)
class Golden:
    """A tiny checkpoint with the logits that transformers computed."""

    folder: Path
    spec: DecoderSpec
    ids: NDArray[np.int64]
    logits: NDArray[np.float32]
    inv_freq: NDArray[np.float32]


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    def load(name: str) -> Golden:
        folder = GOLDEN / name
        config = json.loads((folder / "config.json").read_text())
        with np.load(folder / "golden.npz") as data:
            ids = data["ids"].astype(np.int64)
            return Golden(folder, describe(config), ids, data["logits"], data["inv_freq"])

    return load


Exporter = Callable[..., ExportResult]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """Exports a golden checkpoint, or any source; equal calls share a bundle."""
    done: dict[str, ExportResult] = {}

    def make(source: str | Path, **options: Any) -> ExportResult:
        path = GOLDEN / source if isinstance(source, str) else source
        key = repr((path, sorted(options.items())))
        if key not in done:
            out = tmp_path_factory.mktemp("bundles") / "bundle"
            done[key] = export(path, out, ExportOptions(**options))
        return done[key]

    yield make


@pytest.fixture
def source_weights() -> Iterator[Callable[[Golden], SourceWeights]]:
    from edgerun_export.checkpoint import open_checkpoint

    opened = []

    def make(golden: Golden) -> SourceWeights:
        opened.append(open_checkpoint(str(golden.folder)))
        return SourceWeights(opened[-1], golden.spec)

    yield make
    for checkpoint in opened:
        checkpoint.close()
