"""Models with one expert a layer, with all experts for every token, and of odd widths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import edgerun
from edgerun.errors import InputError
from tests.support import bundles

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def bundle(folder: Path, experts: int, weights: str) -> Path:
    """A random model, every token of which goes to all of its experts."""
    return bundles.tiny_experts(
        folder,
        weights,
        moe_intermediate_size=40,  # no multiple of a block
        num_hidden_layers=2,
        num_experts=experts,
        num_experts_per_tok=experts,
    )


def reply(folder: Path, backend: str, **options: Any) -> Sequence[int]:
    with edgerun.load(folder, backend=backend, threads=1, **options) as llm:
        return llm.generate(PROMPT, **GREEDY).ids


@pytest.mark.parametrize("weights", ["int4_asym", "ternary"])
def test_all_experts_for_every_token(weights: str, tmp_path: Path) -> None:
    """In memory as a whole, and half of them in it, which is one layer's."""
    folder = bundle(tmp_path, 3, weights)
    expected = reply(folder, "reference")
    assert reply(folder, "cpu") == expected
    assert reply(folder, "cpu", expert_memory="50%") == expected


def test_the_only_expert_of_a_layer_is_every_tokens(tmp_path: Path) -> None:
    """So it stays in memory, as ordinary layers do."""
    folder = bundle(tmp_path, 1, "int4_asym")
    assert reply(folder, "cpu") == reply(folder, "reference")
    with pytest.raises(InputError, match="every token goes through all of this model's experts"):
        reply(folder, "cpu", expert_memory="50%")
