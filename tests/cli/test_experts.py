"""Models whose experts do not all fit, on the command line: what is said, shown and refused."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import edgerun
from edgerun.backends.figures import ExpertReads
from edgerun.cli.main import main
from edgerun.errors import InputError
from edgerun.formats.stack import ExpertStack
from edgerun.llm import experts
from edgerun.llm.llm import LLM
from edgerun.machine.disk import NOMINAL_DISK
from edgerun.offload.trace_file import read_trace, write_trace
from edgerun.plan.expert_memory import MARGIN_BYTES
from edgerun.state.capacity import sequence_bytes
from tests.cli.conftest import Result, limits
from tests.support.bundles import bundle_of, tiny_experts

WORDS = ("-p", "Once", "-n", "8", "--raw", "--ignore-eos", "--temperature", "0", "--backend", "cpu")
LINE = re.compile(
    r"of [\d.]+ kB of experts [\d.]+ stay in memory; disk \d+\.\d\d GB/s, assumed: about "
    r"[\d.]+ tokens/s, a prompt of 512 tokens about [\d.e-]+ s"
    r"( \(if 60% of the experts are foreseen\))?"
)


Run: TypeAlias = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls main on a disk that nothing was measured of; measuring has tests of its own."""
    monkeypatch.setattr("edgerun.plan.calibration.processor.limits", limits)
    monkeypatch.setattr(experts, "disk_profile", lambda folder, file, progress: NOMINAL_DISK)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(), "utf-8"))
        capsys.readouterr()
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def folder() -> str:
    return str(bundle_of("olmoe", weights="int4"))


@pytest.fixture(scope="module")
def dense() -> str:
    return str(bundle_of("llama", weights="int4"))


def test_a_reply_is_the_same_and_the_forecast_comes_first(run: Run, folder: str) -> None:
    whole = run("run", folder, *WORDS)
    part = run("run", folder, *WORDS, "--expert-memory", "50%", "--stats")
    assert part.out == whole.out
    assert "experts" not in whole.err
    lines = part.err.splitlines()
    (said,) = (index for index, line in enumerate(lines) if LINE.search(line))
    assert said < next(index for index, line in enumerate(lines) if line.startswith("first token"))
    assert "experts that are read while the model runs, measured" in lines


def test_stats_and_json_count_what_was_needed_and_read(run: Run, folder: str) -> None:
    result = run("run", folder, *WORDS, "--expert-memory", "50%", "--json")
    (report,) = json.loads(result.out)["devices"]
    (row,) = report["rows"]
    prompt = json.loads(result.out)["prompt_tokens"]
    # 2 layers and 3 of 8 experts a token: of a prompt each expert once.
    assert 2 * (3 + 3 * 7) <= row["needed"] <= 2 * (min(8, 3 * prompt) + 3 * 7)
    assert row["read"].endswith(" GB") and row["waited"].endswith(" s")


def test_bench_counts_what_is_really_read(run: Run, folder: str) -> None:
    command = ("bench", folder, "-p", "20", "-n", "5", "--repeat", "2", "--backend", "cpu")
    figures = json.loads(run(*command, "--expert-memory", "50%", "--json").out)["experts"]
    assert figures["forecast_tokens_per_s"] > 0
    for phase in ("prefill", "decode"):
        assert 0 <= figures[phase]["hit_share"] < 1
        assert figures[phase]["read_bytes_a_token"] > 0
        assert 0 <= figures[phase]["waited_share"] <= 1
    shown = run(*command, "--expert-memory", "50%").out
    assert re.search(r"experts: in decoding \d+% were in memory when they were", shown)
    assert json.loads(run(*command, "--json").out)["experts"] is None


def test_a_plan_shows_layers_and_terms(run: Run, folder: str) -> None:
    command = ("plan", folder, "--backend", "cpu", "--expert-memory", "50%")
    assert LINE.search(run(*command).out)
    shown = run(*command, "--explain").out
    assert "8\t4.0\t4.0\t50%\t" in shown  # experts, in memory, on disk, hits
    for words in ("room in memory for 8 of", "a token reads", "a prompt of 512 reads", "assumed"):
        assert words in shown
    whole = run(*command[:-1], "100%", "--explain").out
    held = [float(re.search(r"^  cpu +([\d.]+) kB$", text, re.M)[1]) for text in (shown, whole)]
    terms = json.loads(run(*command, "--json").out)["experts"]
    assert held[1] - held[0] == pytest.approx(terms["slots"] * terms["slot_bytes"] / 1e3, rel=0.1)
    assert (terms["experts"], terms["slots"]) == (16, 8)
    assert [layer["hit_share"] for layer in terms["layers"]] == [0.5, 0.5]
    assert terms["token_s"] == pytest.approx(
        terms["decode"]["others_s"] + sum(layer["seconds"] for layer in terms["layers"])
    )
    assert json.loads(run("plan", folder, "--backend", "cpu", "--json").out)["experts"] is None


def test_a_plan_says_what_long_prompts_read(run: Run, tmp_path: Path) -> None:
    folder = str(tiny_experts(tmp_path, "ternary", num_hidden_layers=2, num_experts=16))
    command = ("plan", folder, "--backend", "cpu", "--expert-memory", "60%")
    shown = run(*command, "--explain").out
    for words in ("a prompt of 512 takes", "a prompt of 4096 reads", "a prompt of 4096 takes"):
        assert words in shown
    terms = json.loads(run(*command, "--json").out)["experts"]
    (longer,) = terms["longer_prompts"]
    assert longer["nbytes"] == pytest.approx(terms["prompt_bytes"], rel=1e-3)
    assert longer["seconds"] > terms["prompt_s"]


def test_a_trace_says_how_often_experts_will_be_there(
    run: Run, folder: str, dense: str, tmp_path: Path
) -> None:
    trace = str(tmp_path / "a.trace")
    run("trace", folder, "Once upon a time", "-n", "40", "--ignore-eos", "-o", trace)
    command = ("plan", folder, "--backend", "cpu", "--trace", trace, "--json")
    terms = json.loads(run(*command, "--expert-memory", "60%").out)["experts"]
    assert terms["hits_from"] == "a trace"
    assert all(0 < layer["hit_share"] < 1 for layer in terms["layers"])
    assert "--trace counts experts" in refused(run, *command)
    assert "--trace counts experts" in refused(run, "plan", dense, "--trace", trace)
    other = str(bundle_of("olmoe", weights="int8"))
    said = refused(run, "plan", other, "--trace", trace, "--expert-memory", "60%")
    assert "is another model's" in said
    read = read_trace(Path(trace))
    fewer = replace(read, layers=read.layers[1:], choices=read.choices[:, 1:])
    write_trace(Path(trace), fewer)
    said = refused(run, *command, "--expert-memory", "60%")
    assert "the trace has 1 layers of 8 experts and the model 2 of 8" in said


def refused(run: Run, *command: str) -> str:
    result = run(*command)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    return result.err


@pytest.mark.parametrize("command", ["run", "plan", "bench"])
def test_what_cannot_be_is_refused_in_a_sentence(
    run: Run, folder: str, dense: str, command: str
) -> None:
    words = WORDS[:2] if command == "run" else ()
    for model, size, expected in (
        (dense, "50%", "--expert-memory is 50%, and this model has no experts: leave it out"),
        (folder, "lots", "--expert-memory is 'lots'; expected an amount such as 4G"),
        (folder, "1000", "1000 bytes are too few for experts: a token needs 3 of a layer"),
        (folder, "1%", "bytes are too few for experts"),
    ):
        assert expected in refused(run, command, model, *words, "--expert-memory", size)
    said = refused(run, command, folder, *words, "--expert-memory", "50%", "--backend", "reference")
    assert "the back-end 'reference' has all weights in memory: leave it out" in said


def test_without_the_option_a_model_that_does_not_fit_is_read_as_it_runs(
    run: Run, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for half of the experts is left."""
    with edgerun.load(folder, backend="cpu", context=64, expert_memory="50%") as llm:
        budget, bundle = llm.model.experts, llm.model.bundle
        assert budget is not None
        assert bundle is not None
        constants = bundle.graph.constants.values()
        others = sum(each.nbytes for each in constants if not isinstance(each, ExpertStack))
        others += sequence_bytes(llm.model.states, 64)
    expected = run("run", folder, *WORDS, "-c", "64")
    assert not LINE.search(expected.err)
    free = MARGIN_BYTES + others + budget.nbytes
    monkeypatch.setattr(experts, "available_memory", lambda: free)
    result = run("run", folder, *WORDS, "-c", "64", "--stats")
    assert result.out == expected.out
    assert LINE.search(result.err)
    assert "experts that are read while the model runs" in result.err
    monkeypatch.setattr(experts, "available_memory", lambda: 0)
    assert "of memory are left for experts" in refused(run, "run", folder, *WORDS, "-c", "64")


def test_the_api_takes_bytes_and_texts(folder: str) -> None:
    sizes: list[int | str] = ["50%", "40 kB", 40_000]
    for size in sizes:
        with edgerun.load(folder, backend="cpu", expert_memory=size) as llm:
            expected, budget = llm.forecast(), llm.model.experts
            assert budget is not None
            assert expected is not None
            assert expected.budget == budget
            assert size == "50%" or budget.nbytes == 40_000
    with edgerun.load(folder, backend="cpu") as llm:
        assert llm.forecast() is None
        assert llm.expert_reads() is None
    broken: Any = 1.5
    with pytest.raises(InputError, match="expert_memory is 1.5"):
        edgerun.load(folder, expert_memory=broken)


def test_a_disk_slower_than_measured_is_said_after_the_reply(
    run: Run, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, *[ExpertReads(10, 10, 1000, 5.0)] * 9])
    monkeypatch.setattr(LLM, "expert_reads", lambda self: next(answers))
    result = run("run", folder, *WORDS, "--expert-memory", "50%")
    said = [line for line in result.err.splitlines() if "stay in memory" in line]
    assert len(said) == 2
    assert "GB/s, assumed: about" in said[0]
    assert "disk 0.00 GB/s, assumed were 0.50: about" in said[1]
