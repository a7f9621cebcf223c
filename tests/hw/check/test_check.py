"""``edgerun fpga check``, ``build`` and ``bench``: tables, codes, what is missing."""

import json
import os
import stat

import pytest

from edgerun.errors import BackendError, MissingDependencyError
from edgerun_hw.build.boards import load_board
from edgerun_hw.check import checks
from edgerun_hw.check.checks import Outcome, Plan, run_checks


@pytest.fixture
def only(monkeypatch):
    """Leaves the given checks alone in the registry."""

    def replace(**functions):
        monkeypatch.setattr(checks, "CHECKS", functions)

    return replace


def passing(plan):
    yield Outcome("", "this", "passed", "all well", {"count": 3})


def failing(plan):
    yield Outcome("", "first", "passed", "well")
    raise BackendError("the tool died")


def lacking(plan):
    raise MissingDependencyError("yosys is not installed: pip install 'edgerun[fpga]'")
    yield


# ---- check


def test_every_part_of_the_issue_is_checked():
    expected = [
        "generated files",
        "lint",
        "language",
        "co-simulation",
        "resources",
        "units",
        "fit",
        "place and route",
    ]
    assert list(checks.CHECKS) == expected


def test_a_check_that_breaks_has_failed_and_the_others_still_run(only):
    only(broken=failing, good=passing)
    outcomes = list(run_checks(Plan()))
    assert [(o.check, o.result) for o in outcomes] == [
        ("broken", "passed"),
        ("broken", "failed"),
        ("good", "passed"),
    ]
    assert outcomes[1].figure == "the tool died"


def test_what_is_not_installed_is_skipped_with_the_command_that_installs_it(only):
    only(resources=lacking)
    (outcome,) = run_checks(Plan())
    assert outcome.result == "skipped" and "pip install" in outcome.figure


def test_one_table_on_stdout_and_progress_on_stderr(run, only):
    only(good=passing)
    code, out, err = run("check")
    assert code == 0
    assert out.splitlines()[0].split("\t") == ["check", "of", "result", "figure", "s"]
    assert "all well" in out and "good" in err


def test_any_failure_makes_the_exit_code_1(run, only):
    only(good=passing, broken=failing)
    code, out, err = run("check")
    assert code == 1
    assert "1 of 3 checks failed" in err


def test_json_is_one_object_with_the_values(run, only):
    only(good=passing)
    code, out, _ = run("check", "--json")
    report = json.loads(out)
    assert report["passed"] is True
    assert report["checks"][0]["values"] == {"count": 3}


def test_unknown_geometry_is_refused_before_work_begins(run, only):
    only(broken=failing)
    code, out, err = run("check", "--geometry", "decode-7")
    assert code == 2 and out == ""
    assert "decode-7" in err and "decode-75" in err


def test_stale_generated_file_is_named(monkeypatch, tmp_path):
    from edgerun_hw.registers import generated

    monkeypatch.setattr(generated, "stale_files", lambda: [tmp_path / "tlmm_pkg.sv"])
    (outcome,) = checks.CHECKS["generated files"](Plan())
    assert outcome.result == "failed" and "tlmm_pkg.sv" in outcome.figure


def test_what_takes_minutes_is_not_done_unasked():
    for name in ("fit", "place and route"):
        (outcome,) = checks.CHECKS[name](Plan())
        assert outcome.result == "skipped" and "--full" in outcome.figure


def test_too_many_luts_fail(monkeypatch):
    from edgerun_hw.synthesis import xilinx

    cells = {"LUT6": 4001, "FDRE": 1}
    monkeypatch.setattr(xilinx, "estimate", lambda *given: xilinx.summarise(cells))
    (outcome,) = checks.CHECKS["resources"](Plan(geometries=("decode-300",)))
    assert outcome.result == "failed"
    (outcome,) = checks.CHECKS["resources"](Plan(geometries=("prefill-1500",)))
    assert outcome.result == "passed"


def test_a_multiplier_fails(monkeypatch):
    from edgerun_hw.synthesis import xilinx

    cells = {"LUT6": 1, "DSP48E2": 1}
    monkeypatch.setattr(xilinx, "estimate", lambda *given: xilinx.summarise(cells))
    (outcome,) = checks.CHECKS["resources"](Plan(geometries=("decode-75",)))
    assert outcome.result == "failed"


def test_overlay_that_does_not_fit_its_board_fails(monkeypatch):
    from edgerun_hw.synthesis import xilinx

    asked = []

    def estimate(geometry, module, family):
        asked.append((geometry.addr_bits, module, family))
        return xilinx.summarise({"LUT6": 60_000, "RAMB36E2": 100})

    monkeypatch.setattr(xilinx, "estimate", estimate)
    outcomes = list(checks.CHECKS["fit"](Plan(full=True)))
    results = {outcome.subject.split(", ")[1]: outcome.result for outcome in outcomes}
    assert results == {"kv260": "passed", "pynq-z2": "failed", "ultra96v2": "passed"}
    assert (32, "tlmm_top", "xc7") in asked and (40, "tlmm_top", "xcup") in asked


def test_a_board_whose_synthesis_ends_early_fails_and_the_others_are_looked_at(monkeypatch):
    from edgerun.errors import BackendError
    from edgerun_hw.synthesis import xilinx

    def estimate(geometry, module, family):
        if geometry.attention:
            raise BackendError("yosys was ended")
        return xilinx.summarise({"LUT6": 1})

    monkeypatch.setattr(xilinx, "estimate", estimate)
    outcomes = {o.subject.split(", ")[1]: o for o in checks.CHECKS["fit"](Plan(full=True))}
    results = {name: outcome.result for name, outcome in outcomes.items()}
    assert results == {"kv260": "failed", "pynq-z2": "passed", "ultra96v2": "passed"}
    assert outcomes["kv260"].figure == "yosys was ended"


def test_ultrarams_that_a_part_lacks_fail(monkeypatch):
    from edgerun_hw.synthesis import xilinx

    cells = {"LUT6": 1, "URAM288": 8}
    monkeypatch.setattr(xilinx, "estimate", lambda *given: xilinx.summarise(cells))
    outcomes = {o.subject.split(", ")[1]: o for o in checks.CHECKS["fit"](Plan(full=True))}
    results = {name: outcome.result for name, outcome in outcomes.items()}
    assert results == {"kv260": "passed", "pynq-z2": "failed", "ultra96v2": "failed"}
    assert "8 of 64 UltraRAMs" in outcomes["kv260"].figure


def test_units_are_held_to_their_luts_and_multipliers(monkeypatch):
    from edgerun_hw.synthesis import xilinx

    needs = {"tlmm_attention": {"LUT6": 25_001}, "tlmm_glue": {"LUT6": 4000, "DSP48E2": 1}}
    monkeypatch.setattr(xilinx, "estimate", lambda _, module: xilinx.summarise(needs[module]))
    outcomes = list(checks.CHECKS["units"](Plan(full=True)))
    assert [(o.subject, o.result) for o in outcomes] == [
        ("tlmm_attention", "failed"),
        ("tlmm_glue", "failed"),
    ]
    needs["tlmm_attention"] = {"LUT6": 25_000, "DSP48E2": 130}
    del needs["tlmm_glue"]["DSP48E2"]
    assert {o.result for o in checks.CHECKS["units"](Plan(full=True))} == {"passed"}
    (outcome,) = checks.CHECKS["units"](Plan())
    assert outcome.result == "skipped"


def test_slang_has_no_warnings_in_any_preset():
    pytest.importorskip("pyslang")
    from edgerun_hw.overlay.geometry import PRESETS

    outcomes = list(checks.CHECKS["language"](Plan(geometries=tuple(PRESETS))))
    assert [outcome.subject for outcome in outcomes] == [*PRESETS, "tlmm_glue"]
    for outcome in outcomes:
        assert outcome.result == "passed", outcome.figure


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("module m(output logic a); assign a = b; logic b; endmodule", "before its declaration"),
        ("module m(output logic [3:0] a); n n(.a(a[0])); endmodule", "unknown module 'n'"),
        ("module m(output logic a) assign a = 0; endmodule", "expected ';'"),
    ],
)
def test_what_slang_refuses_is_named_with_its_place(tmp_path, text, complaint):
    pytest.importorskip("pyslang")
    from edgerun_hw.check.elaboration import elaborate

    file = tmp_path / "m.sv"
    file.write_text(text)
    (diagnostic, *_) = elaborate([file], "m", {})
    assert diagnostic.startswith("m.sv:1: error") and complaint in diagnostic


def test_without_slang_the_check_is_skipped_with_what_installs_it(monkeypatch):
    from edgerun_hw.check import elaboration

    monkeypatch.setattr(elaboration, "find_spec", lambda name: None)
    monkeypatch.setattr(checks, "CHECKS", {"language": checks.CHECKS["language"]})
    (outcome,) = run_checks(Plan())
    assert outcome.result == "skipped" and "pip install 'edgerun[fpga]'" in outcome.figure


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_lint_has_no_warnings_in_any_preset():
    from edgerun_hw.overlay.geometry import PRESETS

    for outcome in checks.CHECKS["lint"](Plan(geometries=tuple(PRESETS))):
        assert outcome.result == "passed", outcome.figure


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_cosimulation_compares_as_many_commands_as_asked():
    outcomes = list(checks.CHECKS["co-simulation"](Plan(cases=20, seed=5)))
    assert [outcome.result for outcome in outcomes] == ["passed", "passed"], outcomes
    assert sum(outcome.values["cases"] for outcome in outcomes) == 20
    assert all(outcome.values["cases"] for outcome in checks.CHECKS["co-simulation"](Plan(cases=1)))


# ---- build


def test_build_without_vivado_says_what_to_run(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = run("build", "--board", "kv260", "-o", tmp_path / "b")
    assert code == 0 and out == ""
    assert f"vivado -mode batch -nojournal -source {tmp_path / 'b' / 'build.tcl'}" in err
    assert f"edgerun fpga package {tmp_path / 'b' / 'out' / 'kv260.xsa'} --board kv260\n" in err
    assert (tmp_path / "b" / "settings.tcl").is_file()
    _, _, err = run("build", "--board", "kv260", "-o", tmp_path / "a b")
    assert f"-source '{tmp_path / 'a b' / 'build.tcl'}'\n" in err
    assert f"package '{tmp_path / 'a b' / 'out' / 'kv260.xsa'}' --board" in err


def vivado(folder, code):
    program = folder / "vivado"
    program.write_text(f'#!/bin/sh\necho "$@" > "{folder}/arguments"\nexit {code}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_build_runs_vivado_where_there_is_one(run, tmp_path, monkeypatch):
    vivado(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, _, _ = run("build", "--board", "ultra96v2", "-o", tmp_path / "b")
    assert code == 0
    assert (tmp_path / "arguments").read_text().startswith("-mode batch")


def test_failure_of_vivado_is_a_failure(run, tmp_path, monkeypatch):
    vivado(tmp_path, 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, _, err = run("build", "--board", "kv260", "-o", tmp_path / "b")
    assert code == 1 and "Vivado ended with code 1" in err


def test_build_refuses_what_cannot_be(run, tmp_path):
    assert run("build", "--board", "kv261")[0] == 2
    arguments = ("build", "--board", "pynq-z2", "--geometry", "prefill-1500", "-o", tmp_path / "b")
    code, _, err = run(*arguments)
    assert code == 2 and "4 ports" in err
    assert not (tmp_path / "b").exists()


# ---- bench


def test_bench_labels_what_is_modelled(run):
    code, out, _ = run("bench", "--no-simulate", "--clock", "250")
    assert code == 0
    assert "modelled" in out and "250 MHz assumed" in out and "no board" in out
    assert "github.com/MerlijnW70/bitnet-kv260" in out and "published" in out and "assumed" in out


def test_bench_takes_the_clock_that_the_board_asks_for(run):
    report = json.loads(run("bench", "--no-simulate", "--json")[1])
    assert report["assumptions"]["clock_mhz"] == load_board(report["profile"]["board"]).pl_clock_mhz


def test_bench_takes_all_that_a_board_says(run):
    report = json.loads(run("bench", "--no-simulate", "--json", "--board", "kv260")[1])
    board = load_board("kv260")
    assert (report["board"], report["geometry"]) == ("kv260", board.geometry)
    assert report["profile"]["board"] == "kv260"
    chosen = ("bench", "--no-simulate", "--json", "--geometry", board.geometry)
    assert json.loads(run(*chosen)[1])["terms"] == report["terms"]
    other = ("--board", "ultra96v2", "--profile", "kv260", "--geometry", "decode-75")
    report = json.loads(run("bench", "--no-simulate", "--json", *other)[1])
    assert report["geometry"] == "decode-75"
    assert report["assumptions"]["clock_mhz"] == load_board("ultra96v2").pl_clock_mhz


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--board", "kv261"), "no board 'kv261'"),
        (("--board", "pynq-z2"), "nobody's measurements of the board 'pynq-z2'"),
        (("--board", "kv260", "--geometry", "decode-7"), "decode-7"),
    ],
)
def test_bench_refuses_boards_of_which_nothing_is_known(run, arguments, words):
    code, out, err = run("bench", "--no-simulate", *arguments)
    assert code == 2 and out == "" and words in err


def test_bench_states_how_keys_and_values_are_stored(run):
    out = run("bench", "--no-simulate", "--kv-cache", "fp16")[1]
    assert "250 MHz, fp16 keys and values" in out and "attention (fp16 keys and values)" in out
    code, out, err = run("bench", "--no-simulate", "--kv-cache", "int3")
    assert code == 2 and out == "" and "there are int8, fp16" in err


def test_bench_refuses_a_profile_that_is_not_there(run):
    code, out, err = run("bench", "--no-simulate", "--profile", "kv261")
    assert code == 2 and out == "" and "no profile 'kv261'" in err


def test_bench_json_holds_the_assumptions(run):
    code, out, _ = run("bench", "--no-simulate", "--json", "--context", "512")
    report = json.loads(out)
    assert report["assumptions"]["clock_mhz"] == 250
    assert report["context"] == 512 and report["simulated"] == []
    for table in ("bound", "modelled"):
        assert {row["model"] for row in report[table]} >= {"bitnet-0.73b", "bitnet-2b-4t"}
    assert report["profile"]["figures"]["body_gb_per_s"]["kind"] == "published"
