"""Resources on Xilinx parts, as yosys maps them: an estimate, not Vivado's figure.

yosys maps to the cells of UltraScale+ (``synth_xilinx -family xcup``) and its optimiser is weaker
than Vivado's, so LUT counts tend to be above what a board needs. Nothing is placed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import BackendError
from edgerun_hw.build.sources import digest
from edgerun_hw.synthesis.hierarchy import needed_files
from edgerun_hw.synthesis.tools import cached, run_tool, stage, tool_version

if TYPE_CHECKING:
    from edgerun_hw.overlay.geometry import Geometry

# Families of yosys' synth_xilinx by the processing system of a board's part.
FAMILIES = {"zynqmp": "xcup", "zynq7": "xc7"}
ENGINE, TOP, ADDER = "tlmm_engine", "tlmm_top", "tlmm_addsub"
ATTENTION, GLUE = "tlmm_attention", "tlmm_glue"
# Parameters that the engine has; the shell around it has all.
ENGINE_PARAMETERS = ("PORTS", "COLUMNS", "NB_MAX", "ROW_SCALE")

# LUT sites that a memory or shift-register cell occupies (UG974, UG953): of the cells with m
# ports of n bits, all are built of whole LUTs of a slice.
LUTRAM_SITES = {
    "RAM32M16": 8,
    "RAM64M8": 8,
    "RAM32M": 4,
    "RAM64M": 4,
    "RAM16X1D": 2,
    "RAM32X1D": 2,
    "RAM64X1D": 2,
    "RAM128X1D": 4,
    "RAM256X1D": 8,
    "RAM16X1S": 1,
    "RAM32X1S": 1,
    "RAM64X1S": 1,
    "RAM128X1S": 2,
    "RAM256X1S": 4,
    "RAM512X1S": 8,
    "RAM64X8SW": 8,
    "RAM32X16DR8": 8,
    "SRL16E": 1,
    "SRLC16E": 1,
    "SRLC32E": 1,
}
LUTS = {"LUT1", "LUT2", "LUT3", "LUT4", "LUT5", "LUT6", "INV"}
FFS = {"FDRE", "FDSE", "FDCE", "FDPE", "LDCE", "LDPE"}
BRAM36 = {"RAMB36E1": 1.0, "RAMB36E2": 1.0, "RAMB18E1": 0.5, "RAMB18E2": 0.5}
DSPS = {"DSP48E1", "DSP48E2", "DSP58"}
CARRIES = {"CARRY4", "CARRY8"}
URAMS = {"URAM288", "URAM288_BASE"}
FREE = {"MUXF7", "MUXF8", "MUXF9", "BUFG", "GND", "VCC"}  # they take no LUT


@dataclass(frozen=True)
class Estimate:
    """What a module needs.

    Attributes:
        lut: LUTs that compute logic.
        lutram: LUT sites that hold memory or shift registers.
        lut_sites: both together: what the part has to have.
        ff: flip-flops.
        bram36: block RAMs of 36 Kbit; halves are 18 Kbit.
        uram: UltraRAMs.
        dsp: multipliers.
        carry: carry cells of 4 bits each (8 on UltraScale+, once Vivado has joined two).
        cells: number of every cell by name.
    """

    lut: int
    lutram: int
    lut_sites: int
    ff: int
    bram36: float
    uram: int
    dsp: int
    carry: int
    cells: Mapping[str, int] = field(default_factory=dict, compare=False)


def estimate(geometry: Geometry, module: str = ENGINE, family: str = "xcup") -> Estimate:
    """Synthesises a module and counts; takes seconds to minutes, then comes from the cache.

    Args:
        geometry: parameters of the hardware.
        module: ``tlmm_engine``, ``tlmm_attention``, ``tlmm_glue`` or ``tlmm_top``.
        family: a family of yosys' ``synth_xilinx``.

    Raises:
        MissingDependencyError: yosys is not installed.
        BackendError: yosys refuses the sources.
    """
    files = needed_files(module)
    parameters = module_parameters(geometry, module)
    script = synthesis_script(module, parameters, family)
    name = digest(files, script, tool_version("yosys"))

    def make(folder: Path) -> dict[str, Any]:
        (folder / "run.ys").write_text(stage(files, folder) + script, "utf-8")
        run_tool("yosys", ["-q", "-s", "run.ys"], folder)
        counted = count_cells(json.loads((folder / "stat.json").read_text("utf-8")))
        return asdict(summarise(counted))

    return Estimate(**cached("xilinx", name, make))


def synthesis_script(module: str, parameters: Mapping[str, int], family: str) -> str:
    """Returns the commands for yosys that follow the reading of the sources."""
    sets = "".join(f" -set {name} {value}" for name, value in parameters.items())
    return (
        # Not `hierarchy -chparam`, on which yosys 0.70 fails an assertion of its own.
        f"chparam{sets} {module}\n"
        f"hierarchy -check -top {module}\n"
        # Flattened, yosys swaps the operands of adders, and an inverted one that feeds the carry
        # chain directly costs a LUT of its own; other tools choose the operand that does not.
        f"setattr -mod -set keep_hierarchy 1 *{ADDER}*\n"
        # No pads and no clock buffers: the module is a part of a chip, not the whole.
        f"synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top {module}\n"
        "tee -q -o stat.json stat -json\n"
    )


def module_parameters(geometry: Geometry, module: str) -> dict[str, int]:
    """Returns the SystemVerilog parameters that ``module`` has."""
    every = geometry.parameters()
    if module == ATTENTION:
        return {"QUERIES": geometry.attention}
    if module == ENGINE:
        return {name: every[name] for name in ENGINE_PARAMETERS}
    # Glue has none, and parts of units are taken with those that they have by default.
    return every if module == TOP else {}


def count_cells(statistics: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of each cell in all of a design from yosys' ``stat -json``.

    Modules and notes, whose names have a dollar, are no cells.
    """
    counts = statistics["design"]["num_cells_by_type"]
    return {name: int(count) for name, count in counts.items() if "$" not in name}


def summarise(cells: Mapping[str, int]) -> Estimate:
    """Adds up cells by what they occupy.

    Raises:
        BackendError: there is a cell of which nobody here knows what it occupies.
    """
    supported = {*LUTS, *FFS, *DSPS, *CARRIES, *URAMS, *FREE, *LUTRAM_SITES, *BRAM36}
    if unknown := sorted(set(cells) - supported):
        raise BackendError(
            f"yosys used {', '.join(unknown)}, whose size is not known: add it to xilinx.py"
        )

    def total(names: set[str]) -> int:
        return sum(count for name, count in cells.items() if name in names)

    lut = total(LUTS)
    lutram = sum(LUTRAM_SITES.get(name, 0) * count for name, count in cells.items())
    return Estimate(
        lut=lut,
        lutram=lutram,
        lut_sites=lut + lutram,
        ff=total(FFS),
        bram36=sum(BRAM36.get(name, 0.0) * count for name, count in cells.items()),
        uram=total(URAMS),
        dsp=total(DSPS),
        carry=total(CARRIES),
        cells=dict(sorted(cells.items())),
    )
