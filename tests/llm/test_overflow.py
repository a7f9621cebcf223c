"""Values that exceed float32 in the middle of a model are told of, whatever rounds them after."""

import itertools

import numpy as np
import pytest

import edgerun
from edgerun import env
from edgerun.errors import BackendError, ChooserError
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

MODELS = {"llama": ("fp32", "int4"), "bitnet-master": ("ternary",), "olmoe": ("int4",)}
NORMS = ("input_layernorm", "post_attention_layernorm")  # before keys and values, and behind them


@pytest.mark.parametrize(
    ("name", "weights"), [(name, weights) for name, all_of in MODELS.items() for weights in all_of]
)
def test_overflow_becomes_no_text(name, weights, tmp_path):
    for norm, kv_cache in itertools.product(NORMS, ("fp32", "int8")):
        altered = AlteredBundle(bundle_of(name, weights=weights), tmp_path / f"{norm}-{kv_cache}")
        weight = f"model.layers.1.{norm}.weight"
        altered.put(weight, np.full_like(altered.array(weight), 3e38))
        with edgerun.load(altered.save(), kv_cache=kv_cache) as llm:
            for prompt in ("a", "a prompt of several rows"):
                with pytest.raises(ChooserError, match="maximum is nan"):
                    llm.generate(prompt, max_tokens=2)


def test_validation_names_the_node_that_overflows(monkeypatch, tmp_path):
    altered = AlteredBundle(bundle_of("llama", weights="int4"), tmp_path / "altered")
    weight = "model.layers.1.input_layernorm.weight"
    altered.put(weight, np.full_like(altered.array(weight), 3e38))
    monkeypatch.setenv("EDGERUN_VALIDATE", "1")
    env.settings.cache_clear()
    try:
        with (
            edgerun.load(altered.save(), backend="cpu") as llm,
            pytest.raises(BackendError, match=r"^the output of node '/model/layers.1/input_lay"),
        ):
            llm.generate("a", max_tokens=1)
    finally:
        monkeypatch.undo()
        env.settings.cache_clear()
