"""Checkpoints that are averaged. Needs torch."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.tools.train_default.small_model import SMALL  # noqa: E402
from tools.train_default.model import TernaryLM  # noqa: E402
from tools.train_default.rounding import ternary  # noqa: E402
from tools.train_default.save import load_checkpoint, read_checkpoints  # noqa: E402


def saved(path: Path, seed: int, config=SMALL) -> TernaryLM:
    torch.manual_seed(seed)
    model = TernaryLM(config)
    torch.save({"model": model.state_dict(), "config": asdict(config)}, path)
    return model


def test_an_average_is_that_of_the_masters_made_ternary_anew(tmp_path):
    models = [saved(tmp_path / str(seed), seed) for seed in (1, 2)]
    average = load_checkpoint([tmp_path / "1", tmp_path / "2"], [0.75, 0.25])
    masters = [model.layers[0].ffn_out.masters["down_proj"] for model in models]
    expected = 0.75 * masters[0] + 0.25 * masters[1]
    part = average.layers[0].ffn_out
    torch.testing.assert_close(part.masters["down_proj"], expected)
    torch.testing.assert_close(part.effective.detach(), ternary(expected.detach()))


def test_all_else_of_an_average_is_that_of_the_first(tmp_path):
    for seed in (1, 2):
        saved(tmp_path / str(seed), seed)
        state = torch.load(tmp_path / str(seed), weights_only=True)
        torch.save({**state, "step": 10 * seed}, tmp_path / str(seed))
    state = read_checkpoints([tmp_path / "1", tmp_path / "2"], [0.75, 0.25])
    average = load_checkpoint([tmp_path / "1", tmp_path / "2"], [0.75, 0.25])
    assert state["step"] == 10
    torch.testing.assert_close(state["model"]["norm.weight"], average.norm.weight.detach())


def test_shares_are_one_for_each_and_add_up(tmp_path):
    saved(tmp_path / "1", 1)
    saved(tmp_path / "other", 1, replace(SMALL, num_layers=1))
    alone = load_checkpoint([tmp_path / "1"])
    assert alone.config == SMALL
    for shares in ([0.5], [0.6, 0.6], [1.0, 0.0, 0.0], [float("nan"), 0.0]):
        with pytest.raises(ValueError, match="shares that add up to 1"):
            load_checkpoint([tmp_path / "1", tmp_path / "1"], shares)
    with pytest.raises(ValueError, match="different models"):
        load_checkpoint([tmp_path / "1", tmp_path / "other"], [0.5, 0.5])
