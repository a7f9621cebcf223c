"""Ternary weights at 1.6 bits: the same logits, and who decides when."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator

import numpy as np
import pytest

from edgerun import env
from edgerun.backends.cpu import weights
from edgerun.cli.inspect import describe
from edgerun.env import PACKS, read_settings
from edgerun.errors import BundleError, InputError, UnsupportedError
from edgerun.kernels import isa
from edgerun.llm.compiling import packing_of
from edgerun.llm.options import LoadOptions
from edgerun.model.bundle import open_bundle
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN, bundle_of, runner

TERNARY = ["bitnet-master", "bitnet-offline", "bitnet-packed"]
PIECES = (range(3, 40), range(5, 10), [7], [8], range(20, 36), [9])  # prefill, a few rows, decode


@pytest.fixture
def repacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Shapes of the matrices that became trits."""
    shapes: list[tuple[int, int]] = []
    original = weights.to_trits

    def count(weight, arena):
        shapes.append(weight.shape)
        return original(weight, arena)

    monkeypatch.setattr(weights, "to_trits", count)
    yield shapes


def logits_of(name: str, *, trits: bool, threads: int = 1) -> list[np.ndarray]:
    with runner(bundle_of(name, weights="ternary"), "cpu", trits=trits, threads=threads) as model:
        return [model.run(list(piece)) for piece in PIECES]


@pytest.mark.parametrize("by", ["lookup", "product"])
@pytest.mark.parametrize("name", TERNARY)
def test_logits_are_those_of_two_bits(name, by, repacked, monkeypatch):
    if by == "product":  # as on machines that multiply faster than they look up
        chosen = dataclasses.replace(isa.selected_isa(), looks_up=0)
        monkeypatch.setattr(isa, "selected_isa", lambda: chosen)
    codes = logits_of(name, trits=False)
    assert not repacked
    trits = logits_of(name, trits=True, threads=2)
    assert len(repacked) == 2 * 7  # layers and their projections
    for expected, computed in zip(codes, trits, strict=True):
        np.testing.assert_array_equal(expected, computed)


def test_weights_that_are_not_ternary_stay_as_they_are(repacked):
    with runner(bundle_of("llama", weights="int2"), "cpu", trits=True) as model:
        assert np.isfinite(model.run([1, 2, 3])).all()
    assert not repacked


def test_the_caller_wins_over_the_environment_and_that_over_the_bundle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = open_bundle(bundle_of("bitnet-packed"))
    assert packing_of(bundle, LoadOptions()) == "two_bits"
    monkeypatch.setattr(env, "settings", lambda: read_settings({"EDGERUN_PACK": "trits"}))
    assert packing_of(bundle, LoadOptions()) == "trits"
    assert packing_of(bundle, LoadOptions(pack="two_bits")) == "two_bits"


@pytest.mark.parametrize("pack", PACKS)
def test_the_hint_of_an_export_is_read_at_loading(pack, tmp_path):
    result = export(GOLDEN / "bitnet-packed", tmp_path / "bundle", ExportOptions(pack=pack))
    assert result.manifest["pack"] == pack
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.manifest.pack == pack
    assert packing_of(bundle, LoadOptions()) == pack
    assert describe(bundle, tensors=False)["packing"] == {"asked": pack, "here": pack}


def test_the_hint_changes_no_other_file(tmp_path):
    folders = [tmp_path / pack for pack in ("trits", "two_bits")]
    for folder in folders:
        export(GOLDEN / "bitnet-packed", folder, ExportOptions(pack=folder.name))
    for path in folders[0].iterdir():
        same = path.read_bytes() == (folders[1] / path.name).read_bytes()
        assert same is (path.name != "manifest.json")


def test_a_bad_hint_in_a_manifest_is_one_sentence(tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle_of("bitnet-packed"), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"pack": "nibbles"}))
    with pytest.raises(BundleError, match=r"says pack 'nibbles'; expected one of two_bits, trits"):
        open_bundle(folder)


def test_a_manifest_without_a_hint_means_two_bits(tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle_of("bitnet-packed"), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["pack"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert open_bundle(folder).manifest.pack == "two_bits"


def test_bad_values_are_refused_with_what_would_be_good(tmp_path):
    with pytest.raises(InputError, match="pack is 'five'; expected one of two_bits, trits$"):
        LoadOptions(pack="five")
    with pytest.raises(InputError, match="EDGERUN_PACK='five' must be one of two_bits"):
        read_settings({"EDGERUN_PACK": "five"})
    with pytest.raises(UnsupportedError, match="--pack five is not supported; choose one of"):
        export(GOLDEN / "llama", tmp_path / "a", ExportOptions(pack="five"))
    with pytest.raises(UnsupportedError, match="ternary weights only and these are int4"):
        export(GOLDEN / "llama", tmp_path / "b", ExportOptions(pack="trits"))
