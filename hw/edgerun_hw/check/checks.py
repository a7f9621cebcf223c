"""What ``edgerun fpga check`` checks: one function each, in the order of the table.

A check is a function that takes ``Plan`` and returns ``Outcome``s; ``@check`` registers it. Adding
one is enough to have it run, shown and counted.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from edgerun.errors import BackendError, EdgerunError, MissingDependencyError
from edgerun_hw.overlay.geometry import PRESETS, Geometry

Result = Literal["passed", "failed", "skipped"]
# What the project promises of the engine (yosys, UltraScale+).
MOST_LUT_SITES_300 = 4000
# And of the units beside it: LUT sites and DSPs, in this geometry.
UNITS, UNITS_OF = {"tlmm_attention": (25_000, 130), "tlmm_glue": (9_500, 0)}, "attention-300"
# None of the geometries that are elaborated as a whole by default has it.
ALONE = "tlmm_glue"
DEFAULT_GEOMETRIES = ("decode-75", "decode-300", "prefill-1500")
LINT_LIMIT_S = 120.0
ASK = "takes minutes: ask for it with --full"
PLACE_SEEDS = (1, 2, 3)
COSIMULATED = ("tiny", "tiny-prefill")


@dataclass(frozen=True)
class Placement:
    """A module that is placed on an ECP5-85K.

    Attributes:
        subject: what it is called in the table.
        geometry: its parameters; the attention unit's with one query, of which the part has enough
            multipliers.
        module: its name.
        least_mhz: the clock that it is held to: of the engine the goal, of units nine tenths of
            what they have, because one placement is a tenth faster than another.
        router: nextpnr's.
    """

    subject: str
    geometry: Geometry
    module: str
    least_mhz: float
    router: str = "router1"


PLACED = (
    Placement("decode-75", PRESETS["decode-75"], "tlmm_engine", 200.0),
    Placement("tlmm_glue", PRESETS["layer-300"], "tlmm_glue", 125.0),
    Placement(
        "tlmm_attention, one query",
        replace(PRESETS["attention-300"], attention=1),
        "tlmm_attention",
        60.0,
        "router2",
    ),
)


@dataclass(frozen=True)
class Plan:
    """What shall be checked.

    Attributes:
        geometries: names of presets that are linted and synthesised.
        cases: random commands that the co-simulation compares with the definition.
        seed: of the random commands.
        full: also what takes minutes: the whole overlay of each board, and place and route.
        progress: told what is being done.
    """

    geometries: tuple[str, ...] = DEFAULT_GEOMETRIES
    cases: int = 60
    seed: int = 1
    full: bool = False
    progress: Callable[[str], None] = field(default=lambda text: None)

    def chosen(self) -> Iterator[tuple[str, Geometry]]:
        """The geometries with their names."""
        return ((name, PRESETS[name]) for name in self.geometries)


@dataclass(frozen=True)
class Outcome:
    """A row of the table.

    Attributes:
        check: what was checked.
        subject: of what.
        result: ``passed``, ``failed`` or ``skipped``.
        figure: what was found, for people.
        values: the same for programs.
        seconds: how long it took.
    """

    check: str
    subject: str
    result: Result
    figure: str
    values: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0


Check = Callable[[Plan], Iterator[Outcome]]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Registers a check under a name."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def run_checks(plan: Plan) -> Iterator[Outcome]:
    """Runs every check; what is not installed is skipped, what breaks has failed."""
    for name, function in CHECKS.items():
        plan.progress(name)
        start = time.monotonic()
        outcomes = function(plan)
        while True:
            try:
                outcome = next(outcomes)
            except StopIteration:
                break
            except MissingDependencyError as error:
                outcome = Outcome(name, "", "skipped", str(error))
            except (EdgerunError, subprocess.TimeoutExpired) as error:
                outcome = Outcome(name, "", "failed", str(error))
            now = time.monotonic()
            yield Outcome(
                name, outcome.subject, outcome.result, outcome.figure, outcome.values, now - start
            )
            start = now


def verdict(passed: bool) -> Result:
    """The word for a condition."""
    return "passed" if passed else "failed"


@check("generated files")
def generated_files(plan: Plan) -> Iterator[Outcome]:
    """The files made of the register description are what it says."""
    from edgerun_hw.registers.generated import generated_files, stale_files

    stale = [path.name for path in stale_files()]
    figure = f"differ: {', '.join(stale)}" if stale else f"{len(generated_files())} up to date"
    yield Outcome("", "register map", verdict(not stale), figure)


@check("lint")
def lint(plan: Plan) -> Iterator[Outcome]:
    """Verilator accepts the RTL with all warnings on, for every geometry."""
    from edgerun_hw.build.project import TOP
    from edgerun_hw.build.sources import wrapped_rtl_files
    from edgerun_hw.simulate.toolchain import find_verilator

    verilator = find_verilator()
    files = list(map(str, wrapped_rtl_files()))
    for name, geometry in plan.chosen():
        values = [f"-G{key}={value}" for key, value in geometry.parameters().items()]
        options = ["--lint-only", "-Wall", "--top-module", TOP, *values]
        process = subprocess.run(
            verilator.command(*options, *files),
            capture_output=True,
            text=True,
            check=False,
            timeout=LINT_LIMIT_S,
        )
        complaints = [line for line in process.stderr.splitlines() if line.startswith("%")]
        figure = f"{len(complaints)} complaints: {complaints[0]}" if complaints else "no warnings"
        clean = process.returncode == 0 and not complaints
        yield Outcome("", name, verdict(clean), figure, {"complaints": complaints})


@check("language")
def language(plan: Plan) -> Iterator[Outcome]:
    """Slang accepts the RTL, for every geometry: what Vivado refuses and Verilator lets pass."""
    from edgerun_hw.check import elaboration
    from edgerun_hw.synthesis.hierarchy import needed_files

    subjects = {name: elaboration.complaints(geometry) for name, geometry in plan.chosen()}
    subjects[ALONE] = elaboration.elaborate(needed_files(ALONE), ALONE, {})
    for name, complaints in subjects.items():
        figure = f"{len(complaints)} complaints: {complaints[0]}" if complaints else "no warnings"
        yield Outcome("", name, verdict(not complaints), figure, {"complaints": complaints})


@check("co-simulation")
def cosimulation(plan: Plan) -> Iterator[Outcome]:
    """The verilated RTL gives the bits that the definition gives, whatever the memory's pace."""
    from edgerun_hw.simulate.fuzz import run_setting, settings

    for name in COSIMULATED:
        plan.progress(f"co-simulation of {name}")
        cases = cycles = 0
        failures: list[str] = []
        for setting in settings(-(-plan.cases // len(COSIMULATED)), plan.seed, (name,)):
            outcome = run_setting(setting)
            cases, cycles = cases + setting.cases, cycles + outcome.cycles
            failures += outcome.failures
        figure = failures[0] if failures else f"{cases} random commands bit-exact, {cycles} cycles"
        values: dict[str, object] = {"cases": cases, "cycles": cycles, "failures": failures}
        yield Outcome("", name, verdict(not failures), figure, values)


@check("resources")
def usage(plan: Plan) -> Iterator[Outcome]:
    """The engine needs no multiplier and no more LUTs than promised (yosys' estimate)."""
    from edgerun_hw.synthesis.xilinx import estimate

    for name, geometry in plan.chosen():
        plan.progress(f"synthesis of {name}")
        usage = estimate(geometry)
        enough = name != "decode-300" or usage.lut_sites <= MOST_LUT_SITES_300
        figure = (
            f"{usage.lut_sites} LUT sites ({usage.lutram} memory), {usage.ff} FF, "
            f"{usage.bram36:g} BRAM36, {usage.dsp} DSP, estimated by yosys"
        )
        yield Outcome("", name, verdict(enough and usage.dsp == 0), figure, asdict(usage))


@check("units")
def unit_usage(plan: Plan) -> Iterator[Outcome]:
    """Attention and glue need no more LUTs and multipliers than promised (yosys' estimate)."""
    if not plan.full:
        yield Outcome("", "", "skipped", ASK)
        return
    from edgerun_hw.synthesis.xilinx import estimate

    for module, (most_lut_sites, most_dsp) in UNITS.items():
        plan.progress(f"synthesis of {module}")
        usage = estimate(PRESETS[UNITS_OF], module)
        enough = usage.lut_sites <= most_lut_sites and usage.dsp <= most_dsp
        figure = (
            f"{usage.lut_sites} LUT sites ({usage.lutram} memory), {usage.ff} FF, "
            f"{usage.bram36:g} BRAM36, {usage.dsp} DSP, estimated by yosys"
        )
        yield Outcome("", module, verdict(enough), figure, asdict(usage))


@check("fit")
def fit(plan: Plan) -> Iterator[Outcome]:
    """The whole overlay, in the geometry it has by default, fits the part of every board."""
    if not plan.full:
        yield Outcome("", "", "skipped", ASK)
        return
    from edgerun_hw.build.boards import board_names, load_board
    from edgerun_hw.build.project import geometry_for
    from edgerun_hw.synthesis.xilinx import FAMILIES, TOP, estimate

    for name in board_names():
        board = load_board(name)
        plan.progress(f"synthesis of {board.geometry} for {name}")
        subject, has = f"{board.geometry}, {name}", board.resources
        try:
            needs = estimate(geometry_for(board, board.overlay), TOP, FAMILIES[board.family])
        except BackendError as error:  # the other boards are looked at all the same
            yield Outcome("", subject, "failed", str(error))
            continue
        shares = {
            "LUT": needs.lut_sites / has.lut,
            "FF": needs.ff / has.ff,
            "BRAM": needs.bram36 / has.bram36,
            "DSP": needs.dsp / has.dsp,
        }
        figure = ", ".join(f"{share:.0%} of {what}" for what, share in shares.items())
        figure += f", {needs.uram} of {has.uram} UltraRAMs" if needs.uram else ""
        fits = max(shares.values()) <= 1 and needs.uram <= has.uram
        yield Outcome("", subject, verdict(fits), figure, asdict(needs))


@check("place and route")
def place(plan: Plan) -> Iterator[Outcome]:
    """The engine and the units on an ECP5-85K: a bitstream and a clock, to compare versions."""
    if not plan.full:
        yield Outcome("", "", "skipped", ASK)
        return
    for placement in PLACED:
        try:
            yield _place(placement, plan.progress)
        except BackendError as error:  # the others are placed all the same
            yield Outcome("", placement.subject, "failed", str(error))


def _place(placement: Placement, progress: Callable[[str], None]) -> Outcome:
    """Places with one seed after another until the clock is what it is held to."""
    from edgerun_hw.synthesis.ecp5 import place_and_route

    tried = []
    # One placement of the same netlist is a tenth faster than another.
    for seed in PLACE_SEEDS:
        progress(f"place and route of {placement.subject}, seed {seed}")
        tried.append(
            place_and_route(
                placement.geometry, placement.module, seed=seed, router=placement.router
            )
        )
        if tried[-1].fmax_mhz >= placement.least_mhz:
            break
    best = max(tried, key=lambda placed: placed.fmax_mhz)
    held = f", held to {placement.least_mhz:.0f}" if placement.least_mhz < best.goal_mhz else ""
    figure = (
        f"{best.fmax_mhz:.1f} MHz (goal {best.goal_mhz:.0f}{held}) on an ECP5-85K of speed grade "
        f"{best.speed_grade}, best of {len(tried)} seeds, {best.lut} LUT4, {best.ff} FF, "
        f"{best.dsp} DSP, bitstream of {best.bitstream_bytes} bytes"
    )
    values = {**asdict(best), "seeds_mhz": {p.seed: p.fmax_mhz for p in tried}}
    enough = best.fmax_mhz >= placement.least_mhz
    return Outcome("", placement.subject, verdict(enough), figure, values)
