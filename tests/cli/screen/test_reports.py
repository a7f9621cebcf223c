"""Commands that print reports: bench, perplexity; and tables."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun.backends import make_backend
from edgerun.backends.figures import Report
from edgerun.cli.screen.progress import CLEAR
from edgerun.cli.screen.report import report_lines
from edgerun.cli.screen.tables import aligned, print_pairs, print_rows, size
from edgerun.llm.loading import own_model
from edgerun.machine.profile import MachineProfile
from edgerun.plan.calibration import processor as calibration
from edgerun.plan.workload import Workload
from tests.cli.conftest import Run
from tests.support import fakes


def test_bench_prints_one_object(run: Run) -> None:
    result = run("bench", "-p", "20", "-n", "5", "--repeat", "2", "--json")
    assert run.asked.options.draft == "none"  # the tokens mean nothing, so repeat themselves
    report = json.loads(result.out)
    assert (report["prompt_tokens"], report["new_tokens"], report["runs"]) == (20, 5, 2)
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "resident_bytes", "load_s"):
        assert report[name] > 0
    shown = run("bench", "-p", "2", "-n", "2", "--repeat", "1").out
    assert "decode" in shown
    assert report["memory_now_gb_per_s"] == 4.0
    assert " GB/s, 4.0 right after the runs; int8 products made at" in shown


def test_bench_holds_each_phase_against_the_limits(run: Run) -> None:
    report = json.loads(run("bench", "-p", "20", "-n", "5", "--repeat", "1", "--json").out)
    phases = report["phases"]
    assert {name: part["tokens"] for name, part in phases.items()} == {"prefill": 20, "decode": 4}
    assert {name: part["calls"] for name, part in phases.items()} == {"prefill": 2, "decode": 4}
    for part in phases.values():
        assert part["tokens_per_s"] > 0
        assert part["share_of_memory_limit"] >= 0
        assert part["share_of_int8_peak"] >= 0
        assert part["launch"] is None  # the fake model does not count
        assert (part["paths"], part["int8_peak_tops"]) == ([], report["int8_peak_tops"])
    used = report["memory"]
    assert used["peak_bytes"] >= used["resident_bytes"] > used["kv_bytes"] > 0
    assert report["int8_peak_tops"] > 0


def test_bench_says_what_more_rows_cost(run: Run) -> None:
    arguments = ["-p", "5", "-n", "2", "--repeat", "1", "--rows", "4,2,16"]
    rows = json.loads(run("bench", *arguments, "--json").out)["rows"]
    assert [each["rows"] for each in rows] == [1, 2, 4, 16]  # one, to compare with, in any case
    assert rows[0]["ratio"] == 1
    for each in rows:
        assert each["ratio"] == pytest.approx(each["ms"] / rows[0]["ms"], rel=0.05)
        assert each["median_ms"] >= each["ms"] > 0
    table = run("bench", *arguments).out.splitlines()
    assert [line.split()[0] for line in table[-4:]] == ["1", "2", "4", "16"]
    assert "rows" not in json.loads(run("bench", *arguments[:-2], "--json").out)


@pytest.mark.parametrize("rows", ["", "0", "1,,2", "1,two", "-4", "5000"])
def test_bench_refuses_rows_that_are_no_numbers(run: Run, rows: str) -> None:
    result = run("bench", "--rows", rows)
    assert result.code == 2
    assert "expected numbers from 1 to 1024 with commas between them" in " ".join(
        result.err.split()
    )


def test_bench_refuses_rows_that_do_not_fit(run: Run) -> None:
    model = fakes.fake_model(context=32)
    result = run("bench", "-p", "20", "-n", "4", "--rows", "16", model=model)
    assert result.code == 2
    assert "16 rows after a prompt of 20 tokens do not fit the context of 32" in " ".join(
        result.err.split()
    )


@pytest.mark.parametrize("disturbance", ["", "other programs used 1.3 of 2 CPUs meanwhile"])
def test_bench_says_when_limits_could_not_be_stored(
    run: Run, monkeypatch: pytest.MonkeyPatch, disturbance: str
) -> None:
    profile = MachineProfile(bandwidth={1: 1e9}, fork_join_s={1: 1e-6})
    limits = calibration.Limits(profile, disturbance)
    monkeypatch.setattr(calibration, "limits", lambda threads: limits)
    arguments = ["-p", "2", "-n", "2", "--repeat", "1"]
    assert json.loads(run("bench", *arguments, "--json").out)["limits_disturbed_by"] == (
        disturbance or None
    )
    assert ("not stored: other programs used 1.3" in run("bench", *arguments).out) == bool(
        disturbance
    )


@pytest.mark.parametrize(
    ("backends", "line"),
    [(("cpu",), ""), ((), ""), (("reference", "cpu"), "back-ends    reference, cpu; the usual")],
)
def test_stats_name_back_ends_that_are_unusual(
    run: Run, backends: tuple[str, ...], line: str
) -> None:
    model = fakes.fake_model()
    model.backends = tuple(make_backend(name) for name in backends)
    shown = run("run", "-p", "hello", "-n", "2", "--stats", model=model).err
    assert "decode" in shown
    assert ("back-ends" in shown) == bool(line)
    assert line in shown


@pytest.mark.parametrize("context", [6, 100, 512])
def test_bench_decodes_up_to_the_end_of_a_context(run: Run, context: int) -> None:
    arguments = ["-p", "2", "-n", "5", "--repeat", "2", "--context", str(context), "--json"]
    report = json.loads(run("bench", *arguments, model=fakes.fake_model(context=context)).out)
    assert (report["prompt_tokens"], report["new_tokens"]) == (2, 5)
    assert report["context_tokens"] == context - 1  # the last token is not fed back
    assert report["decode_tokens_per_s"] > 0


def test_bench_takes_a_prompt_that_fits_when_none_is_named(run: Run) -> None:
    model = fakes.fake_model(context=40)
    report = json.loads(run("bench", "-n", "10", "--repeat", "1", "--json", model=model).out)
    assert report["prompt_tokens"] == 30


@pytest.mark.parametrize("arguments", [["-p", "35"], ["-n", "40"], ["-p", "1", "-n", "50"]])
def test_bench_measures_no_fewer_tokens_than_were_asked_for(run: Run, arguments: list[str]) -> None:
    model = fakes.fake_model(context=40)
    result = run("bench", *arguments, "--repeat", "1", model=model)
    assert (result.code, result.out) == (2, "")
    assert "do not fit into the model's context of 40 tokens" in " ".join(result.err.split())


def test_launches_are_what_is_left_of_a_call() -> None:
    from edgerun.backends.base import Launches
    from edgerun.cli.benchmark.report import Work, launch

    work = Work(tokens=10, calls=10, seconds=1.0, native_s=0.9, read_bytes=0, macs=0)
    llm = SimpleNamespace(model=SimpleNamespace(workload=Workload(layers=5)))
    costs = launch(llm, Launches(instructions=20, waits=10, runs=10), work, 1e-3)
    assert costs == {
        "instructions": 20,
        "waits": 10,
        "python_us": 10_000,
        "fork_join_us": 10_000,
        "us_per_layer": 4_000,
        "share": 0.2,
    }


def test_bench_refuses_a_size_that_does_not_fit(run: Run) -> None:
    result = run("bench", "-p", "5000", "--json")
    assert (result.code, result.out) == (2, "")


def test_perplexity_prints_one_object(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\n<|end|>\ntwo\n<|end|>\nthree\n")
    arguments = ["perplexity", "m", str(tmp_path / "text"), "--json"]
    whole = json.loads(run(*arguments).out)
    parts = json.loads(run(*arguments, "--separator", "<|end|>").out)
    limited = json.loads(run(*arguments, "--separator", "<|end|>", "--limit", "1").out)
    assert (whole["documents"], parts["documents"], limited["documents"]) == (1, 3, 1)
    assert (whole["bytes"], parts["bytes"], limited["bytes"]) == (30, 11, 3)
    for report in (whole, parts, limited):
        per_token = math.log2(report["perplexity"])
        assert report["bits_per_byte"] * report["bytes"] == pytest.approx(
            per_token * report["tokens"], rel=1e-4
        )


def be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_terminal_sees_how_far_scoring_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_a_terminal(monkeypatch)
    (tmp_path / "text").write_text("one\n--\ntwo\n")
    arguments = ["perplexity", "m", str(tmp_path / "text"), "--separator", "--"]
    shown = run(*arguments, model=fakes.fake_model(context=64)).err.split(CLEAR)
    assert shown[2] == "window 1, 0 tokens done"
    assert "1 text, window 2, 3 tokens done" in shown
    assert shown[-1] == ""


def test_a_terminal_sees_how_far_measuring_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    be_a_terminal(monkeypatch)
    arguments = ["-p", "2", "-n", "2", "--repeat", "2", "--rows", "2"]
    shown = run("bench", *arguments).err.split(CLEAR)
    expected = [
        "warming up, 2 runs to come",
        "run 1 of 2",
        "run 2 of 2",
        "measuring what this machine can do",
        "calls of 1 row, turn 1 of 2",
        "calls of 2 rows, turn 1 of 2",
    ]
    assert shown[2:8] == expected
    assert shown[-1] == ""


def test_a_pipe_sees_nothing_of_that(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one")
    assert run("bench", "-p", "2", "-n", "2", "--repeat", "1").err == ""
    result = run("perplexity", "m", str(tmp_path / "text"))
    assert result.err == ""
    assert "(3 tokens, 3 bytes, 1 text, windows of " in result.out


def test_bench_calls_the_model_that_comes_along_as_chats_do(run: Run) -> None:
    own = own_model()
    assert own is not None
    model = fakes.fake_model()
    arguments = ["bench", "-p", "2", "-n", "2", "--repeat", "1"]
    assert run(*arguments, model=model).out.startswith(f"{model.path}: ")
    model = dataclasses.replace(fakes.fake_model(), path=own)
    assert run(*arguments, model=model).out.startswith("edgerun's own small model: ")
    model = dataclasses.replace(fakes.fake_model(), path=own)
    assert json.loads(run(*arguments, "--json", model=model).out)["model"] == str(own)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff", None])
def test_unusable_files_are_a_mistake(run: Run, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    result = run("perplexity", "m", str(tmp_path / "text"))
    assert (result.code, result.out) == (2, "")
    assert "text" in result.err


def test_a_file_without_an_end_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.cli.perplexity.MAX_FILE_BYTES", 100)
    result = run("perplexity", "m", "/dev/zero")
    assert (result.code, result.out) == (2, "")
    assert "/dev/zero is larger than 100 bytes" in result.err


def test_bench_is_one_table(run: Run) -> None:
    lines = run("bench", "-p", "20", "-n", "5", "--repeat", "1").out.splitlines()
    header, prefill, decode = lines[2:5]
    assert header.split()[:3] == ["phase", "tokens", "tokens/s"]
    assert prefill.split()[:2] == ["prefill", "20"]
    assert decode.split()[:2] == ["decode", "4"]
    assert max(map(len, lines[2:5])) < 80


@pytest.mark.parametrize("wait_s", [1e-9, 1e-3, 10.0])
@pytest.mark.parametrize("native_s", [0.0, 0.5, 1.0, 1.5])
def test_what_a_call_costs_is_at_most_the_call(native_s: float, wait_s: float) -> None:
    from edgerun.backends.base import Launches
    from edgerun.cli.benchmark.report import Work, launch

    work = Work(tokens=9, calls=9, seconds=1.0, native_s=native_s, read_bytes=0, macs=0)
    llm: Any = SimpleNamespace(model=SimpleNamespace(workload=Workload(layers=5)))
    costs = launch(llm, Launches(instructions=900, waits=100, runs=9), work, wait_s)
    assert costs is not None
    assert 0 <= costs["share"] <= 1


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2.5e9, "2.50 GB")]
)
def test_sizes_are_for_people(count: float, text: str) -> None:
    assert size(count) == text


def test_a_plain_table_has_its_numbers_to_the_right() -> None:
    rows = [{"part": "o", "cycles": 7}, {"part": "gate/up", "cycles": 1234}]
    assert aligned(rows) == ["part     cycles", "o             7", "gate/up    1234"]
    assert aligned([]) == []


def test_tables_on_a_terminal_break_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    text = "several words that take more room, a-hyphen-in-each-of-them, than there is"
    print_rows([{"phase": "decode", "cost": "1.25 ms", "why": text}] * 2)
    print_pairs("title", {"name": text})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 50
    assert out.split().count("several") == 3
    assert " ".join(out.split()).count(text) == 3
    assert out.startswith("phase      cost  why\n")


def test_reports_of_devices_are_shown_as_tables() -> None:
    report = Report("cycles", [{"part": "o", "cycles": 7}], ["a note"])
    llm: Any = SimpleNamespace(reports=lambda: [report])
    lines = report_lines(llm)
    assert lines == ["cycles", "  part  cycles", "  o          7", "  a note"]
