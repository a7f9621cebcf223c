"""The recipes of the models that come along: what can be read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tomllib")


from edgerun_export.architectures import Experts, describe
from edgerun_export.architectures.decoder.layer import Dense
from tests.support.bundles import GOLDEN
from tools.train_default.recipe import ModelConfig, Recipe

FOLDER = Path("tools/train_default/recipes")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_recipes_can_be_followed(path: Path) -> None:
    recipe = Recipe.read(path)
    assert recipe.batch_tokens % recipe.micro_tokens == 0
    for late in (0, 1):
        assert recipe.micro_tokens % recipe.context[late] == 0
        assert recipe.context[late] <= recipe.model.max_positions
        assert sum(shares[late] for shares in recipe.mix.values()) == pytest.approx(1)


def test_what_a_recipe_does_not_say_is_as_usual(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("muon_lr = 0.5\n[model]\nexperts = 3\n")
    assert Recipe.read(path) == Recipe(muon_lr=0.5, model=ModelConfig(experts=3))
    path.write_text("rate = 0.5\n")
    with pytest.raises(TypeError, match="rate"):
        Recipe.read(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_taught": True}, "text_taught needs own_taught"),
        ({"own_taught": True}, "own_taught needs own_rows"),
        ({"dry": 4.0}, "dry needs own_taught"),
    ],
)
def test_what_nobody_would_teach_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


def test_experts_multiply_as_often_as_the_dense_model() -> None:
    model = Recipe.read(FOLDER / "experts.toml").model
    assert model.top_k * model.expert_size == model.intermediate_size
    assert [model.experts_of(layer) for layer in range(5)] == [0, 32, 32, 32, 32]
    assert [ModelConfig().experts_of(layer) for layer in range(5)] == [0] * 5


def test_only_layers_without_experts_have_a_norm_before_their_down_projection() -> None:
    spec = describe(json.loads((GOLDEN / "bitnet_moe" / "config.json").read_text()))
    assert [type(layer.feed_forward) for layer in spec.layers] == [Dense, Experts]
    assert [spec.sub_norm(layer) for layer in range(2)] == ["mlp.ffn_sub_norm", None]
    assert "model.layers.1.mlp.ffn_sub_norm.weight" not in spec.tensors()
    assert spec.tensors()["model.layers.1.mlp.gate.weight"] == (6, 64)
