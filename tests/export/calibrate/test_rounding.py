"""What runtimes round besides weights, against the back-end that defines it."""

import numpy as np
import pytest

from edgerun.errors import InputError, UnsupportedError
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.rounding import Rounding, roundings
from edgerun_export.calibrate.text import CalibrationText, Sample
from edgerun_export.recipe import make_recipe
from edgerun_export.rules import with_rules
from tests.support.bundles import runner

RULES = ("layers.0.*.v_proj=fp32",)
OPTIONS = {"weights": "int4", "method": "rtn", "head_weights": "fp32"}


def nats(logits, ids):
    """Sum of -ln p of the ids but the first."""
    rows = logits[:-1].astype(np.float64)
    chosen = rows[np.arange(len(rows)), ids[1:]]
    return float((np.log(np.exp(rows).sum(axis=-1)) - chosen).sum())


@pytest.mark.parametrize(
    ("name", "activations", "kv_cache"),
    [("llama", "int8", "fp32"), ("qwen3", "fp32", "int8"), ("llama", "int8", "int4")],
)
def test_costs_are_those_of_a_bundle_that_rounds_so(
    name, activations, kv_cache, golden, source_weights, exported, tmp_path
):
    source = source_weights(golden(name))
    spec = source.spec
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, (2, 24))
    samples = tuple(
        Sample(each.name, ids, 100, each) for each in (Rounding(), Rounding(activations, kv_cache))
    )
    text = CalibrationText((), np.zeros((0, 24), np.int64), samples)
    recipe = with_rules(make_recipe(**OPTIONS), RULES, spec)
    store = FittedLayers(tmp_path, {})
    plain, rounded = LayerFitter(source, recipe, text, store, threads=1).run()
    assert plain.source_nats == rounded.source_nats  # the source is what it is
    bundle = exported(name, **OPTIONS, rules=RULES, activations=activations)
    expected = 0.0
    for window in ids:
        with runner(bundle.folder, "reference", kv_cache=kv_cache) as model:
            expected += nats(model.run(window), window)
    # A value between two codes may go to the other one.
    assert abs(rounded.nats - expected) < 0.03 * abs(plain.nats - expected)


def test_rows_share_a_scale_where_that_is_asked_for(golden, source_weights, tmp_path):
    source = source_weights(golden("llama"))
    ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (1, 24))
    samples = tuple(Sample(kind, ids, 100, Rounding(kind)) for kind in ("int8", "int8_row"))
    text = CalibrationText((), np.zeros((0, 24), np.int64), samples)
    recipe = make_recipe("int8", 16, method="rtn")
    block, row = LayerFitter(source, recipe, text, FittedLayers(tmp_path, {}), threads=1).run()
    assert block.nats != row.nats


def test_all_pairs_are_columns_and_bear_what_they_round():
    pairs = roundings(["fp32", "int8"], ["fp32", "int4", "fp32"])
    assert [pair.name for pair in pairs] == [
        "", "KV int4", "activations int8", "activations int8, KV int4"
    ]  # fmt: skip
    with pytest.raises(UnsupportedError, match="--activations int5 is not supported; choose one"):
        roundings(["int5"], ["fp32"])
    with pytest.raises(InputError, match="int5"):
        roundings(["fp32"], ["int5"])
