"""What zero points cost, and whether a mix of formats takes the sum of what its parts take.

    python -m tools.bench.formats [--model smollm2-135m] [--layers N] [--rounds 15] [--threads 1]
                                  [--scales fp16]

A model of random weights in a known shape, its head and embedding small, is stored in several ways.
Scales are float32 in all of them, in file and memory, or in all of them half precision.
The bundles answer prompts and reply in turn; the table has medians over rounds of ratios of times,
with quartiles. A rule that mixes two formats has a complement: together they store every projection
once in each format, as both formats whole do, and so should take as long.

Runs of one thread are measured by the processor's time, on which other programs have less
influence; more threads by the clock, which needs a machine that is free.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import edgerun
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.recipe import SCALES
from tools.bench import random_model

GROUP = 32
VOCABULARY = 4096  # the head is int8 in all bundles, and not what is compared
PLAIN, OTHER = "int4", "int2"
MIXES = {"layers in turn": "layers.*[02468].*", "feed-forward apart": "*.mlp.*"}
PHASES = ("reply", "prompt")
Round = dict[tuple[str, str], float]  # seconds by bundle and phase


def write_checkpoint(config: dict[str, Any], folder: Path) -> None:
    """Writes random weights of which no scale is half precision by chance.

    Of bfloat16 weights those of ``rtn`` with two bits and without zero points would all be, and lie
    in memory as such: a sixth of the bytes less than with zero points.
    """
    random_model.write(config, folder, dtype="F32")


def bundle_options(scales: str = "fp32") -> dict[str, ExportOptions]:
    """How each bundle is stored, by its name."""
    common: dict[str, Any] = {"group_size": GROUP, "method": "rtn", "scales": scales}
    stored = {
        kind: ExportOptions(weights=kind, **common)
        for plain in (PLAIN, OTHER)
        for kind in (plain, f"{plain}_asym")
    }
    for mix, pattern in MIXES.items():
        for rest, inside in ((PLAIN, OTHER), (OTHER, PLAIN)):
            rules = (f"{pattern}={inside}:{GROUP}",)
            stored[mixed(mix, rest)] = ExportOptions(weights=rest, rules=rules, **common)
    return stored


def mixed(mix: str, rest: str) -> str:
    """Name of the bundle that stores what a mix does not concern in a format."""
    return f"{mix}, the rest {rest}"


def ratios(rounds: list[Round]) -> Iterator[tuple[str, str, list[float]]]:
    """Each row's name and phase, and its ratio in every round: above 1 is faster than expected."""
    for phase in PHASES:
        for plain in (PLAIN, OTHER):
            speeds = [each[plain, phase] / each[f"{plain}_asym", phase] for each in rounds]
            yield f"{plain} with zero points", phase, speeds
        for mix in MIXES:
            halves = [mixed(mix, PLAIN), mixed(mix, OTHER)]
            speeds = [
                sum(each[plain, phase] for plain in (PLAIN, OTHER))
                / sum(each[half, phase] for half in halves)
                for each in rounds
            ]
            yield f"{PLAIN} and {OTHER} mixed, {mix}", phase, speeds


def main() -> None:
    """Makes the bundles, measures them and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=random_model.PRESETS, default="smollm2-135m")
    parser.add_argument("--layers", type=int, help="all if left out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=24, help="of a reply")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scales", choices=SCALES, default="fp32", help="of all bundles")
    given = parser.parse_args()
    rest = [given.tokens, given.prompt, given.threads]
    rest += [] if given.layers is None else [given.layers]
    if min(given.rounds - 1, *rest) < 1:
        parser.error("--rounds must be 2 or more, the other numbers 1 or more")
    config = {**random_model.PRESETS[given.model], "vocab_size": VOCABULARY}
    if given.layers:
        config["num_hidden_layers"] = given.layers
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_checkpoint(config, folder / "checkpoint")
        models = {}
        for number, (kind, options) in enumerate(bundle_options(given.scales).items()):
            export(folder / "checkpoint", folder / str(number), options)
            bundle = edgerun.load(folder / str(number), threads=given.threads, backend="cpu")
            models[kind] = stack.enter_context(bundle)
        rounds = measured(models, given.rounds + 1, given.prompt, given.tokens, given.threads)
    sys.stdout.write("| | | speed, of what is expected | quartiles |\n| --- | --- | --- | --- |\n")
    for what, phase, values in ratios(rounds[1:]):  # the first brings kernels into memory
        low, middle, high = statistics.quantiles(values, n=4)
        sys.stdout.write(f"| {what} | {phase} | {middle:.3f} | {low:.3f} to {high:.3f} |\n")


def measured(
    models: dict[str, edgerun.LLM], count: int, prompt: int, reply: int, threads: int
) -> list[Round]:
    """Times of so many rounds, in each of which every bundle answers one prompt and replies."""
    clock = time.process_time if threads == 1 else time.perf_counter
    rng = np.random.default_rng(0)

    def seconds(model: edgerun.LLM, length: int, tokens: int) -> float:
        ids = rng.integers(0, model.model.vocab_size, length).tolist()
        began = clock()
        model.generate(ids, max_tokens=tokens, temperature=0, ignore_eos=True)
        return clock() - began

    lengths = {"reply": (2, reply), "prompt": (prompt, 1)}
    return [
        {
            (kind, phase): seconds(model, *lengths[phase])
            for kind, model in models.items()
            for phase in PHASES
        }
        for _ in range(count)
    ]


if __name__ == "__main__":
    main()
