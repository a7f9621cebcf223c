"""Random bundles without a checkpoint, and what is measured of models larger than their memory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.formats.stack import ExpertStack
from edgerun_export.pipeline import ExportOptions, export_checkpoint
from tools.bench import random_bundle, streaming
from tools.bench.random_bundle import RandomCheckpoint
from tools.bench.random_model import PRESETS

TINY: dict[str, Any] = {
    **PRESETS["qwen3-30b-a3b"],
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 300,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("streaming") / "bundle"
    options = ExportOptions(weights="ternary")
    export_checkpoint(RandomCheckpoint("tiny", TINY), out, options, lambda step, fraction: None)
    return out


def test_a_random_bundle_is_ternary_and_sends_tokens_everywhere(folder: Path) -> None:
    with edgerun.load(folder, backend="cpu") as llm:
        assert llm.model.bundle is not None
        constants = llm.model.bundle.graph.constants.values()
        stacks = [each for each in constants if isinstance(each, ExpertStack)]
        assert len(stacks) == 6
        assert all(len(stack.matrices) == 16 for stack in stacks)
        assert {getattr(each, "format", "") for stack in stacks for each in stack.matrices} == {
            "ternary"
        }
        assert len({*llm.generate([5], max_tokens=40, temperature=1, seed=0).ids}) > 20


def test_pieces_do_not_depend_on_how_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_bundle, "_VALUES", 20_000)  # it begins anew within a matrix
    checkpoint = RandomCheckpoint("tiny", TINY)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    whole = checkpoint.ternary(name)
    assert whole is not None
    for rows in (slice(0, 1), slice(7, 30), slice(100, 128)):
        part = checkpoint.ternary(name, rows)
        assert part is not None
        np.testing.assert_array_equal(part[0], whole[0][rows])
    table = checkpoint.read("model.embed_tokens.weight")
    np.testing.assert_array_equal(
        checkpoint.read("model.embed_tokens.weight", slice(9, 12)), table[9:12]
    )
    assert 0.9 < table.std() < 1.1


def test_what_is_measured_adds_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "DISK_S", 0.02)
    monkeypatch.setattr(streaming, "machine_bandwidth", lambda threads: 1e10)
    row = streaming.measure(folder, "50%", tokens=8, prompt=64)
    assert 0.2 < row.hit_share < 0.9
    assert row.missed_mb > 0
    assert row.disk_gb_per_s > 0
    assert row.of_limit == pytest.approx(row.tokens_per_s / row.limit_tokens_per_s)
    assert 0 < row.prompt_of_file <= 1.02
    assert row.cached_share <= 1
    assert row.forecast_tokens_per_s > 0 and row.forecast_prompt_s > 0
    assert row.faults_tokens_per_s > 0
    lines = list(streaming.table([asdict(row)]))
    assert lines[0].count("|") == lines[2].count("|")
    assert lines[2].startswith("| 50% | ")
