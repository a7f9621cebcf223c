"""Which kernels are fastest for how many rows, and whether these are what is chosen.

    python -m tools.bench.row_paths [--isas NAME ...] [--families NAME ...] [--threads N]
        [--rounds N] [--json FILE]

Layers of two shapes, whose weights do not stay in the caches, are multiplied in turns and by each
kernel for blocks of rows, all programs in turn; the least time counts. Then two choices are held
against the fastest of these at each number of rows: the usual one, which goes by the instruction
set, and the measured one, which goes by what ``edgerun doctor --calibrate`` times
(``machine/row_times.py``), timed here anew with small layers. The table, in Markdown, has the share
of the fastest's speed that each choice has. One thread is timed by the processor time of the
process, which other programs lengthen less; several by the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from edgerun.backends.base import FEW_ROWS, Shape
from edgerun.backends.cpu.row_paths import measured_paths, path_in, possible_paths
from edgerun.kernels.isa import available_isas, selected_isa
from edgerun.machine.profile import MachineProfile, family
from edgerun.machine.row_times import ALL_IN_TURNS, BlockPath, RowTimes, stored
from edgerun.plan.calibration import kernels
from edgerun.plan.calibration.loads import Load
from edgerun.plan.calibration.row_times import time_rows

ROWS = (2, 4, 8, 12, 16, 17, 24, 32, 48, 64, 128, 256)
SHAPES = {"2560 x 6912": ((2560, 6912), 3), "576 x 1536": ((576, 1536), 12)}
RUNS = 3  # a round, of few rows
FEWEST_RUNS_FROM = 64  # rows
FAMILIES = tuple(family(*each) for each in kernels.FAMILIES if each[0] != "float")
ByRows: TypeAlias = dict[int, float]


def main() -> None:
    """Measures every instruction set in a process of its own and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isas", nargs="+", default=available_isas())
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="keep all times in this file")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        for record in measured(given.families, given.threads, given.rounds):
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
        return
    head = ["set", "weights", "shape", "choice", "blocks", *map(str, ROWS), "mean"]
    sys.stdout.write(_line(head) + _line(["---"] * len(head)))
    records = []
    for isa in given.isas:
        for record in _apart(isa, given):
            records.append(record)
            sys.stdout.write("".join(map(_line, cells(record))))
            sys.stdout.flush()
    if given.json:
        given.json.write_text(json.dumps(records, indent=1))


def _apart(isa: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What a process says that has the instruction set."""
    command = [sys.executable, "-m", "tools.bench.row_paths", "--one", "--families"]
    command += [*given.families, "--threads", str(given.threads), "--rounds", str(given.rounds)]
    environment = {**os.environ, "EDGERUN_ISA": isa}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise SystemExit(f"{isa}: exit code {process.returncode}")


def measured(names: list[str], threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Milliseconds of a layer by way and rows, and what is chosen, of each family and shape."""
    isa, clock = selected_isa(), time.process_time if threads == 1 else time.perf_counter
    families = {family(*each): each for each in kernels.FAMILIES if family(*each) in names}
    kernels.FAMILIES = tuple(families.values())  # what is calibrated
    times = time_rows([threads], lambda text: None, clock)
    for name, each in families.items():
        profile = MachineProfile(row_times={isa.name: stored({name: times[name]})})
        choice = measured_paths(isa, profile, threads)[name]
        for shape in SHAPES:
            ways = ["", *possible_paths(isa, name)]
            figures = time_ways(*each, shape, ways, threads, rounds, clock)
            yield {
                "isa": isa.name,
                "family": name,
                "shape": shape,
                "calibrated": [_as_json(each) for each in times[name]],
                "seconds": figures,
                "usual": {rows: taken(name, rows, {}) for rows in ROWS},
                "measured": {rows: taken(name, rows, {name: choice}) for rows in ROWS},
                "choice": [choice.name, choice.least],
            }


def taken(name: str, rows: int, paths: Mapping[str, BlockPath]) -> str:
    """The path that so many rows take in the program that takes them."""
    shape = Shape.of(FEW_ROWS if rows <= FEW_ROWS else max(ROWS))
    path = path_in(shape, selected_isa(), paths, name, has_areas=True)
    return path.name if path.name and rows >= path.least else ""


def time_ways(
    activations: str,
    weights: str,
    shape: str,
    ways: list[str],
    threads: int,
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, ByRows]:
    """The least seconds of a layer by the path of blocks (none: turns), and by rows."""
    size, layers = SHAPES[shape]
    load = Load(activations, weights, max(ROWS), size, layers, shared=False)
    name = family(activations, weights)
    seconds: dict[str, ByRows] = {way: {} for way in ways}
    with ExitStack() as owned:
        runners = {}
        for way in ways:
            path = BlockPath(way, 1) if way else ALL_IN_TURNS
            trial = kernels.trial_of(name, load)
            runners[way] = owned.enter_context(kernels.bound(trial, threads, {name: path}))
        for rows in ROWS:
            runs = {way: runners[way](rows) for way in ways}
            for run in runs.values():
                run()
            for _ in range(rounds):
                for way, run in runs.items():
                    for _ in range(RUNS if rows < FEWEST_RUNS_FROM else 1):
                        start = clock()
                        run()
                        spent = (clock() - start) / layers
                        seconds[way][rows] = min(spent, seconds[way].get(rows, math.inf))
    return seconds


def cells(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Two rows of the table: what each choice reaches of the fastest way's speed."""
    name, least = record["choice"]
    blocks = {"usual": "", "measured": f"{name} from {least}" if name else "never"}
    usual = {rows: path for rows, path in record["usual"].items() if path}
    if usual:
        blocks["usual"] = f"{next(iter(usual.values()))} from {next(iter(usual))}"
    for choice in ("usual", "measured"):
        shares = []
        for rows in map(str, ROWS):
            by_way = {way: by_rows[rows] for way, by_rows in record["seconds"].items()}
            shares.append(min(by_way.values()) / by_way[record[choice][rows]])
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        figures = [f"{share:.2f}" for share in [*shares, mean]]
        place = [record["isa"], record["family"], record["shape"]]
        yield [*place, choice, blocks[choice] or "never", *figures]


def _as_json(times: RowTimes) -> dict[str, Any]:
    return {"turns": dict(times.turns), "blocks": {k: dict(v) for k, v in times.blocks.items()}}


def _line(parts: list[str]) -> str:
    return f"| {' | '.join(parts)} |\n"


if __name__ == "__main__":
    main()
