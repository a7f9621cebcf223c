"""Holds what plans predict of prompts against what they take: here, and on a device.

    python -m tools.bench.placement [MODEL ...] [--device openvino:CPU] [--prompts N ...]

The machine must be calibrated (``edgerun doctor --calibrate``). A table goes to standard error, one
line of JSON to standard output. Runs of both places alternate, so that a slow moment of the machine
does not fall on one of them alone, and the shortest counts, as it does when devices are measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import edgerun
from edgerun.backends.registry import find_candidates
from edgerun.errors import InputError
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.model.bundle import open_bundle
from edgerun.plan.breakeven import Split
from edgerun.plan.routes import plan_for
from edgerun.plan.tasks import Budget

HERE = "cpu"
WARM_UPS, RUNS = 2, 11


def predict(folder: Path, device: str, tokens: int) -> tuple[Split, str]:
    """The terms for a prompt, and where the plan sends it unasked.

    Raises:
        InputError: the device was not measured with the driver that is here.
    """
    candidates = find_candidates()
    graph, budget = open_bundle(folder).graph, Budget(prompt_tokens=tokens)
    plan = plan_for(graph, candidates, budget, weighs_all=True)
    split = next((each for each in plan.splits if device in each.there.names), None)
    if split is None:
        reason = candidates.absent.get(device, "`edgerun doctor --calibrate` measures it")
        raise InputError(f"nothing is known of {device}: {reason}")
    goes = plan.prompts is not None and tokens - 1 >= plan.prompts.from_rows
    return split, device if goes else HERE


def seconds(llm: LLM, tokens: int, seed: int) -> float:
    """Of a prompt that was never seen before, its last logits included."""
    ids = np.random.default_rng(seed).integers(0, llm.model.vocab_size, tokens).tolist()
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "ignore_eos": True}
    return llm.generate(ids, **options).stats.prefill_s


def measure(folder: Path, device: str, prompts: list[int]) -> list[dict[str, Any]]:
    """A row for each length: predicted and measured seconds of both places, and the choice."""
    rows = []
    with (
        edgerun.load(folder, place=f"prefill={HERE}") as here,
        edgerun.load(folder, place=f"prefill={device}") as there,
    ):
        for tokens in (each for each in prompts if each < here.model.context):
            split, chosen = predict(folder, device, tokens)
            times: dict[str, list[float]] = {HERE: [], device: []}
            for seed in range(WARM_UPS + RUNS):
                times[HERE].append(seconds(here, tokens, seed))
                times[device].append(seconds(there, tokens, seed))
            measured = {name: min(each[WARM_UPS:]) for name, each in times.items()}
            rows.append(
                {
                    "model": folder.name,
                    "tokens": tokens,
                    "predicted": {
                        HERE: split.seconds_here(tokens),
                        device: split.seconds_there(tokens),
                    },
                    "measured": measured,
                    "chosen": chosen,
                    "best": min(measured, key=lambda name: measured[name]),
                }
            )
    return rows


def line(row: dict[str, Any]) -> str:
    """A row for people, in milliseconds."""
    cells = [
        f"{name}: {row['predicted'][name] * 1e3:8.2f} | {row['measured'][name] * 1e3:8.2f}"
        for name in row["predicted"]
    ]
    return (
        f"{row['model']:20} {row['tokens']:5} | {' | '.join(cells)} | chosen {row['chosen']}, "
        f"best {row['best']}"
    )


def main() -> None:
    """Reads the command line and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--device", default="openvino:CPU")
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 128, 512])
    given = parser.parse_args()
    rows = []
    for folder in given.models or [resolve(None)]:
        for row in measure(folder, given.device, given.prompts):
            rows.append(row)
            print(line(row), file=sys.stderr, flush=True)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
