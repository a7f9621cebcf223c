"""Holds what plans predict of prompts against what they take: here, and on a device.

    python -m tools.bench.placement [MODEL ...] [--device openvino:CPU] [--prompts N ...]

The machine must be calibrated (``edgerun doctor --calibrate``). A table in Markdown goes to
standard output, lines on the way to standard error, and with ``--results FILE`` all figures as JSON
into a file. Runs of both places
alternate, so that a slow moment of the machine does not fall on one of them alone, and the shortest
counts, as it does when kernels and devices are measured. No prompt begins like another, so nothing
is found in the cache. A prompt that does not fit the context is as long as that allows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edgerun
from edgerun.backends.registry import find_candidates
from edgerun.errors import EdgerunError, InputError
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.model.bundle import open_bundle
from edgerun.plan.requests.breakeven import Split
from edgerun.plan.requests.forecast import Forecast
from edgerun.plan.routes import plan_for
from edgerun.plan.tasks import Budget

HERE = "cpu"
PROMPTS = (32, 128, 512, 2048)
FEWEST_RUNS, MOST_RUNS = 2, 11
PAUSE_S = 0.2  # threads of the other place still look for work until then, and take a core
NEAR, NEARLY_BEST = 0.15, 1.05


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt of a model, by place.

    Attributes:
        model: name of its folder.
        tokens: of the prompt.
        predicted: seconds by place.
        measured: seconds by place, the shortest run.
        chosen: where the plan sends it unasked.
    """

    model: str
    tokens: int
    predicted: dict[str, float]
    measured: dict[str, float]
    chosen: str

    @property
    def best(self) -> str:
        """Where it was fastest."""
        return min(self.measured, key=lambda place: self.measured[place])

    @property
    def is_well_chosen(self) -> bool:
        """Whether it went where it is fastest, or takes hardly longer."""
        return self.measured[self.chosen] <= NEARLY_BEST * self.measured[self.best]

    def ratios(self) -> dict[str, float]:
        """Predicted over measured, by place."""
        return {place: self.predicted[place] / self.measured[place] for place in self.measured}


def predict(folder: Path, device: str, tokens: int) -> tuple[Forecast, str]:
    """How long prompts take, and where the plan sends one of so many tokens unasked.

    Raises:
        InputError: the device was not measured with the driver that is here.
    """
    candidates = find_candidates()
    graph, budget = open_bundle(folder).graph, Budget(prompt_tokens=tokens)
    plan = plan_for(graph, candidates, budget, weighs_all=True)
    split: Split | None = next((each for each in plan.splits if device in each.there.names), None)
    if split is None or split.forecast is None:
        reason = candidates.absent.get(device, "`edgerun doctor --calibrate` measures it")
        raise InputError(f"nothing is known of {device}: {reason}")
    goes = plan.prompts is not None and tokens - 1 >= plan.prompts.from_rows
    return split.forecast, device if goes else HERE


def seconds(llm: LLM, tokens: int, run: int) -> float:
    """Of a prompt that was never seen before, its last logits included."""
    ids = np.random.default_rng((tokens, run)).integers(0, llm.model.vocab_size, tokens).tolist()
    ids[0] = (MOST_RUNS * tokens + run) % llm.model.vocab_size
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "ignore_eos": True}
    time.sleep(PAUSE_S)
    stats = llm.generate(ids, **options).stats
    if stats.reused_tokens:
        raise AssertionError(f"{stats.reused_tokens} tokens of the prompt were in the cache")
    return stats.prefill_s


def measure(folder: Path, device: str, prompts: list[int], budget_s: float) -> Iterator[Row]:
    """Predicts and measures prompts of each length in both places."""
    with (
        edgerun.load(folder, place=f"prefill={HERE}") as here,
        edgerun.load(folder, place=f"prefill={device}") as there,
    ):
        longest = here.model.context - 1
        for tokens in sorted({min(each, longest) for each in prompts}):
            forecast, chosen = predict(folder, device, tokens)
            times: dict[str, list[float]] = {HERE: [], device: []}
            end = time.perf_counter() + budget_s
            for run in range(MOST_RUNS):
                times[HERE].append(seconds(here, tokens, run))
                times[device].append(seconds(there, tokens, run))
                if run + 1 >= FEWEST_RUNS and time.perf_counter() > end:
                    break
            path = folder.resolve()
            yield Row(
                path.parent.name if path.name == "bundle" else path.name,
                tokens,
                {HERE: forecast.seconds_here(tokens), device: forecast.seconds_there(tokens)},
                {place: min(each) for place, each in times.items()},
                chosen,
            )


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of a table in Markdown, in milliseconds, and what it comes to."""
    places = list(rows[0].measured)
    titles = [f"{place}: predicted | measured | ratio" for place in places]
    heads = ["model", "prompt tokens", *titles, "chosen", "best in hindsight"]
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (1 + 3 * len(places))}---|---|"
    for row in rows:
        figures = [
            f"{row.predicted[place] * 1e3:.4g} | {row.measured[place] * 1e3:.4g} | {ratio:.2f}"
            for place, ratio in row.ratios().items()
        ]
        cells = [row.model, f"{row.tokens:,}", *figures, row.chosen, row.best]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for place in places:
        near = sum(abs(row.ratios()[place] - 1) <= NEAR for row in rows)
        yield f"{place}: {near} of {len(rows)} predictions within {NEAR:.0%}"
    well = sum(row.is_well_chosen for row in rows)
    yield f"chosen is the best, or within {NEARLY_BEST - 1:.0%} of it: {well} of {len(rows)}"


def main() -> None:
    """Reads the command line and prints."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--device", default="openvino:CPU")
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row, at least 2 runs")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON, after every row")
    given = parser.parse_args()
    rows: list[Row] = []
    for folder in given.models or [resolve(None)]:
        try:
            for row in measure(folder, given.device, given.prompts, given.seconds):
                rows.append(row)
                say(row)
                if given.results:
                    given.results.write_text(json.dumps({"rows": [asdict(each) for each in rows]}))
        except EdgerunError as error:  # the others have their rows
            print(f"{folder}: {error}", file=sys.stderr, flush=True)
    if rows:
        print("\n".join(table(rows)))


def say(row: Row) -> None:
    """One line for those who wait."""
    ratios = ", ".join(f"{place} {each:.2f}" for place, each in row.ratios().items())
    line = f"{row.model}, {row.tokens} tokens: predicted over measured {ratios}"
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
