"""``edgerun bench --handover``: what is measured, and against what."""

from __future__ import annotations

import json

import pytest

from edgerun.cli.benchmark import handover
from edgerun.cli.main import main
from tests.cli.conftest import Run
from tests.support.bundles import bundle_of

SIZES = {"this model": (2, 2, 32), "Llama 3.2 1B": (16, 8, 64), "BitNet 2B": (30, 5, 128)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "SECONDS", 0.0)
    monkeypatch.setattr(handover, "CALL_TOKENS", 16)


def test_every_shape_in_every_storage_and_the_share_of_a_prompt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("openvino")
    folder = str(bundle_of("qwen3", weights="int4", activations="fp32"))
    given = ["bench", folder, "--handover", "-p", "60", "--repeat", "2", "-t", "1"]
    assert main([*given, "--place", "prefill=openvino:CPU", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    rows = {(row["shape"], row["storage"]): row for row in figures["handover"]}
    assert set(rows) == {(shape, each) for shape in SIZES for each in handover.STORAGES}
    for (shape, _), row in rows.items():
        assert (row["layers"], row["kv_heads"], row["head_dim"]) == SIZES[shape]
        assert min(row["to_pages_us"], row["from_pages_us"], row["copy_us"]) > 0
    (prompt,) = figures["prompts"]
    assert (prompt["device"], prompt["tokens"]) == ("openvino:CPU", 60)
    assert 0 < prompt["waiting_s"] < prompt["prefill_s"]
    assert prompt["share"] == pytest.approx(prompt["waiting_s"] / prompt["prefill_s"], abs=1e-4)
    assert prompt["overlapped_s"] == 0  # one network takes the whole prompt
    assert main([*given, "--place", "prefill=openvino:CPU"]) == 0
    text = capsys.readouterr().out
    assert "BitNet 2B: 30 x 5 x 128" in text
    assert f"{prompt['tokens']} tokens by openvino:CPU" in text and "goal: at most 2%" in text


def test_without_a_device_there_is_no_share(run: Run) -> None:
    result = run("bench", "--handover")
    assert "no prompt goes to a device" in result.out
    assert json.loads(run("bench", "--handover", "--json").out)["prompts"] == []


@pytest.mark.parametrize("other", [("--rows", "1,2"), ("--context", "64"), ("--new-tokens", "64")])
def test_what_measures_replies_is_refused_beside_it(run: Run, other: tuple[str, str]) -> None:
    result = run("bench", "--handover", *other)
    assert result.code != 0
    assert f"--handover measures no replies, so {other[0]} says nothing" in result.err
