"""Runs random commands on the simulated overlay, in several geometries, memories and paces.

    python -m edgerun_hw.simulate.fuzz --cases 2000 --mishaps 10

Everything follows from ``--seed``: the same numbers give the same cases.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgerun.errors import EdgerunError
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.simulate.cases import MAX_LOOKUPS, random_case, run_cases
from edgerun_hw.simulate.memory import DDR_PRESETS
from edgerun_hw.simulate.mishaps import run_mishaps
from edgerun_hw.simulate.simulator import Simulator

# Name of a geometry and its share of the cases.
SHARES = {
    "tiny": 0.3,
    "tiny-prefill": 0.3,
    "decode-75": 0.1,
    "decode-300": 0.1,
    "decode-300-scale": 0.1,
    "prefill-1500": 0.1,
}
BACKPRESSURES = (0.0, 0.0, 0.1, 0.3, 0.6, 0.9)
OUTSTANDING = (1, 2, 4, 8, 16)
BATCH = 20  # cases that one simulator runs


@dataclass(frozen=True)
class Setting:
    """One simulator's surroundings.

    Attributes:
        geometry: name of a preset.
        memory: name of a DRAM preset, or None for ideal memory.
        backpressure: probability that a memory channel is not ready.
        control_backpressure: the same for the control port.
        outstanding: bursts that a memory port accepts at a time.
        seed: of simulator and cases.
        cases: how many.
        max_lookups: about how many cycles of lookups a case may have.
        mishaps: how many mishaps follow the cases (``mishaps.py``).
    """

    geometry: str
    memory: str | None
    backpressure: float
    control_backpressure: float
    outstanding: int
    seed: int
    cases: int
    max_lookups: int = MAX_LOOKUPS
    mishaps: int = 0

    def __str__(self) -> str:
        return (
            f"{self.geometry}, memory {self.memory or 'ideal'}, back-pressure {self.backpressure}, "
            f"{self.outstanding} bursts, seed {self.seed}"
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a setting.

    Attributes:
        setting: the setting.
        cycles: cycles simulated.
        seconds: time it took, compilation not included.
        failures: a sentence each.
    """

    setting: Setting
    cycles: int
    seconds: float
    failures: tuple[str, ...]


def settings(
    cases: int,
    seed: int,
    names: Sequence[str] = tuple(SHARES),
    max_lookups: int = MAX_LOOKUPS,
    mishaps: int = 0,
) -> Iterator[Setting]:
    """Divides ``cases`` among geometries and draws surroundings for every ``BATCH`` of them.

    Each batch is followed by ``mishaps`` mishaps.
    """
    total = sum(SHARES.get(name, 0.1) for name in names)
    remaining = cases
    for place, name in enumerate(names):
        share = round(cases * SHARES.get(name, 0.1) / total)
        share = remaining if place == len(names) - 1 else min(share, remaining)
        remaining -= share
        rng = np.random.default_rng([seed, place])
        for start in range(0, share, BATCH):
            yield Setting(
                geometry=name,
                memory="kv260" if rng.random() < 0.4 else None,
                backpressure=float(rng.choice(BACKPRESSURES)),
                control_backpressure=float(rng.choice(BACKPRESSURES)),
                outstanding=int(rng.choice(OUTSTANDING)),
                seed=int(rng.integers(1 << 31)),
                cases=min(BATCH, share - start),
                max_lookups=max_lookups,
                mishaps=mishaps,
            )


def run_setting(
    setting: Setting, make: Callable[[Setting, Geometry], Simulator] | None = None
) -> Outcome:
    """Runs one setting's cases.

    Args:
        setting: what to run.
        make: makes the simulator, where it should be another than the usual one.

    Raises:
        EdgerunError: the simulator cannot be made.
    """
    geometry = PRESETS[setting.geometry]
    rng = np.random.default_rng(setting.seed)
    cases = [random_case(rng, geometry, setting.max_lookups) for _ in range(setting.cases)]
    with (make or make_simulator)(setting, geometry) as simulator:
        start = time.perf_counter()
        failures = run_cases(simulator, cases)
        if not failures:
            failures = run_mishaps(simulator, setting.mishaps, setting.seed)
        seconds = time.perf_counter() - start
        return Outcome(setting, simulator.cycles, seconds, tuple(failures))


def make_simulator(setting: Setting, geometry: Geometry) -> Simulator:
    """Makes the simulator of a setting."""
    return Simulator(
        geometry,
        memory=None if setting.memory is None else DDR_PRESETS[setting.memory],
        seed=setting.seed,
        backpressure=setting.backpressure,
        control_backpressure=setting.control_backpressure,
        outstanding=setting.outstanding,
        progress=lambda text: _say(f"  {setting.geometry}: {text}"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--cases", type=int, default=200, help="number of commands")
    parser.add_argument("--seed", type=int, default=0, help="other numbers give other cases")
    parser.add_argument(
        "--geometry",
        action="append",
        choices=sorted(PRESETS),
        help="only this one; may be given several times",
    )
    parser.add_argument("--max-lookups", type=int, default=MAX_LOOKUPS, help="cycles of a case")
    parser.add_argument("--mishaps", type=int, default=0, help="faults and resets a batch")
    options = parser.parse_args(arguments)
    names = tuple(options.geometry or SHARES)
    chosen = settings(options.cases, options.seed, names, options.max_lookups, options.mishaps)
    try:
        failed = _run(chosen)
    except EdgerunError as error:
        _say(str(error))
        return 1
    return 1 if failed else 0


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Leaves the module's text as it is written."""


def _run(chosen: Iterator[Setting]) -> int:
    cases = mishaps = cycles = failed = 0
    seconds = 0.0
    for setting in chosen:
        outcome = run_setting(setting)
        cases += setting.cases
        mishaps += setting.mishaps
        cycles += outcome.cycles
        seconds += outcome.seconds
        failed += bool(outcome.failures)
        state = "FAILED" if outcome.failures else "ok"
        _say(f"{setting}: {setting.cases} cases, {outcome.cycles} cycles, {state}")
        for failure in outcome.failures:
            _say(f"    {failure}")
    verdict = f"{failed} batches failed" if failed else "all bit-exact"
    summary = f"{cases} cases" + (f", {mishaps} mishaps" if mishaps else "")
    _say(f"{summary}, {cycles / 1e6:.1f} Mcycles in {seconds:.0f} s: {verdict}")
    return failed


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
