"""Commands that print reports: bench, perplexity, doctor."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from edgerun.cli.tables import size
from tests.cli.conftest import Run


def test_bench_prints_one_object(run: Run) -> None:
    result = run("bench", "-p", "20", "-n", "5", "--repeat", "2", "--json")
    found = json.loads(result.out)
    assert (found["prompt_tokens"], found["new_tokens"], found["runs"]) == (20, 5, 2)
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "resident_bytes", "load_s"):
        assert found[name] > 0
    assert "decode" in run("bench", "-p", "2", "-n", "2", "--repeat", "1").out


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
    for found in (whole, parts, limited):
        per_token = math.log2(found["perplexity"])
        assert found["bits_per_byte"] * found["bytes"] == pytest.approx(
            per_token * found["tokens"], rel=1e-4
        )


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff", None])
def test_unusable_files_are_a_mistake(run: Run, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    result = run("perplexity", "m", str(tmp_path / "text"))
    assert (result.code, result.out) == (2, "")
    assert "text" in result.err


def test_doctor_prints_one_object(run: Run) -> None:
    found = json.loads(run("doctor", "--json").out)
    assert found["edgerun"]["version"]
    assert found["back-ends"]["reference"] == "ready"
    assert found["machine"]["isa"] in found["machine"]["isas"]
    assert found["memory"]["total_bytes"] > 0
    assert run("doctor").out.startswith("edgerun")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2.5e9, "2.50 GB")]
)
def test_sizes_are_for_people(count: float, text: str) -> None:
    assert size(count) == text
