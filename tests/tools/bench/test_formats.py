"""Weight formats beside one another: what is stored, and what the table says of times."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from edgerun.formats.base import has_half_scales
from edgerun.model.bundle import open_bundle
from edgerun_export.pipeline import export
from tools.bench import random_model
from tools.bench.formats.__main__ import (
    MIXES,
    OTHER,
    PLAIN,
    bundle_options,
    main,
    mixed,
    ratios,
    write_checkpoint,
)

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_and_its_complement_store_everything_in_both_formats(mix: str, tmp_path: Path):
    random_model.write({**random_model.PRESETS["smollm2-135m"], **CONFIG}, tmp_path / "checkpoint")
    halves = []
    for rest in (PLAIN, OTHER):
        options = bundle_options()[mixed(mix, rest)]
        export(tmp_path / "checkpoint", tmp_path / rest, options)
        recipe = json.loads((tmp_path / rest / "manifest.json").read_text("utf-8"))["recipe"]
        changed = {module: kind["weights"] for module, kind in recipe["tensors"].items()}
        assert recipe["weights"] == rest
        halves.append((changed, rest))
    (first, plain), (second, other) = halves
    assert 0 < len(first) < CONFIG["num_hidden_layers"] * 7
    assert first.keys() == second.keys()
    assert set(first.values()) == {other} and set(second.values()) == {plain}


@pytest.mark.parametrize("scales", ["fp32", "fp16"])
def test_weights_that_are_compared_have_scales_of_the_same_size_in_memory(
    scales: str, tmp_path: Path
):
    write_checkpoint({**random_model.PRESETS["smollm2-135m"], **CONFIG}, tmp_path / "checkpoint")
    for kind, zeros in product((PLAIN, OTHER), ("", "_asym")):
        folder = tmp_path / f"{kind}{zeros}"
        export(tmp_path / "checkpoint", folder, bundle_options(scales)[folder.name])
        constants = open_bundle(folder).graph.constants.values()
        low_bit = [each for each in constants if getattr(each, "bits", 8) < 8]
        assert len(low_bit) == CONFIG["num_hidden_layers"] * 7
        assert {has_half_scales(each) for each in low_bit} == {scales == "fp16"}


def test_what_takes_longer_is_slower_than_expected():
    times = {(kind, phase): 1.0 for kind in bundle_options() for phase in ("reply", "prompt")}
    times[PLAIN, "reply"] = 3.0
    times[f"{PLAIN}_asym", "reply"] = 4.0
    mix = next(iter(MIXES))
    times[mixed(mix, OTHER), "reply"] = 4.0
    table = {(what, phase): values for what, phase, values in ratios([times])}
    assert table[f"{PLAIN} with zero points", "reply"] == [0.75]
    assert table[f"{PLAIN} and {OTHER} mixed, {mix}", "reply"] == [pytest.approx(4 / 5)]
    assert table[f"{OTHER} with zero points", "prompt"] == [1.0]
    assert len(table) == 2 * (2 + len(MIXES))


@pytest.mark.parametrize("given", ["--layers 0", "--layers -1", "--rounds 1", "--prompt 0"])
def test_numbers_too_small_are_refused(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["formats", *given.split()])
    with pytest.raises(SystemExit):
        main()
    assert "--rounds must be 2 or more, the other numbers 1 or more" in capsys.readouterr().err
