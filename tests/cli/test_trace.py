"""``edgerun trace`` writes what ``edgerun run`` would compute, or one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import edgerun
from edgerun.model.bundle import open_bundle
from edgerun.offload.trace_file import read_trace
from tests.cli.conftest import Run, Shell
from tests.support.bundles import bundle_of

TEXT = "Once upon a time"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.trace"


def test_a_prompt_is_traced(run: Run, output: Path) -> None:
    folder = bundle_of("qwen3_moe")
    run("trace", str(folder), TEXT, "-o", str(output))  # which may tell of kernels that it compiles
    output.unlink()
    result = run("trace", str(folder), TEXT, "-o", str(output))
    assert (result.code, result.err) == (0, "")
    trace = read_trace(output, open_bundle(folder).digest)
    assert trace.tokens == trace.prompt_tokens > 0
    assert (trace.layers, trace.experts, trace.top_k) == ((1,), 5, 2)
    assert result.out == (
        f"{output}: {trace.tokens} tokens, {trace.tokens} of them of the prompt; 1 layers, up to 2 "
        f"of 5 experts each; {output.stat().st_size} bytes\n"
    )


def test_a_reply_is_that_of_a_run(run: Run, output: Path) -> None:
    folder = bundle_of("mixtral")
    arguments = ["-n", "6", "--seed", "5", "--temperature", "1", "--ignore-eos", "--json"]
    with edgerun.load(folder) as llm:
        reply = llm.generate(TEXT, max_tokens=6, seed=5, temperature=1, ignore_eos=True)
    result = run("trace", str(folder), "-p", TEXT, "-o", str(output), *arguments)
    figures = json.loads(result.out)
    assert (figures["ids"], figures["text"]) == (reply.ids, reply.text)
    assert figures["tokens"] == reply.prompt_tokens + 5  # nothing is computed of the last
    trace = read_trace(output)
    assert figures["layers"] == list(trace.layers)
    assert {"file", "bytes", "model", "prompt_tokens", "experts", "top_k"} < set(figures)
    assert (figures["bytes"], figures["file"]) == (output.stat().st_size, str(output))
    assert (figures["tokens"], figures["prompt_tokens"]) == (trace.tokens, trace.prompt_tokens)


def test_experts_may_be_read_from_disk_meanwhile(run: Run, output: Path) -> None:
    folder, limited = str(bundle_of("mixtral")), output.with_name("limited.trace")
    assert run("trace", folder, TEXT, "-o", str(output)).code == 0
    assert run("trace", folder, TEXT, "-o", str(limited), "--expert-memory", "50%").code == 0
    assert limited.read_bytes() == output.read_bytes()


def test_the_text_may_come_through_a_pipe(run: Run, output: Path) -> None:
    folder = str(bundle_of("mixtral"))
    piped = run("trace", folder, "-o", str(output), "--json", stdin=TEXT.encode())
    given = run("trace", folder, TEXT, "-o", str(output), "--json", "--force")
    assert json.loads(piped.out) == json.loads(given.out)
    assert json.loads(given.out)["ids"] == []


def test_a_dense_model_has_nothing_to_trace(shell: Shell, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_of("llama"), tmp_path / "bundle")
    line = shell.refuses("trace", bundle, TEXT, "-o", tmp_path / "t")
    assert f"{bundle} is a dense model" in line


def test_an_existing_file_is_replaced_on_demand_only(shell: Shell, output: Path) -> None:
    output.write_text("mine")
    line = shell.refuses("trace", bundle_of("mixtral"), TEXT, "-o", output)
    assert f"{output} exists: choose another output, or add --force" in line
    assert output.read_text() == "mine"


def test_the_output_is_looked_at_before_the_model_runs(shell: Shell, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "t"
    line = shell.refuses("trace", tmp_path / "nor-this", TEXT, "-o", missing)
    assert f"there is no folder {missing.parent}" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing option '-o'"),
        (["-o", "t", "-n", "-1"], "--max-tokens is '-1'; expected at least 0"),
        (["-o", "t", "--backend", "cpu"], "no option --backend"),
        (["-o", "t", "--temperature", "x"], "temperature"),
    ],
)
def test_bad_options(shell: Shell, arguments: list[str], message: str) -> None:
    assert message in shell.refuses("trace", bundle_of("mixtral"), TEXT, *arguments)
