"""Exports checkpoints and compares what back-ends compute with what transformers computed.

    python -m tools.golden.differential.compare FOLDER... [--backends cpu reference]
        [--weights fp32] [--tolerance 1e-3] [--json FILE]

A folder is a checkpoint with a ``golden.npz``, or has such folders. The prompt is computed in
parts, its last tokens one by one as a reply's are. Each line says how far the logits are from
those recorded, in units of their range. The exit code is 1 if any differ, or if an export or a
back-end fails. What an export says that it does not support is listed, and no fault; where it says
that the context is shorter, the tokens within it are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import error_of, runner

TOLERANCE = 1e-3
FIRST, STEPS = 5, 8  # tokens of the first part of a prompt, and those that come one by one
SAME, DIFFERS, REFUSED, FAILED = "same", "differs", "refused", "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one checkpoint.

    Attributes:
        name: of its folder.
        verdict: ``same``, ``differs``, ``refused`` or ``failed``.
        says: why, or what the export warned of.
        tokens: how many were compared.
        differences: by back-end, the greatest in units of the logits' range.
    """

    name: str
    verdict: str
    says: str = ""
    tokens: int = 0
    differences: dict[str, float] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """What is printed."""
        numbers = [f"{name} {value:.1e}" for name, value in self.differences.items()]
        return "  ".join([f"{self.verdict:8}{self.name}", *numbers, self.says]).rstrip()


def main() -> None:
    """Compares what the command line names."""
    arguments = _arguments()
    results = []
    for folder in checkpoints(arguments.folders):
        result = compare(folder, arguments.backends, arguments.weights, arguments.tolerance)
        results.append(result)
        print(result.line, flush=True)
    counts = Counter(result.verdict for result in results)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "nothing")
    if arguments.json:
        text = json.dumps([asdict(result) for result in results], indent=1)
        arguments.json.write_text(text + "\n", "utf-8")
    sys.exit(counts[DIFFERS] + counts[FAILED] > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--backends", nargs="+", default=["cpu", "reference"])
    parser.add_argument("--weights", default="fp32")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def checkpoints(folders: Iterable[Path]) -> Iterator[Path]:
    """All folders with recorded logits among some and directly below them."""
    for folder in folders:
        for each in (folder, *sorted(folder.iterdir())):
            if (each / "golden.npz").exists():
                yield each


def compare(folder: Path, backends: Sequence[str], weights: str, tolerance: float) -> Result:
    """Exports one checkpoint and runs it through each back-end."""
    try:
        return _compared(folder, backends, weights, tolerance)
    except UnsupportedError as error:
        return Result(folder.name, REFUSED, str(error))
    except Exception as error:  # one that nobody expects is what this looks for
        return Result(folder.name, FAILED, f"{type(error).__name__}: {error}")


def _compared(folder: Path, backends: Sequence[str], weights: str, tolerance: float) -> Result:
    with TemporaryDirectory() as room, np.load(folder / "golden.npz") as golden:
        head = "fp32" if weights == "fp32" else None
        options = ExportOptions(weights=weights, head_weights=head)
        exported = export(folder, Path(room) / "bundle", options)
        ids, logits = within(golden, exported.manifest["model"]["context_length"])
        differences = {
            backend: float(error_of(computed(exported.folder, backend, ids), logits))
            for backend in backends
        }
    alike = all(difference <= tolerance for difference in differences.values())
    verdict = SAME if alike else DIFFERS
    return Result(folder.name, verdict, "; ".join(exported.warnings), len(ids), differences)


def within(
    golden: Mapping[str, NDArray[Any]], context: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and logits that fit into a context.

    Where not all fit, they are those of a short text, which may have a rope of its own.
    """
    ids, logits = golden["ids"].astype(np.int32), golden["logits"]
    if context < len(ids):
        logits = golden["short"][:context]
    return ids[: len(logits)], logits


def parts(ids: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """A prompt in two parts, and steps of one token."""
    count = len(ids)
    cuts = {FIRST, *range(count - STEPS, count)}
    return np.split(ids, sorted(cut for cut in cuts if 0 < cut < count))


def computed(bundle: Path, backend: str, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """The logits after each id."""
    with runner(bundle, backend) as model:
        return np.concatenate([model.run(part) for part in parts(ids)])


if __name__ == "__main__":
    main()
