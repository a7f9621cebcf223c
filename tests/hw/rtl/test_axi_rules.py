"""Each rule of ``hw/tb/wrapped/axi_address_rules.sv`` sees what breaks it, and nothing else.

The default co-simulation has these rules on every port of ``tlmm_wrapper``, the module that Vivado
builds.
"""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from edgerun_hw.build.sources import hardware_folder
from edgerun_hw.simulate.toolchain import find_compiler, find_verilator

pytestmark = pytest.mark.fpga


@dataclasses.dataclass(frozen=True)
class Cycle:
    """What the channel shows in a cycle; by default an address that is taken at once."""

    resetn: int = 1
    valid: int = 1
    ready: int = 1
    addr: int = 0x1000
    len: int = 63
    size: int = 4
    burst: int = 1
    cache: int = 3
    prot: int = 0


def make_bench(folder: Path, idle: bool) -> Path:
    verilator, compiler = find_verilator(), find_compiler()
    bench = hardware_folder("tb") / "wrapped"
    options = ["--cc", "--assert", "--no-timing", "-Wno-fatal", f"-GIDLE={int(idle)}"]
    where = ["--prefix", "Vrules", "--Mdir", str(folder)]
    command = verilator.command(*options, *where, str(bench / "axi_address_rules.sv"))
    subprocess.run(command, check=True, capture_output=True)
    runtime = ("verilated.cpp", "verilated_threads.cpp")
    sources = [*folder.glob("Vrules*.cpp"), *(verilator.include / name for name in runtime)]
    include = [f"-I{folder}", f"-I{verilator.include}", f"-I{verilator.include / 'vltstd'}"]
    program = folder / "bench"
    subprocess.run(
        [compiler.path, "-std=c++17", "-O0", "-pthread", "-DVL_USER_STOP", "-DVL_TIME_CONTEXT"]
        + [*include, str(bench / "axi_rules_bench.cpp"), *map(str, sources), "-o", str(program)],
        check=True,
        capture_output=True,
    )
    return program


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> dict[bool, Path]:
    """The rules of a port that is used, and of one that the geometry does not have."""
    return {idle: make_bench(tmp_path_factory.mktemp("rules"), idle) for idle in (False, True)}


def broken(program: Path, cycles: list[Cycle]) -> set[str]:
    text = "".join(" ".join(map(str, dataclasses.astuple(c))) + "\n" for c in cycles)
    answer = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    lines = [line for line in answer.stdout.splitlines() if "%Error" in line]
    return {line.rpartition(": ")[2] for line in lines}


USUAL = Cycle()
WAITING = Cycle(ready=0)
IDLE = Cycle(valid=0, addr=7, len=255)


def test_what_the_overlay_does_breaks_no_rule(programs: dict[bool, Path]) -> None:
    reset = Cycle(resetn=0, valid=0)
    last = Cycle(addr=0xFF_FFFF_F000 + 0xC00)
    cycles = [reset, IDLE, USUAL, WAITING, WAITING, USUAL, IDLE, last, USUAL, WAITING]
    assert broken(programs[False], [*cycles, Cycle(resetn=0, valid=0), IDLE]) == set()
    assert broken(programs[True], [reset, IDLE, IDLE]) == set()


@pytest.mark.parametrize(
    ("cycles", "rule"),
    [
        ([Cycle(valid=0, size=3)], "not all of the data bus"),
        ([Cycle(valid=0, burst=0)], "not an incrementing burst"),
        ([Cycle(valid=0, burst=2)], "not an incrementing burst"),
        ([Cycle(valid=0, cache=0xF)], "not normal, non-cacheable, bufferable"),
        ([Cycle(valid=0, prot=2)], "not unprivileged, secure data"),
        ([WAITING, Cycle(valid=0)], "VALID falls before READY"),
        ([WAITING, Cycle(addr=0x2000)], "changed"),
        ([WAITING, Cycle(len=3)], "changed"),
        ([Cycle(len=64)], "longer than the port's MAX_BURST_LENGTH"),
        ([Cycle(addr=0x1008, len=0)], "not a multiple of 16 bytes"),
        ([Cycle(addr=0x1C10)], "crosses 4 KiB"),
    ],
)
def test_each_rule_sees_what_breaks_it(
    programs: dict[bool, Path], cycles: list[Cycle], rule: str
) -> None:
    assert broken(programs[False], [USUAL, *cycles, IDLE]) == {rule}


def test_port_that_the_geometry_does_not_have_must_not_ask(programs: dict[bool, Path]) -> None:
    assert broken(programs[True], [IDLE, USUAL]) == {"a port that the geometry does not have asks"}
