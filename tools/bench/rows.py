"""What a call costs by its rows, for models of three shapes and every instruction set present.

    python -m tools.bench.rows --work DIR [--models NAME ...] [--layers N] [--isas NAME ...]

Models other than the default one are random in the true shape: speed does not depend on the
values. They are made in DIR on first use, which takes minutes and gigabytes; ``--layers`` makes
them shorter. ``edgerun bench --rows`` measures each in a process of its own; the table, in
Markdown, holds the time of so many rows divided by the time of one, and the milliseconds of one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from edgerun.kernels.isa import available_isas
from edgerun_export.pipeline import ExportOptions, export
from tools.bench import random_model
from tools.golden.byte_tokenizer import BOS, EOS

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
DEFAULT = "default"
# How the shapes are exported; the default model comes with edgerun.
OPTIONS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {"weights": "int4", "group_size": 32, "head_weights": "int4"},
    "bitnet-2b-4t": {"weights": "ternary", "head_weights": "int8"},
}


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=[DEFAULT, *OPTIONS], default=None)
    parser.add_argument("--layers", type=int, help="of the random models; all if left out")
    parser.add_argument("--isas", nargs="+", default=available_isas())
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    sys.stdout.write(line(["model", "instruction set", "ms", *map(str, ROWS[1:])]))
    sys.stdout.write(line(["---"] * (2 + len(ROWS))))
    for name in arguments.models or [DEFAULT, *OPTIONS]:
        model = None if name == DEFAULT else bundle(name, arguments.work, arguments.layers)
        for isa in arguments.isas:
            figures = measure(model, isa, arguments.repeat)
            ratios = [f"{each['ratio']:.2f}" for each in figures[1:]]
            sys.stdout.write(line([name, isa, f"{figures[0]['ms']:.3f}", *ratios]))
            sys.stdout.flush()


def line(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def bundle(name: str, work: Path, layers: int | None) -> Path:
    """The random model of a shape, made unless it is there."""
    config = dict(random_model.PRESETS[name])
    config |= {"bos_token_id": BOS, "eos_token_id": EOS}
    if layers:
        config["num_hidden_layers"] = layers
    stem = f"{name}-{config['num_hidden_layers']}"
    out, checkpoint = work / stem, work / f"{stem}-checkpoint"
    if not (out / "manifest.json").exists():
        random_model.write(config, checkpoint)
        export(checkpoint, out, ExportOptions(**OPTIONS[name], force=True))
    return out


def measure(model: Path | None, isa: str, repeat: int) -> list[dict[str, Any]]:
    """What ``edgerun bench --rows`` says of a model with an instruction set."""
    command = [sys.executable, "-m", "edgerun", "bench", *([str(model)] if model else [])]
    command += ["--rows", ",".join(map(str, ROWS)), "--json", "-p", "32", "-n", "4"]
    done = subprocess.run(
        [*command, "--repeat", str(repeat)],
        env={**os.environ, "EDGERUN_ISA": isa},
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return figures


if __name__ == "__main__":
    main()
