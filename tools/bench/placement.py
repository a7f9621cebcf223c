"""Holds what plans predict of prompts against what they take: here, and on a device.

    python -m tools.bench.placement [MODEL ...] [--device openvino:CPU] [--prompts N ...]

The machine must be calibrated (``edgerun doctor --calibrate``). A table in Markdown goes to
standard output, lines on the way to standard error, and with ``--results FILE`` all figures as JSON
into a file. The first run of each cell warms up: it compiles networks. Runs of both places
alternate, so that a slow moment of the machine does not fall on one of them alone, and the shortest
counts, as it does when kernels and devices are measured. Before and after each run a gauge tells
how fast the machine multiplies and reads: a run during which it was not as fast as at the
calibration, within 8%, is left out and repeated (``gauge.py``). No prompt begins like another, so
nothing is found in the cache. A prompt that does not fit the context is as long as that allows.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import edgerun
from edgerun.backends.registry import find_candidates
from edgerun.errors import EdgerunError, InputError
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.machine.profile import machine_profile
from edgerun.model.bundle import open_bundle
from edgerun.plan.requests.breakeven import Split
from edgerun.plan.requests.forecast import Forecast
from edgerun.plan.routes import plan_for
from edgerun.plan.tasks import Budget
from tools.bench.gauge import Gauge, is_as_calibrated

LOG = logging.getLogger(__name__)
HERE = "cpu"
PROMPTS = (32, 128, 512, 2048)
FEWEST_RUNS, MOST_RUNS = 2, 11  # that count, of a cell
MOST_REPEATS, MOST_SECONDS = 8, 100.0  # runs left out of a cell, and of all of its runs
RUN_S = 0.05  # prompts that are shorter are repeated, as in measuring kernels
PAUSE_S = 0.2  # threads of the other place still look for work until then, and take a core
NEAR, NEARLY_BEST = 0.15, 1.05


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt of a model, by place.

    Attributes:
        model: name of its folder.
        tokens: of the prompt.
        predicted: seconds by place.
        measured: seconds by place, the shortest run that counts; of all runs where none does.
        chosen: where the plan sends it unasked.
        counted: by place, how many runs count.
        left_out: by place, during how many the machine was not as it was when calibrated.
    """

    model: str
    tokens: int
    predicted: dict[str, float]
    measured: dict[str, float]
    chosen: str
    counted: dict[str, int]
    left_out: dict[str, int]

    @property
    def best(self) -> str:
        """Where it was fastest."""
        return min(self.measured, key=lambda place: self.measured[place])

    @property
    def is_well_chosen(self) -> bool:
        """Whether it went where it is fastest, or takes hardly longer."""
        return self.measured[self.chosen] <= NEARLY_BEST * self.measured[self.best]

    def runs(self, place: str) -> str:
        """How many runs count, and how many were left out; a mark where too few count."""
        mark = "" if self.counted[place] >= FEWEST_RUNS else " (too few)"
        return f"{self.counted[place]} + {self.left_out[place]}{mark}"

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


def seconds(llm: LLM, tokens: int, number: int) -> float:
    """Of a prompt that was never seen before, its last logits included."""
    ids = np.random.default_rng((tokens, number)).integers(0, llm.model.vocab_size, tokens).tolist()
    ids[0] = number % llm.model.vocab_size
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "ignore_eos": True}
    stats = llm.generate(ids, **options).stats
    if stats.reused_tokens:
        raise AssertionError(f"{stats.reused_tokens} tokens of the prompt were in the cache")
    return stats.prefill_s


def reading_seconds(folder: Path, tokens: int, call_rows: int) -> float:
    """For the weights of the layers, in all calls of a prompt."""
    graph, profile = open_bundle(folder).graph, machine_profile()
    names = {node.inputs[1] for node in graph.nodes if node.op == "linear"}
    nbytes = sum(graph.constants[name].nbytes for name in names)
    return nbytes * -(-tokens // call_rows) / profile.read_speed(profile.threads)


class Cell:
    """Runs of prompts of one length in one place.

    Args:
        llm: the place.
        tokens: of each prompt.
        gauge: says whether a run counts.
        numbers: of prompts, none of them twice.
        memory_share: of a prompt's time that weights take to be read, as is predicted.
    """

    def __init__(
        self, llm: LLM, tokens: int, gauge: Gauge, numbers: Iterator[int], memory_share: float
    ) -> None:
        self._llm, self._tokens, self._gauge, self._numbers = llm, tokens, gauge, numbers
        self._memory_share = memory_share
        self.counted: list[float] = []
        self.left_out: list[float] = []
        self._run()

    @property
    def is_finished(self) -> bool:
        """Whether no further run is made."""
        return (
            len(self.counted) >= MOST_RUNS
            or len(self.left_out) >= MOST_REPEATS
            or sum(self.counted) + sum(self.left_out) > MOST_SECONDS
        )

    @property
    def is_enough(self) -> bool:
        """Whether there are as many runs as are wanted at least, or can be had."""
        return len(self.counted) >= FEWEST_RUNS or self.is_finished

    @property
    def seconds(self) -> float:
        """Of the shortest run."""
        return min(self.counted or self.left_out)

    def take(self) -> None:
        """Makes one more run, unless there were enough."""
        if self.is_finished:
            return
        time.sleep(PAUSE_S)
        before = self._gauge.speeds()
        taken = self._run()
        time.sleep(PAUSE_S)
        speeds = before, self._gauge.speeds()
        is_same = all(is_as_calibrated(each, self._memory_share) for each in speeds)
        (self.counted if is_same else self.left_out).append(taken)
        LOG.debug("%d tokens: %.4f s, speeds %s, counts: %s", self._tokens, taken, speeds, is_same)

    def _run(self) -> float:
        """Seconds of the shortest of as many prompts as fill a moment: threads wake up first."""
        end, best = time.perf_counter() + RUN_S, float("inf")
        while best == float("inf") or time.perf_counter() < end:
            best = min(best, seconds(self._llm, self._tokens, next(self._numbers)))
        return best


def measure(
    folder: Path, device: str, prompts: list[int], budget_s: float, gauge: Gauge
) -> Iterator[Row]:
    """Predicts and measures prompts of each length in both places."""
    with (
        edgerun.load(folder, place=f"prefill={HERE}") as here,
        edgerun.load(folder, place=f"prefill={device}") as there,
    ):
        longest, numbers = here.model.context - 1, count()
        for tokens in sorted({min(each, longest) for each in prompts}):
            forecast, chosen = predict(folder, device, tokens)
            predicted = {
                HERE: forecast.seconds_here(tokens),
                device: forecast.seconds_there(tokens),
            }
            read_s = reading_seconds(folder, tokens, forecast.call_rows)
            cells = {
                place: Cell(llm, tokens, gauge, numbers, min(read_s / predicted[place], 1.0))
                for place, llm in ((HERE, here), (device, there))
            }
            end = time.perf_counter() + budget_s
            while not all(cell.is_enough for cell in cells.values()) or (
                time.perf_counter() < end and not all(cell.is_finished for cell in cells.values())
            ):
                for cell in cells.values():
                    cell.take()
            path = folder.resolve()
            yield Row(
                path.parent.name if path.name == "bundle" else path.name,
                tokens,
                predicted,
                {place: cell.seconds for place, cell in cells.items()},
                chosen,
                {place: len(cell.counted) for place, cell in cells.items()},
                {place: len(cell.left_out) for place, cell in cells.items()},
            )


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of a table in Markdown, in milliseconds, and what it comes to.

    Runs are those that count and, after a plus, those that were left out.
    """
    places = list(rows[0].measured)
    titles = [f"{place}: predicted | measured | ratio | runs" for place in places]
    heads = ["model", "prompt tokens", *titles, "chosen", "best in hindsight"]
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (1 + 4 * len(places))}---|---|"
    for row in rows:
        figures = [
            f"{row.predicted[place] * 1e3:.4g} | {row.measured[place] * 1e3:.4g} | {ratio:.2f}"
            f" | {row.runs(place)}"
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
    parser.add_argument("--runs", action="store_true", help="also a line for each run")
    given = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    LOG.setLevel(logging.DEBUG if given.runs else logging.WARNING)
    with closing(Gauge(machine_profile())) as gauge:
        rows = measure_all(given, gauge)
    if rows:
        print("\n".join(table(rows)))


def measure_all(given: argparse.Namespace, gauge: Gauge) -> list[Row]:
    """The rows of all models, written into the file of results after each."""
    rows: list[Row] = []
    for folder in given.models or [resolve(None)]:
        try:
            for row in measure(folder, given.device, given.prompts, given.seconds, gauge):
                rows.append(row)
                say(row)
                if given.results:
                    given.results.write_text(json.dumps({"rows": [asdict(each) for each in rows]}))
        except EdgerunError as error:  # the others have their rows
            print(f"{folder}: {error}", file=sys.stderr, flush=True)
    return rows


def say(row: Row) -> None:
    """One line for those who wait."""
    ratios = ", ".join(f"{place} {each:.2f}" for place, each in row.ratios().items())
    runs = ", ".join(row.runs(place) for place in row.measured)
    line = f"{row.model}, {row.tokens} tokens: predicted over measured {ratios}; runs {runs}"
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
