"""Place and route on a Lattice ECP5-85K: a real bitstream and a clock, without vendor tools.

The clock is a regression figure: it shows whether a change made paths longer. An UltraScale+ part
is another technology, so this is no statement about a KV260.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import BackendError
from edgerun_hw.build.sources import digest
from edgerun_hw.synthesis.harness import HARNESS, Ports, harness, ports_of, ports_script
from edgerun_hw.synthesis.hierarchy import needed_files
from edgerun_hw.synthesis.output_registers import pack_output_registers
from edgerun_hw.synthesis.tools import cache_folder, cached, run_tool, stage, tool_version
from edgerun_hw.synthesis.xilinx import ENGINE, module_parameters

if TYPE_CHECKING:
    from edgerun_hw.overlay.geometry import Geometry

SPEED_GRADES = (6, 7, 8)
TARGET_MHZ = 250
PACKAGE = "CABGA756"
GOAL_MHZ = 200.0
# Units take minutes of a processor, and on one that many share ten times as long.
PLACE_LIMIT_S = 7200.0
# The first gives the faster clock; the second is for parts of which much is used.
ROUTERS = ("router1", "router2")
LARGE_STEP_NS, MOST_STEPS, MOST_LETTERS = 0.3, 12, 56


@dataclass(frozen=True)
class Placed:
    """What place and route found.

    Attributes:
        fmax_mhz: highest clock of the slowest path.
        goal_mhz: what the project wants of it.
        speed_grade: of the part; 8 is the fastest.
        seed: of the placer, whose result varies by some percent.
        lut: logic cells used as LUT4, the harness included.
        ff: flip-flops, the harness included.
        bram: block RAMs of 18 Kbit.
        registered_bram: those whose output register is used.
        dsp: 18x18 multipliers.
        bitstream_bytes: length of the bitstream.
        bitstream: where it is kept.
        critical_path: what the slowest path between registers goes through, in words.
    """

    fmax_mhz: float
    goal_mhz: float
    speed_grade: int
    seed: int
    lut: int
    ff: int
    bram: int
    registered_bram: int
    dsp: int
    bitstream_bytes: int
    bitstream: str
    critical_path: list[str] = field(default_factory=list)


def place_and_route(
    geometry: Geometry,
    module: str = ENGINE,
    *,
    speed_grade: int = 8,
    seed: int = 1,
    router: str = ROUTERS[0],
) -> Placed:
    """Places a module of a geometry; takes minutes, then comes from the cache.

    Args:
        geometry: parameters of the hardware.
        module: any with a clock ``clk``; a part of a unit is placed alone, with the parameters that
            it has by default.
        speed_grade: 6, 7 or 8.
        seed: of the placer.
        router: one of ``ROUTERS``, nextpnr's.

    Raises:
        MissingDependencyError: yosys or nextpnr is not installed.
        BackendError: a tool failed, for example because the design does not fit.
        InputError: there is no such module.
    """
    if speed_grade not in SPEED_GRADES:
        raise BackendError(f"speed grade {speed_grade} does not exist: there are {SPEED_GRADES}")
    if router not in ROUTERS:
        raise BackendError(f"router {router!r} does not exist: there are {ROUTERS}")
    files, parameters = needed_files(module), module_parameters(geometry, module)
    versions = tool_version("yosys"), tool_version("nextpnr-ecp5")
    name = digest(files, module, parameters, speed_grade, seed, router, TARGET_MHZ, versions, 5)

    def make(folder: Path) -> dict[str, Any]:
        packed = _synthesise(folder, files, module, parameters)
        arguments = nextpnr_arguments(speed_grade, seed, router)
        run_tool("nextpnr-ecp5", arguments, folder, timeout_s=PLACE_LIMIT_S)
        run_tool("ecppack", ["--compress", "design.config", "design.bit"], folder)
        target = cache_folder() / f"ecp5-{name}.bit"
        shutil.move(folder / "design.bit", target)
        report = json.loads((folder / "report.json").read_text("utf-8"))
        return asdict(read_report(report, target, speed_grade, seed, packed))

    return Placed(**cached("ecp5", name, make))


def _synthesise(
    folder: Path, files: Sequence[Path], module: str, parameters: Mapping[str, int]
) -> int:
    """Writes ``design.json``, the module in its harness; returns memories with output registers."""
    reads = stage(files, folder)
    ports = read_ports(folder, reads, module, parameters)
    (folder / "pads.v").write_text(harness(module, parameters, ports), "utf-8")
    synthesis = f"synth_ecp5 -top {HARNESS} -json design.json\n"
    (folder / "run.ys").write_text(f"{reads}read_verilog pads.v\n{synthesis}", "utf-8")
    run_tool("yosys", ["-q", "-s", "run.ys"], folder)
    netlist = json.loads((folder / "design.json").read_text("utf-8"))
    packed = pack_output_registers(netlist, HARNESS)
    (folder / "design.json").write_text(json.dumps(netlist), "utf-8")
    return packed


def read_ports(folder: Path, reads: str, module: str, parameters: Mapping[str, int]) -> Ports:
    """A module's ports, as yosys sees them; ``reads`` are its commands that read the sources."""
    script = reads + ports_script(module, parameters, "ports.json")
    (folder / "ports.ys").write_text(script, "utf-8")
    run_tool("yosys", ["-q", "-s", "ports.ys"], folder)
    return ports_of(json.loads((folder / "ports.json").read_text("utf-8")))


def read_report(
    report: dict[str, Any], bitstream: Path, speed_grade: int, seed: int, registered: int
) -> Placed:
    """Reads nextpnr's JSON report.

    Raises:
        BackendError: it names no clock.
    """
    clocks = report.get("fmax", {})
    if not clocks:
        raise BackendError("nextpnr reports no clock: is the design empty?")
    slowest = min(clocks.values(), key=lambda clock: float(clock["achieved"]))
    used = {name: int(entry["used"]) for name, entry in report["utilization"].items()}
    return Placed(
        fmax_mhz=round(float(slowest["achieved"]), 1),
        goal_mhz=GOAL_MHZ,
        speed_grade=speed_grade,
        seed=seed,
        lut=used["TRELLIS_COMB"],
        ff=used["TRELLIS_FF"],
        bram=used["DP16KD"],
        registered_bram=registered,
        dsp=used["MULT18X18D"],
        bitstream_bytes=bitstream.stat().st_size,
        bitstream=str(bitstream),
        critical_path=_slowest_path(report),
    )


def _slowest_path(report: dict[str, Any]) -> list[str]:
    """The longest path between registers, for whoever has to shorten it: its ends and big steps."""
    paths = [p["path"] for p in report.get("critical_paths", []) if p["from"] == p["to"]]
    if not paths:
        return []
    steps = max(paths, key=lambda path: sum(float(step["delay"]) for step in path))
    kinds = [f"{_total(steps, kind):.2f} ns {kind}" for kind in ("clk-to-q", "logic", "routing")]
    words = [f"from {_short(steps[0]['from']['cell'])} to {_short(steps[-1]['to']['cell'])}"]
    words.append(", ".join([*kinds, f"{_total(steps, 'setup'):.2f} ns setup"]))
    large = [step for step in steps if float(step["delay"]) >= LARGE_STEP_NS][:MOST_STEPS]
    return words + [
        f"{float(step['delay']):.2f} ns {step['type']} to {_short(step['to']['cell'])}"
        for step in large
    ]


def _total(steps: list[dict[str, Any]], kind: str) -> float:
    return sum(float(step["delay"]) for step in steps if step["type"] == kind)


def _short(cell: str) -> str:
    """A cell's name without the trail that yosys' optimiser leaves."""
    return cell if len(cell) <= MOST_LETTERS else cell[: MOST_LETTERS - 3] + "..."


def nextpnr_arguments(speed_grade: int, seed: int, router: str) -> list[str]:
    """Returns the command line that places ``design.json``."""
    arguments = [
        "--85k",
        "--package",
        PACKAGE,
        "--speed",
        str(speed_grade),
        "--freq",
        str(TARGET_MHZ),
        "--seed",
        str(seed),
        "--router",
        router,
        "--json",
        "design.json",
        "--lpf-allow-unconstrained",
        "--textcfg",
        "design.config",
        "--report",
        "report.json",
        # Missing the target frequency is a result, not a failure.
        "--timing-allow-fail",
        "--quiet",
    ]
    # Routes again what is too slow, fifty times: on the engine a tenth faster, and twice the time.
    # The other router does so until nothing is, which never ends where the target is out of reach.
    return [*arguments, "--tmg-ripup"] if router == ROUTERS[0] else arguments
