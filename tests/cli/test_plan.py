"""``edgerun plan``: terms for programs to read, and a plot."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgerun.backends.cpu import CpuBackend
from edgerun.backends.registry import Candidates
from edgerun.cli.main import main
from edgerun.cli.screen import plan_plot
from edgerun.cli.screen.plan_plot import POINTS, _lengths
from edgerun.engine.engine import DEFAULT_CHUNK_ROWS
from edgerun.graph.ir import Graph
from edgerun.kernels.host import cores as host_cores
from edgerun.machine.profile import MachineProfile
from edgerun.plan.plans import Plan
from edgerun.plan.routes import plan_for
from edgerun.plan.tasks import Budget
from tests.support.bundles import bundle_of

LAPTOPS = Path(__file__).parents[2] / "tools" / "laptops"
ON_CPU = ("--backend", "cpu")
FAST, SLOW = (f"virtual:{LAPTOPS / name}.json" for name in ("npu-48-tops", "npu-11-tops"))


@pytest.fixture(scope="module")
def folder() -> str:
    return str(bundle_of("llama", weights="int4"))


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_json_has_all_terms_of_the_break_even(
    folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    laptop = json.loads(Path(FAST.removeprefix("virtual:")).read_text())
    device = laptop["device"]
    report = planned(capsys, folder, "--device", FAST)
    assert {row["phase"] for row in report["placements"]} >= {"prefill", "few", "decode"}
    rows = {row["phase"]: row["rows"] for row in report["placements"] if row["chosen"]}
    assert (rows["prefill"], rows["few"], rows["decode"]) == (128, 4, 1)
    assert all(row["chosen"] for row in report["placements"])
    (split,) = report["splits"]
    assert (split["there"], split["here"]) == (["virtual:npu-48-tops"], ["cpu"])
    assert (split["launch_s"], split["C"]) == (device["launch_s"], [64, 256])
    assert laptop["date"] in split["basis"]
    n, size = split["longest"], split["C"].index(256)
    assert n == 512
    there = split["launch_s"] + (n - 1) * split["h_s"] + split["t_decode_s"]
    there += 2 * split["t_C_s"][size]
    assert split["seconds_there"] == pytest.approx(there)
    assert split["seconds_here"] == pytest.approx(n / split["r_tokens_per_s"])
    assert report["from_tokens"] == split["from_tokens"]
    assert report["verdict"].startswith("simulated: cpu alone")  # of a model as small as this


def test_json_says_from_which_length_on_prompts_go_elsewhere(
    folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = json.loads(Path(FAST.removeprefix("virtual:")).read_text())
    text["device"]["launch_s"] = text["device"]["call_s"] = 1e-9
    text["host"]["rates"] = {"float/float32": {"1": 1e6}}
    path = tmp_path / "fast.json"
    path.write_text(json.dumps(text))
    report = planned(capsys, folder, "--device", f"virtual:{path}")
    assert report["from_tokens"] == 18
    assert f"from {report['from_tokens']} prompt tokens on" in report["verdict"]


def test_a_plan_says_what_few_are_and_offers_no_simulated_devices(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", folder, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "\nfew: calls of 2 to 16 tokens, as of several replies" in shown
    assert "onnxruntime  not asked for" in shown
    assert not re.search("virtual|standin", shown)


def test_without_devices_there_are_no_terms(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = planned(capsys, folder, "--backend", "cpu")
    assert (report["splits"], report["from_tokens"], report["verdict"]) == ([], None, "")


def test_a_plot_has_a_line_for_each_placement(
    folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.svg"
    assert main(["plan", folder, "--device", FAST, "--plot", str(path)]) == 0
    assert "not" not in capsys.readouterr().err
    text = path.read_text()
    comments = re.findall(r"<!-- (.*?) -->", text)
    for shown in ("cpu", "virtual:npu-48-tops, last tokens cpu", "prompt tokens"):
        assert shown in comments
    assert any("simulated" in comment for comment in comments)


def test_a_plot_marks_the_break_even(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axis = Figure().add_subplot()
    plan_plot._mark(axis, 123)
    (line,) = axis.get_lines()
    assert set(line.get_xdata()) == {123}
    assert [text.get_text() for text in axis.texts] == ["from 123 tokens on"]


def test_lengths_of_a_plot_begin_and_end_where_prompts_do() -> None:
    for longest in (2, 3, 100, 2048):
        lengths = list(_lengths(longest))
        assert (lengths[0], lengths[-1]) == (2, longest)
        assert lengths == sorted(set(lengths)) and len(lengths) <= POINTS + 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--plot", "plan.txt"), "a plot is written as .svg, .png, .pdf; expected a name such as"),
        (("--plot", "plan.svg", "--backend", "cpu"), "there is nothing to plot: no device was"),
        (
            ("--plot", "absent/plan.svg", "--device", FAST),
            "cannot write absent/plan.svg: there is no folder",
        ),
    ],
)
def test_a_plot_that_cannot_be_is_one_sentence(
    folder: str,
    arguments: tuple[str, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", folder, *arguments]) != 0
    said = capsys.readouterr()
    assert sentence in " ".join(said.err.split())
    assert said.out == "" and not list(tmp_path.iterdir())


def test_without_matplotlib_a_sentence_says_what_to_install(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_plot, "find_spec", lambda name: None)
    assert main(["plan", folder, "--device", FAST, "--plot", "plan.svg"]) != 0
    assert "pip install matplotlib" in " ".join(capsys.readouterr().err.split())


def test_more_threads_are_expected_to_take_less(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgerun.backends.cpu.machine_profile", MachineProfile)
    monkeypatch.setattr(host_cores, "cores", lambda: host_cores.Cores(8, 8, 8, None))
    seconds = [
        sum(row["seconds"] for row in planned(capsys, folder, *ON_CPU, "-t", count)["placements"])
        for count in ("1", "8")
    ]
    assert seconds[1] < 0.9 * seconds[0]


def test_a_plan_is_for_the_weights_as_they_will_lie_in_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = str(bundle_of("bitnet-offline"))
    held = []
    for pack in ("two_bits", "trits"):
        assert main(["plan", bundle, *ON_CPU, "--pack", pack, "--explain"]) == 0
        (line,) = (each for each in capsys.readouterr().out.splitlines() if "ternary ones" in each)
        assert line.endswith(f"ternary ones as {pack}")
        held.append(line.removesuffix(pack))
    assert held[0] != held[1]
    assert main(["plan", str(bundle_of("llama", weights="int4")), *ON_CPU, "--explain"]) == 0
    assert "ternary ones" not in capsys.readouterr().out


def test_back_ends_know_how_keys_and_values_are_stored(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Mapping[str, Any]] = []
    configure = CpuBackend.configure

    def note(self: CpuBackend, choices: Mapping[str, Any]) -> None:
        given.append(choices)
        configure(self, choices)

    monkeypatch.setattr(CpuBackend, "configure", note)
    planned(capsys, folder, *ON_CPU, "--kv-cache", "int8")
    assert given[-1]["kv_cache"] == "int8"


def test_calls_are_as_large_as_those_of_a_model_that_is_loaded(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[Budget] = []

    def note(graph: Graph, candidates: Candidates, budget: Budget, *, weighs_all: bool) -> Plan:
        budgets.append(budget)
        return plan_for(graph, candidates, budget, weighs_all=weighs_all)

    monkeypatch.setattr("edgerun.plan.routes.plan_for", note)
    planned(capsys, folder)
    assert [budget.call_rows for budget in budgets] == [DEFAULT_CHUNK_ROWS]
