"""Uses what a package added, in a process of its own, and prints what came of it as JSON.

    python -m tests.support.extending CHECKPOINT FOLDER

``tests/test_extending.py`` runs it with the package on the path.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import edgerun
from edgerun.backends.registry import backend_names
from edgerun.cli.main import main
from edgerun.formats import PackedWeight
from edgerun.llm.llm import LLM
from edgerun.model.bundle import open_bundle
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, quantise_rows
from tools import sampling_options

PROMPT = [1, 5, 9, 2, 7]


def printed(*arguments: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(arguments)
    return out.getvalue()


def refusal(call: Callable[[], Any]) -> str:
    """What an error says."""
    try:
        call()
    except edgerun.EdgerunError as error:
        return str(error)
    return ""


def logits(llm: LLM, ids: list[int]) -> np.ndarray:
    return np.concatenate([block.copy() for block in llm.logits(ids)])


def architecture(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Exports the toy's checkpoint without rounding, and runs it on what was recorded."""
    bundle = folder / "float"
    result = export(checkpoint, bundle, ExportOptions(weights="fp32", verify=True))
    with np.load(checkpoint / "golden.npz") as data:
        ids, expected = data["ids"].tolist(), data["logits"]
    with edgerun.load(bundle, kv_cache="fp32") as llm:
        error = np.abs(logits(llm, ids) - expected).max() / np.ptp(expected)
    return {"error": float(error), "name": result.manifest["model"]["architecture"]}


def weights(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Exports with the toy's format and method; compares codes with those of a plain division."""
    result = export(checkpoint, folder / "packed", ExportOptions(weights="int4s", method="absmax"))
    layout = block_layout("int4s")
    rows = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    packed = quantise_rows(rows, "int4s", 64, "absmax")
    expected = np.rint(rows / np.abs(rows).max(axis=1, keepdims=True) * 7)
    stored = [
        layout.integers(constant)
        for constant in open_bundle(folder / "packed").graph.constants.values()
        if isinstance(constant, PackedWeight) and constant.format == "int4s"
    ]
    return {
        "recipe": result.manifest["recipe"],
        "equal": bool((layout.integers(packed) == expected).all()),
        "matrices": len(stored),
        "range": [min(int(each.min()) for each in stored), max(int(each.max()) for each in stored)],
        "help": printed("export", "--help"),
    }


def backend(folder: Path) -> dict[str, Any]:
    """Runs the toy's back-end together with the CPU's."""
    found: dict[str, Any] = {"names": backend_names()}
    values = {}
    for name in ("normer", "reference"):
        with edgerun.load(folder / "packed", backend=name, kv_cache="fp32") as llm:
            values[name] = logits(llm, PROMPT)
            found[name] = [each.name for each in llm.model.backends]
            found[f"{name} ids"] = llm.generate(PROMPT, temperature=0, max_tokens=8).ids
    error = np.abs(values["normer"] - values["reference"]).max() / np.ptp(values["reference"])
    return {**found, "error": float(error)}


def sampler(folder: Path) -> dict[str, Any]:
    """Generates with the toy's processor."""
    with edgerun.load(folder / "packed", backend="cpu") as llm:

        def generate(**options: Any) -> list[int]:
            return llm.generate(PROMPT, max_tokens=8, ignore_eos=True, **options).ids

        return {
            "greedy": generate(temperature=0),
            "narrow": generate(temperature=1, seed=1, top_n_sigma=1e-6),
            "wide": generate(temperature=1, seed=1, top_n_sigma=50),
            "off": generate(temperature=1, seed=1),
            "refusal": refusal(lambda: generate(top_n_sigma=101)),
            "misspelt": refusal(lambda: generate(top_n_sigmas=1)),
            "help": printed("run", "--help"),
            "table": sampling_options.table(),
            "keywords": sampling_options.keywords(),
        }


def use(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Uses everything once."""
    return {
        "architecture": architecture(checkpoint, folder),
        "weights": weights(checkpoint, folder),
        "backend": backend(folder),
        "sampler": sampler(folder),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(use(Path(sys.argv[1]), Path(sys.argv[2]))))
