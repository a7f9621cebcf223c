"""What ``edgerun inspect`` shows."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.support.bundles import bundle_of


def test_inspect_states_licence_and_source_of_the_model_that_comes_along(run: Run) -> None:
    shown = run("inspect").out
    assert "licence   Apache-2.0\n" in shown
    assert "trained for edgerun by tools/train_default" in shown


def test_inspect_counts_a_table_that_embedding_and_head_share_once(run: Run) -> None:
    shown = json.loads(run("inspect", "--json").out)
    assert shown["formats"]["int8, blocks of 128"]["weights"] == 6144 * 512
    total = sum(each["bytes"] for each in shown["formats"].values())
    assert 0.99 <= total / shown["files"]["model.onnx.data"] <= 1.0001


def test_inspect_shows_no_zero_for_sizes_in_which_layers_differ(run: Run) -> None:
    folder = str(bundle_of("gemma4_text"))
    shown = dict(line.split(maxsplit=1) for line in run("inspect", folder).out.splitlines()[2:10])
    assert shown["head_dim"] == shown["num_kv_heads"] == "no single number"
    assert shown["num_heads"] == "4"
    assert json.loads(run("inspect", folder, "--json").out)["model"]["head_dim"] == 0
