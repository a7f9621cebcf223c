"""What ``edgerun inspect`` shows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

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


def test_inspect_says_what_was_verified_if_it_was_asked_to(run: Run) -> None:
    shown = json.loads(run("inspect", "--verify", "--json").out)
    assert shown["verified_files"] == len(shown["files"]) > 1
    count = shown["verified_files"]
    line = f"verified: {count} files have the digests of the manifest\n"
    assert line in run("inspect", "--verify").out
    assert "verified" not in run("inspect").out
    assert "verified_files" not in json.loads(run("inspect", "--json").out)


def test_without_a_manifest_nothing_is_said_to_be_verified(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bundle_of("llama"), folder)
    (folder / "manifest.json").unlink()
    assert "verified: no file, " in run("inspect", str(folder), "--verify").out
    assert json.loads(run("inspect", str(folder), "--verify", "--json").out)["verified_files"] == 0


@pytest.mark.parametrize("weights", ["int4", "int4_asym", "int4_offset"])
def test_inspect_calls_formats_as_recipes_do(run: Run, weights: str) -> None:
    folder = str(bundle_of("llama", weights=weights))
    shown = run("inspect", folder).out
    assert re.search(rf"^  {weights}, blocks of \d+ ", shown, re.MULTILINE)
    assert re.search(rf"^  weights +{weights}$", shown, re.MULTILINE)
    assert "ternary" not in shown.replace("natively_ternary", "")
    assert "what rounding changed" in shown
