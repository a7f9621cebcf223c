"""Figures, results file and pages of the comparison with other runtimes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest


def peer(samples: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    memory = {"peak_bytes": 1500, "rss_bytes": 1100, "cache_bytes": 200}
    return {
        "samples": samples,
        "version": "1.0; and more",
        "load_s": 1.0,
        "weight_bytes": 1000,
        "step_bytes": 10**9,
        "other_cores": 0.0,
        **memory,
        **more,
    }


def make_run(kind: str = "compare", preset: str = "bitnet-2b-4t", **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "preset": preset,
        "threads": 2,
        "rounds": 3,
        "prompt": 16,
        "decode": 64,
        "context": 100,
        "date": "2026-01-01",
        "machine": "x86_64",
        "processor": "a processor",
        "isa": "avx2",
        "complete": True,
        "bandwidth": [30e9, 40e9],
        "int8_peak": 100e9,
        "macs": {"row_macs": 1000, "logit_macs": 100},
        "peers": {
            "edgerun:int8": peer({"decode": [26.0, 30.0, 28.0], "prefill-128": [60.0, 60.0, 60.0]}),
            "llamacpp:tq2_0": peer(
                {"decode": [10.0, 10.0, 14.0], "prefill-128": [40.0, 50.0, 60.0]}
            ),
            "onnxruntime:int8": {"error": "not | installed"},
        },
        **more,
    }


def test_ratios_are_taken_round_by_round() -> None:
    from tools.bench.peers import figures

    # The medians' ratio would be 3.
    assert figures.pair_ratios([1.0, 3.0, 8.0], [1.0, 1.0, 2.0])["median"] == 3.0
    assert figures.pair_ratios([1.0, 3.0, 9.0], [1.0, 2.0, 1.0]) == {
        "median": 1.5,
        "min": 1.0,
        "max": 9.0,
    }


def test_figures_say_bandwidth_and_memory() -> None:
    from tools.bench.peers import figures

    summary = figures.summary(make_run())["peers"]["edgerun:int8"]
    assert summary["weight_gb_per_s"] == 28.0
    assert summary["bandwidth_share"] == 0.7  # 26, 30, 28 of 40, 40, 40
    assert summary["memory_over_weights"] == 1.1
    assert summary["other_memory_mb"] == pytest.approx((1500 - 1000 - 200) / 1e6)


def test_shares_of_bandwidth_are_taken_round_by_round() -> None:
    from tools.bench.peers import figures

    # Before the first round 50; after the rounds 40, 20 and 30.
    assert figures.bandwidth_shares([25.0, 20.0, 15.0], [50.0, 40.0, 20.0, 30.0]) == [0.5, 0.5, 0.5]


def test_goals_compare_what_was_asked() -> None:
    from tools.bench.peers import figures

    rows = {row["name"]: row for row in figures.summary(make_run())["goals"]}
    assert rows["decode edgerun:int8 / llamacpp:tq2_0"]["met"]  # 2.6 of 2.4
    assert not rows["prefill-128 edgerun:int8 / llamacpp:tq2_0"]["met"]  # 1.2 of 8
    assert rows["MB beside weights and cache edgerun:int8"]["met"]


def test_memory_below_zero_is_not_a_goal_that_was_met() -> None:
    from tools.bench.peers import figures

    (row,) = figures.goals("tiny", {"edgerun:int8": {"other_memory_mb": -246.7}}, {})
    assert row["met"] is None
    assert "| below 0 | ≤ 150 | cannot be told |" in figures.goal_table([row])


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_commit_of_llama_cpp_is_what_its_library_states(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = types.ModuleType("llama_cpp")
    fake.__file__, fake.__version__ = str(tmp_path / "llama_cpp" / "__init__.py"), "0"  # type: ignore[attr-defined]
    fake.llama_print_system_info = lambda: b""  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", fake)
    monkeypatch.delitem(sys.modules, "tools.bench.peers.runners.llamacpp", raising=False)
    from tools.bench.peers.runners import llamacpp

    assert llamacpp.commit(tmp_path) == "unknown"
    source = tmp_path / "ggml.c"
    source.write_text('const char *ggml_commit(void) { return "0c1e57098"; }\n')
    library = tmp_path / "libggml-base.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert llamacpp.commit(tmp_path) == "0c1e57098"
    monkeypatch.delitem(sys.modules, "tools.bench.peers.runners.llamacpp")


@pytest.mark.parametrize(
    ("preset", "mine", "other", "what", "least"),
    [
        ("bitnet-2b-4t", "edgerun:int4", "onnxruntime:int4", "decode", 2.5),
        ("bitnet-2b-4t", "edgerun:int4", "onnxruntime:int8", "decode", None),
        ("bitnet-2b-4t", "edgerun:int8", "llamacpp:q4_0", "prefill-512", 4.0),
        ("bitnet-2b-4t", "edgerun:int8", "openvino:int8", "decode", None),
        ("llama-3.2-1b", "edgerun:w4g32", "openvino:w4g32", "decode", 1.0),
        ("llama-3.2-1b", "edgerun:w4g32", "openvino:w4g128", "decode", None),
        ("default", "edgerun:as-shipped", "llamacpp:q4_0", "prefill-128", 1.0),
        ("tiny", "edgerun:int8", "llamacpp:tq2_0", "decode", None),
    ],
)
def test_what_a_pair_is_to_reach(
    preset: str, mine: str, other: str, what: str, least: float | None
) -> None:
    from tools.bench.peers import figures

    assert figures.least_ratio(preset, mine, other, what) == least


def test_table_shows_failures_and_ratios() -> None:
    from tools.bench.peers import figures

    text = figures.table(figures.summary(make_run()))
    assert "| onnxruntime:int8 | failed: not / installed |" in text
    assert "| edgerun:int8 / llamacpp:tq2_0 | 2.60 (2.00–3.00) |" in text


def test_a_run_that_ended_early_is_summed_up(tmp_path: Path) -> None:
    from tools.bench.peers import figures

    run = make_run(complete=False, bandwidth=[], peers={"edgerun:int8": {"error": "died"}})
    summed = figures.summary(run)
    assert not summed["ratios"]
    assert "failed: died" in figures.table(summed)


def test_results_grow_and_tell_what_is_known(tmp_path: Path) -> None:
    from tools.bench.peers.results import Results

    path = tmp_path / "folder" / "results.json"
    results = Results(path)
    results.add(make_run())
    results.add(make_run("prompt", complete=False))
    again = Results(path)
    assert again.runs == results.runs
    assert again.measured("compare", "bitnet-2b-4t", 2) == {"edgerun:int8", "llamacpp:tq2_0"}
    assert again.measured("prompt", "bitnet-2b-4t", 2) == set()
    assert again.measured("compare", "bitnet-2b-4t", 1) == set()


def test_pages_are_written_between_the_marks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tools.bench.peers import pages

    page = tmp_path / pages.PAGE
    page.write_text(f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n")
    (tmp_path / pages.GOALS_PAGE).write_text(page.read_text())
    lengths = {"decode@128": [3.0, 2.0], "decode@1024": [2.0, 1.0]}
    prompts = {"prefill-16": [3.0, 2.0], "prefill-128": [2.0, 1.0]}
    runs = [
        make_run(),
        make_run("context", peers={"edgerun:int8": peer(lengths)}),
        make_run("prompt", peers={"edgerun:int8": peer(prompts)}),
        make_run("threads"),
        make_run("threads", threads=1),
    ]
    paths = pages.write(runs, tmp_path)
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "old" not in text
    goals = (tmp_path / pages.GOALS_PAGE).read_text()
    assert "| decode edgerun:int8 / llamacpp:tq2_0 | 2.6 | ≥ 2.4 | yes |" in goals
    assert "| goal |" not in text
    assert (goals.startswith("before"), goals.endswith("after\n"), "old" in goals) == (
        True,
        True,
        False,
    )
    assert paths[1] == tmp_path / pages.GOALS_PAGE
    assert [path.name for path in paths[2:]] == [
        f"bitnet-2b-4t-{kind}.png" for kind in ("context", "prompt", "threads", "compare")
    ]
    for path in paths[2:]:
        assert f"]({pages.FOLDER}/{path.name})" in text
        assert 5_000 < path.stat().st_size < 200_000
    with pytest.raises(SystemExit, match="no lines"):
        page.write_text("without marks")
        pages.write(runs, tmp_path)


def test_a_resumed_comparison_leaves_out_what_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tools.bench.peers import __main__ as bench
    from tools.bench.peers.results import Results

    results = Results(None)
    results.add(make_run())

    def chosen(*more: str) -> list[str]:
        argv = ["peers", "bitnet-2b-4t", "--work", str(tmp_path), *more]
        monkeypatch.setattr(sys, "argv", argv)
        return bench.chosen_peers(bench.parse_arguments(), results)

    names = chosen()
    assert names[:2] == ["edgerun:int8", "edgerun:int4"]
    assert "llamacpp:tq2_0" not in names
    assert "llamacpp:q4_0" in names
    assert chosen("--only", "llamacpp:tq2_0") == [*names[:2], "llamacpp:tq2_0"]
    assert chosen("--peers", "llamacpp:tq2_0") == ["llamacpp:tq2_0"]
