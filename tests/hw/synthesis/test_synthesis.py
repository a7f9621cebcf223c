"""Drivers of yosys and nextpnr: what they read, count, keep; with the tools under ``-m fpga``."""

import copy
import json
import re
import subprocess
import sys

import pytest

from edgerun.errors import BackendError, InputError, MissingDependencyError
from edgerun_hw.build.sources import digest, hardware_folder, rtl_files, wrapped_rtl_files
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.synthesis import ecp5, tools, xilinx
from edgerun_hw.synthesis.harness import Ports, harness, ports_of
from edgerun_hw.synthesis.hierarchy import needed_files
from edgerun_hw.synthesis.output_registers import pack_output_registers


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


# ---- sources


def test_package_comes_before_the_modules_that_use_it():
    assert rtl_files()[0].name == "tlmm_pkg.sv"


def test_engine_needs_less_than_the_whole():
    engine, top = needed_files("tlmm_engine"), needed_files("tlmm_top")
    assert {"tlmm_pkg.sv", "tlmm_engine.sv"} <= {file.name for file in engine}
    assert set(engine) < set(top)
    assert "tlmm_top.sv" not in {file.name for file in engine}


def test_only_what_is_named_outside_comments_is_needed(tmp_path):
    texts = {
        "a.sv": "module a; b inner(); // c is not used\nendmodule",
        "b.sv": "module b; /* c c c */ endmodule",
        "c.sv": "module c; endmodule",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = needed_files("a", sorted(tmp_path.iterdir()))
    assert [file.name for file in files] == ["a.sv", "b.sv"]


def test_unknown_top_is_a_clear_error():
    with pytest.raises(InputError, match="tlmm_motor"):
        needed_files("tlmm_motor")


def test_missing_hardware_folder_is_a_clear_error():
    with pytest.raises(InputError, match="hw/nowhere is missing"):
        hardware_folder("nowhere")


def test_digest_depends_on_contents_and_settings_only(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.sv").write_text("module a; endmodule")
    first, second = (tmp_path / folder / "a.sv" for folder in ("one", "two"))
    assert digest([first], 1) == digest([second], 1)
    assert digest([first], 1) != digest([first], 2)
    second.write_text("module a; wire b; endmodule")
    assert digest([first], 1) != digest([second], 1)


def test_sources_use_no_keyword_of_systemverilog_as_a_name():
    """A name that Verilator takes and Vivado does not is found late."""
    words = "before|checker|expect|matches|priority|restrict|sequence|strong|weak|within|unique0"
    name = re.compile(rf"\b(?:logic|wire|reg|int)\b[^;=]*[\s,]({words})\s*[,;=]")
    for file in rtl_files():
        code = re.sub(r"//[^\n]*", "", file.read_text())
        assert not name.search(code), file.name


# ---- counting


def test_memory_cells_count_as_the_lut_sites_they_occupy():
    cells = {"LUT6": 10, "INV": 2, "RAM32M16": 3, "RAM32M": 2, "SRL16E": 5, "MUXF7": 4}
    estimate = xilinx.summarise(cells)
    assert (estimate.lut, estimate.lutram, estimate.lut_sites) == (12, 3 * 8 + 2 * 4 + 5, 49)


def test_halves_of_block_memories_are_halves():
    estimate = xilinx.summarise(
        {"RAMB36E2": 2, "RAMB18E2": 3, "FDRE": 7, "DSP48E2": 1, "CARRY4": 6}
    )
    assert (estimate.bram36, estimate.ff, estimate.dsp, estimate.carry) == (3.5, 7, 1, 6)


def test_a_cell_of_unknown_size_is_refused_and_named():
    with pytest.raises(BackendError, match="RAM9000"):
        xilinx.summarise({"LUT6": 1, "RAM9000": 1})


def test_modules_and_notes_are_no_cells():
    counts = {"LUT2": 4, "$scopeinfo": 9, "$paramod$1\\tlmm_addsub": 2}
    assert xilinx.count_cells({"design": {"num_cells_by_type": counts}}) == {"LUT2": 4}


# ---- the harness around a module


def ports_netlist(**ports):
    """A netlist of a top with ports of so many bits, the clock's first, and of a part of it."""
    described = {
        name: {"direction": direction, "bits": list(range(bits))}
        for name, (direction, bits) in ports.items()
    }
    part = {"attributes": {}, "ports": {"q": {"direction": "output", "bits": [1]}}}
    top = {"attributes": {"top": "1".zfill(32)}, "ports": described}
    return {"modules": {"part": part, "top": top}}


def test_ports_are_those_of_the_top_without_its_clock():
    netlist = ports_netlist(clk=("input", 1), a=("input", 8), b=("output", 3), c=("input", 1))
    assert ports_of(netlist) == Ports({"a": 8, "c": 1}, {"b": 3})


@pytest.mark.parametrize("ports", [{"b": ("output", 3)}, {"clk": ("input", 1)}])
def test_what_cannot_be_placed_is_refused(ports):
    with pytest.raises(BackendError, match="outputs and the input 'clk'"):
        ports_of(ports_netlist(**ports))


def test_harness_covers_the_bits_without_gap_or_overlap():
    ports = Ports({"rst": 1, "x": 128, "length": 14}, {"ready": 1, "y": 128})
    text = harness("unit", {"PORTS": 4}, ports)
    assert "unit #(.PORTS(4)) placed" in text
    for register in ("given", "result"):
        spans = re.findall(rf"{register}\[(\d+) \+: (\d+)\]", text)
        total = int(re.search(rf"\[(\d+):0\] (?:shift, )?{register};", text)[1]) + 1
        bits = [bit for first, width in spans for bit in range(int(first), int(first) + int(width))]
        assert bits == list(range(total))


@pytest.mark.fpga
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("unit", "bits"), [("engine", 512), ("attention", 512), ("glue", 128)])
def test_yosys_sees_every_port_of_the_source(unit, bits, tmp_path):
    module = f"tlmm_{unit}"
    text = (hardware_folder("rtl") / unit / f"{module}.sv").read_text()
    text = re.sub(r"//[^\n]*", "", text)
    head = text[: text.index(");\n")]
    ports = re.findall(r"\b(input|output)\s+logic\s*(?:\[[^\]]*\])?\s*(\w+)", head)
    reads = tools.stage(needed_files(module), tmp_path)
    parameters = xilinx.module_parameters(PRESETS["layer-300"], module)
    seen = ecp5.read_ports(tmp_path, reads, module, parameters)
    assert {"clk", *seen.inputs} == {name for kind, name in ports if kind == "input"}
    assert set(seen.outputs) == {name for kind, name in ports if kind == "output"}
    assert (seen.inputs["w_data"], seen.outputs["y_data"]) == (bits, 128)


# ---- output registers


def netlist(**register):
    """A memory of which one bit is read by a register."""
    plain = {
        "type": "TRELLIS_FF",
        "parameters": {"CEMUX": "1 ", "CLKMUX": "CLK", "LSRMUX": "LSR"},
        "connections": {"CLK": [2], "DI": [10], "LSR": ["0"], "Q": [11]},
        "port_directions": {"CLK": "input", "DI": "input", "LSR": "input", "Q": "output"},
    }
    plain["connections"].update(register.pop("connections", {}))
    plain["parameters"].update(register)
    plain["port_directions"].update(dict.fromkeys(plain["connections"], "input"), Q="output")
    memory = {
        "type": "DP16KD",
        "parameters": {"DATA_WIDTH_A": "10010", "DATA_WIDTH_B": "10010", "REGMODE_B": "NOREG"},
        "connections": {"CLKA": [2], "CLKB": [2], "DOB0": [10], "OCEB": ["0"]},
        "port_directions": {"CLKA": "input", "CLKB": "input", "DOB0": "output", "OCEB": "input"},
    }
    ports = {"out": {"direction": "output", "bits": [11]}}
    return {"modules": {"top": {"cells": {"ram": memory, "ff": plain}, "ports": ports}}}


def test_plain_register_moves_into_the_memory():
    design = netlist()
    assert pack_output_registers(design, "top") == 1
    cells = design["modules"]["top"]["cells"]
    assert list(cells) == ["ram"]
    assert cells["ram"]["parameters"]["REGMODE_B"] == "OUTREG"
    assert cells["ram"]["connections"]["DOB0"] == [11]
    assert cells["ram"]["connections"]["OCEB"] == ["1"]


@pytest.mark.parametrize(
    "register",
    [
        {"connections": {"LSR": [7]}},
        {"connections": {"CLK": [3]}},
        {"connections": {"CE": [8]}, "CEMUX": "CE"},
        {"CLKMUX": "INV"},
        {"connections": {"DI": [12], "CE": [10]}, "CEMUX": "CE"},
    ],
    ids=["reset", "another clock", "enable", "falling edge", "not as data"],
)
def test_register_that_does_more_stays_where_it_is(register):
    design = netlist(**register)
    before = copy.deepcopy(design)
    assert pack_output_registers(design, "top") == 0
    assert design == before


def test_memory_that_something_else_reads_too_stays_as_it_is():
    design = netlist()
    design["modules"]["top"]["ports"]["raw"] = {"direction": "output", "bits": [10]}
    assert pack_output_registers(design, "top") == 0


# ---- nextpnr's report


def report(**clocks):
    use = {"TRELLIS_COMB": 900, "TRELLIS_FF": 800, "DP16KD": 7, "MULT18X18D": 0}
    return {
        "fmax": {name: {"achieved": mhz, "constraint": 250} for name, mhz in clocks.items()},
        "utilization": {name: {"available": 10000, "used": used} for name, used in use.items()},
        "critical_paths": [
            {
                "from": "posedge clk",
                "to": "posedge clk",
                "path": [
                    {"type": "clk-to-q", "delay": 0.5, "from": {"cell": "a"}, "to": {"cell": "a"}},
                    {"type": "routing", "delay": 1.5, "from": {"cell": "a"}, "to": {"cell": "b"}},
                    {"type": "setup", "delay": 0.0, "from": {"cell": "b"}, "to": {"cell": "b"}},
                ],
            }
        ],
    }


def test_the_slowest_clock_counts(tmp_path):
    bits = tmp_path / "a.bit"
    bits.write_bytes(bytes(99))
    placed = ecp5.read_report(report(fast=400.0, slow=201.26), bits, 8, 1, 3)
    assert (placed.fmax_mhz, placed.bitstream_bytes, placed.registered_bram) == (201.3, 99, 3)
    assert placed.critical_path[0] == "from a to b"


def test_report_without_a_clock_is_an_error(tmp_path):
    with pytest.raises(BackendError, match="no clock"):
        ecp5.read_report(report(), tmp_path / "a.bit", 8, 1, 0)


def test_unknown_speed_grade_is_refused():
    with pytest.raises(BackendError, match="speed grade 9"):
        ecp5.place_and_route(PRESETS["tiny"], speed_grade=9)


def test_unknown_router_is_refused():
    with pytest.raises(BackendError, match="router 'router3'"):
        ecp5.place_and_route(PRESETS["tiny"], router="router3")


def test_only_the_router_that_ends_routes_again():
    first, second = (ecp5.nextpnr_arguments(8, 1, router) for router in ecp5.ROUTERS)
    assert "--tmg-ripup" in first
    assert "--tmg-ripup" not in second


# ---- running tools and keeping results


def pretend(monkeypatch, tmp_path, body):
    """Makes a module whose function ``run`` has this body, and calls it the tool yosys."""
    (tmp_path / "pretended_tool.py").write_text(f"def run(argv):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(tools.TOOLS, "yosys", ("pretended_tool", "run"))


def test_missing_wheel_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(tools.TOOLS, "yosys", ("no_such_module_at_all", "run"))
    with pytest.raises(MissingDependencyError, match=r"pip install 'edgerun\[fpga\]'"):
        tools.run_tool("yosys", [], tmp_path)
    assert tools.tool_version("yosys") == "none"


def test_failing_tool_is_quoted(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path, "print('fine'); print('ERROR: no such wire'); return 3")
    with pytest.raises(BackendError, match="code 3: ERROR: no such wire$"):
        tools.run_tool("yosys", [], tmp_path)


def test_tool_that_takes_too_long_is_ended(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path, "import time; time.sleep(60)")
    with pytest.raises(BackendError, match="more than 1 s"):
        tools.run_tool("yosys", [], tmp_path, timeout_s=1)


def test_tool_gets_its_arguments_and_folder(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path, "import os; print(os.getcwd(), *argv)")
    assert tools.run_tool("yosys", ["-q", "a b"], tmp_path).split("\n")[0].endswith("-q a b")


def test_result_is_made_once(cache):
    contents = []

    def make(folder):
        contents.append(list(folder.iterdir()))
        return {"lut": 5}

    assert [tools.cached("x", "d", make) for _ in range(3)] == [{"lut": 5}] * 3
    assert contents == [[]]
    assert [file.name for file in cache.iterdir()] == ["x-d.json"]


def test_damaged_result_is_made_again(cache):
    cache.mkdir()
    (cache / "x-d.json").write_text('{"lut": ')
    assert tools.cached("x", "d", lambda folder: {"lut": 6}) == {"lut": 6}


def test_failure_leaves_nothing_behind(cache):
    def fail(folder):
        (folder / "half").write_text("")
        raise BackendError("no")

    with pytest.raises(BackendError):
        tools.cached("x", "d", fail)
    assert list(cache.iterdir()) == []


# ---- with the tools


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_engine_needs_no_multiplier_and_few_luts():
    """The promise of the project: 300 MAC/cycle in 4,000 LUT sites, by yosys' estimate."""
    estimate = xilinx.estimate(PRESETS["decode-300"])
    assert PRESETS["decode-300"].macs_per_cycle == 300
    assert estimate.dsp == 0
    assert 1000 < estimate.lut_sites <= 4000
    assert estimate.bram36 > 0


@pytest.mark.fpga
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_resources_follow_the_geometry():
    small, large = (xilinx.estimate(Geometry(ports=p, columns=1, nb_max=64)) for p in (1, 2))
    assert small.lut_sites < large.lut_sites < 2 * small.lut_sites
    assert small.cells["RAM32M16"] < large.cells["RAM32M16"]


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_wrapper_is_accepted_by_yosys(tmp_path):
    files = wrapped_rtl_files()
    script = tools.stage(files, tmp_path) + "hierarchy -check -top tlmm_wrapper\nproc\ncheck\n"
    (tmp_path / "run.ys").write_text(script)
    tools.run_tool("yosys", ["-q", "-s", "run.ys"], tmp_path)


@pytest.mark.slow
@pytest.mark.fpga
@pytest.mark.timeout(1800)
def test_engine_is_placed_on_an_ecp5_near_the_clock_we_want():
    """The goal is 200 MHz, which ``edgerun fpga check --full`` holds it to; this is the alarm.

    One placement of the same netlist is a tenth faster than another.
    """
    placed = ecp5.place_and_route(PRESETS["decode-75"])
    assert placed.dsp == 0
    assert placed.registered_bram == placed.bram
    assert placed.fmax_mhz >= 185
    assert placed.bitstream_bytes > 100_000
    assert json.dumps(placed.critical_path)


@pytest.mark.fpga
def test_missing_tool_does_not_break_the_import():
    code = "import edgerun_hw.synthesis.ecp5, edgerun_hw.check.checks, edgerun_hw.check.diagnosis"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
