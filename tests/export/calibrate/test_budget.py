"""Bytes shared among tensors."""

import itertools
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from edgerun.errors import InputError, UnsupportedError
from edgerun_export.calibrate.budget import Choice, allocate, hull
from edgerun_export.calibrate.mixed import _bytes, _kinds
from edgerun_export.calibrate.observed import products
from edgerun_export.calibrate.sensitivity import SensitivityMeter
from edgerun_export.calibrate.step import CalibrationOptions, checked_budget
from edgerun_export.calibrate.streams import Stream
from edgerun_export.calibrate.workers import single_threaded
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.cli import _choices
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.recipe import TensorRecipe, make_recipe
from edgerun_export.sizes import matrix_bytes, parse_size, weight_bytes
from edgerun_export.verify.compare import divergence
from edgerun_export.verify.numpy_model import forward
from tests.support.gguf_model import write_gguf

KINDS = [TensorRecipe("int2", 32), TensorRecipe("int4", 32), TensorRecipe("int8", 32)]


def tensors(seed, count=6):
    """Sizes and costs of tensors, in which larger formats cost less."""
    random = np.random.default_rng(seed)
    return {
        f"t{at}": [
            Choice(kind, int(size), float(cost))
            for kind, size, cost in zip(
                KINDS, np.sort(random.integers(1, 60, 3)), -np.sort(-random.exponential(1, 3)),
                strict=True,
            )
        ]
        for at in range(count)
    }  # fmt: skip


def best(choices, budget):
    """The least cost of all combinations that fit."""
    return min(
        sum(choice.cost for choice in combination)
        for combination in itertools.product(*choices.values())
        if sum(choice.bytes for choice in combination) <= budget
    )


def total(chosen):
    return sum(each.bytes for each in chosen.values()), sum(each.cost for each in chosen.values())


@pytest.mark.parametrize("seed", range(5))
def test_the_search_is_as_good_as_all_combinations(seed):
    """At every budget within what its last step may waste, and exact where nothing is wasted."""
    choices = tensors(seed)
    least = sum(each[0].bytes for each in choices.values())
    most = sum(each[-1].bytes for each in choices.values())
    step = max(each[-1].bytes - each[0].bytes for each in choices.values())
    excess = []
    for budget in range(least, most + 1, 7):
        used, cost = total(allocate(choices, budget))
        assert used <= budget
        assert cost <= best(choices, max(least, budget - step)) + 1e-12
        excess.append(cost / best(choices, budget) - 1)
    assert np.mean(excess) < 0.05
    assert total(allocate(choices, most))[1] == pytest.approx(best(choices, most))


@pytest.mark.parametrize("seed", range(5))
def test_at_the_corners_of_the_hulls_the_search_is_exact(seed):
    choices = tensors(seed)
    hulls = [hull(each) for each in choices.values()]
    gains = sorted(
        ((a.cost - b.cost) / (b.bytes - a.bytes), b.bytes - a.bytes)
        for each in hulls
        for a, b in itertools.pairwise(each)
    )
    budget = sum(each[0].bytes for each in hulls)
    for _, price in reversed(gains):
        budget += price
        assert total(allocate(choices, budget))[1] == pytest.approx(best(choices, budget))


def test_a_hull_holds_what_some_price_makes_the_best():
    sizes_and_costs = [(10, 8.0), (20, 7.5), (30, 2.0), (30, 3.0), (40, 2.5), (50, 1.0)]
    choices = [Choice(KINDS[0], size, cost) for size, cost in sizes_and_costs]
    assert [(each.bytes, each.cost) for each in hull(choices)] == [(10, 8), (30, 2), (50, 1)]


def test_estimates_come_near_to_what_rounding_a_tensor_does(golden, source_weights, tmp_path):
    source = source_weights(golden("llama"))
    ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (5, 32))
    with single_threaded():
        meter = SensitivityMeter(source, ids[:4], ids[4:], tmp_path, lambda done: None)
        estimates = meter.run([TensorRecipe("int4", 32, "mse"), TensorRecipe("int2", 32, "mse")])
    ratios = []
    for module, costs in estimates.nats.items():
        assert costs[TensorRecipe("int2", 32, "mse")] > 3 * costs[TensorRecipe("int4", 32, "mse")]
        name = f"{module}.weight"
        packed = quantise_rows(source.matrix(name), "int4", 32, "mse")

        class Replaced:
            def __getattr__(self, each):
                return getattr(source, each)

            def matrix(self, each, name=name, packed=packed):
                is_it = each == name
                return block_layout("int4").unpack(packed) if is_it else source.matrix(each)

        actual = divergence(
            forward(source.spec, source, ids[4]), forward(source.spec, Replaced(), ids[4])
        )
        ratios.append(costs[TensorRecipe("int4", 32, "mse")] / actual)
    assert len(ratios) == 7 * source.spec.num_layers
    assert 0.5 < np.exp(np.mean(np.log(ratios))) < 2
    assert np.std(np.log(ratios)) < 0.7


def test_formats_are_weighed_by_what_is_predicted(golden, source_weights, tmp_path, monkeypatch):
    source = source_weights(golden("llama"))
    ids = np.random.default_rng(0).integers(2, source.spec.vocab_size, (2, 16))
    ids[:, [0, 5, 15]] = 1
    rows = []
    monkeypatch.setattr(
        "edgerun_export.calibrate.sensitivity.stream_divergence",
        lambda spec, source, first, second: rows.append((len(first), len(second))) or 1.0,
    )
    SensitivityMeter(source, ids[:1], ids[1:], tmp_path, lambda done: None, [1]).run([KINDS[0]])
    assert rows == [(13, 13)] * source.spec.num_layers


def test_formats_of_many_experts_are_weighed_a_few_at_a_time(
    golden, source_weights, tmp_path, monkeypatch
):
    """Products of the inputs of all would fill the memory; the estimates are the same."""
    source, sizes = source_weights(golden("qwen2_moe")), []
    ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (4, 24))

    def counted(spec, weights, layer, stream, groups):
        sizes.append(len(groups))
        return products(spec, weights, layer, stream, groups)

    def estimates():
        sizes.clear()
        meter = SensitivityMeter(source, ids[:3], ids[3:], tmp_path, lambda done: None)
        with single_threaded():
            return meter.run(KINDS[:1])

    monkeypatch.setattr("edgerun_export.calibrate.sensitivity.products", counted)
    whole = estimates()
    assert max(sizes) > 4
    monkeypatch.setattr("edgerun_export.calibrate.observed._MOMENTS_BYTES", 1)
    assert estimates() == whole
    assert max(sizes) == 1


def test_what_changes_make_of_a_text_is_on_disk(golden, source_weights, tmp_path, monkeypatch):
    """Of all layers it would be as large as a model."""
    source, written = source_weights(golden("llama")), []

    class Noted(Stream):
        def __setitem__(self, window, values):
            written.append(window)
            super().__setitem__(window, values)

    monkeypatch.setattr("edgerun_export.calibrate.sensitivity.Stream", Noted)
    ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (3, 16))
    SensitivityMeter(source, ids[:1], ids[1:], tmp_path, lambda done: None).run(KINDS[:1])
    assert written == [0, 1, 0, 1, 2, 3]  # of the first layer, through the second one, of that
    assert not list(tmp_path.iterdir())


def options(tmp_path, **changes):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Once upon a time {n} cats. " for n in range(900)), encoding="utf-8")
    calibration = CalibrationOptions((text,), 16, 32, 1, changes.pop("budget"))
    return ExportOptions(
        **{"weights": "int2", "method": "auto", **changes}, calibration=calibration
    )


@pytest.mark.parametrize(
    ("name", "budget", "scales"),
    [("llama", 135_000, "fp32"), ("llama", 125_000, "fp16"), ("mixtral", 300_000, "fp32")],
)
def test_a_bundle_is_no_larger_than_its_budget(name, budget, scales, golden, tmp_path):
    given = options(tmp_path, budget=budget, scales=scales)
    result = export(golden(name).folder, tmp_path / "out", given)
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert 0.6 * budget < size <= budget
    report = result.manifest["quality"]["budget"]
    formats = {choice["stored"] for choice in report["tensors"].values()}
    assert len(formats) > 1
    assert report["estimated_bits_per_byte"] == pytest.approx(
        sum(choice["bits_per_byte"] for choice in report["tensors"].values()), rel=0.05
    )
    for choice in report["tensors"].values():
        assert choice.get("next", {"bits_per_byte": -1})["bits_per_byte"] < 0
    assert result.manifest["recipe"]["tensors"]
    said = _choices(result.manifest)
    assert len(said) == 8 and all("bits per byte" in line for line in said)


def test_a_long_configuration_counts_as_well(golden, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(golden("llama").folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["modules"] = [f"model.layers.{number}.mlp" for number in range(1200)]
    (folder / "config.json").write_text(json.dumps(config))
    result = export(folder, tmp_path / "out", options(tmp_path, budget=150_000))
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir()) <= 150_000
    assert not [each for each in result.warnings if "--budget" in each]


def test_a_budget_does_not_spoil_integers_that_fit_into_it(golden, tmp_path):
    """Rounding Q4_0 to int4 shows nothing of what fewer bits lose, which is not nothing."""
    folder = golden("qwen3").folder
    config = json.loads((folder / "config.json").read_text())
    with open_checkpoint(str(folder)) as source:
        tensors = {name: source.read(name) for name in source.tensors()}
    path = write_gguf(tmp_path / "model.gguf", "qwen3", config, tensors, "Q4_0")
    manifest = export(path, tmp_path / "out", options(tmp_path, budget=140_000)).manifest
    report = manifest["quality"]["budget"]["tensors"].values()
    assert {choice["stored"] for choice in report} == {"int4:32"}
    assert manifest["quality"]["relative_weight_error"] == 0


@pytest.mark.parametrize("stored", [TensorRecipe("int4", 32), TensorRecipe("int2", 32)])
def test_what_integers_lose_is_estimated_as_what_floats_lose(
    stored, golden, source_weights, tmp_path
):
    source = source_weights(golden("llama"))
    ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (5, 32))
    coarser = TensorRecipe("int2", 64)

    class Integers:
        def __getattr__(self, each):
            return getattr(source, each)

        def matrix(self, name):
            weights = source.matrix(name)
            if not name.endswith("_proj.weight"):
                return weights
            packed = quantise_rows(weights, stored.weights, stored.group_size)
            return block_layout(stored.weights).unpack(packed)

    def estimates(weights):
        with single_threaded():
            meter = SensitivityMeter(weights, ids[:4], ids[4:], tmp_path, lambda done: None)
            return meter.run([coarser, stored]).nats

    floats = estimates(source)
    for module, costs in estimates(Integers()).items():
        assert 0.1 < costs[coarser] / floats[module][coarser] < 2
        assert 0 <= costs[stored] < 1e-9


def test_projections_that_rules_concern_keep_their_format(golden, tmp_path):
    given = options(tmp_path, budget=135_000, rules=("*.v_proj=int8:64:rtn",))
    manifest = export(golden("llama").folder, tmp_path / "out", given).manifest
    kind = manifest["recipe"]["tensors"]["model.layers.0.self_attn.v_proj"]
    assert kind == {"weights": "int8", "group_size": 64, "method": "rtn"}
    assert not any("v_proj" in module for module in manifest["quality"]["budget"]["tensors"])


@pytest.mark.parametrize(
    ("rule", "budget", "ruled", "chosen"),
    [
        ("*.shared_expert.*=int8", 262_000, "shared_expert", "experts.0"),
        ("*.experts.*=int4", 300_000, "experts.0", "shared_expert"),
    ],
)
def test_a_shared_expert_is_chosen_for_apart(rule, budget, ruled, chosen, golden, tmp_path):
    given = options(tmp_path, budget=budget, rules=(rule,))
    manifest = export(golden("qwen2_moe").folder, tmp_path / "out", given).manifest
    tensors = manifest["recipe"]["tensors"]
    report = manifest["quality"]["budget"]["tensors"]
    for name in ("gate_proj", "up_proj", "down_proj"):
        path = f"model.layers.1.mlp.{ruled}.{name}"
        assert tensors[path]["weights"] == rule.partition("=")[2] and path not in report
        assert f"model.layers.1.mlp.{chosen}.{name}" in report


def test_a_rule_that_says_what_holds_for_the_rest_is_kept(golden, tmp_path):
    given = options(tmp_path, budget=135_000, weights="int4", rules=("*.v_proj=int4",))
    manifest = export(golden("llama").folder, tmp_path / "out", given).manifest
    stored, chosen = manifest["recipe"]["tensors"], manifest["quality"]["budget"]["tensors"]
    assert not any("v_proj" in module for module in (*stored, *chosen))
    assert stored and "ruled" not in manifest["recipe"]
    with pytest.raises(UnsupportedError, match="rules leave no projection"):
        given = options(tmp_path, budget=135_000, weights="int4", rules=("*=int4",))
        export(golden("llama").folder, tmp_path / "none", given)


def test_scales_of_experts_count_as_they_are_stored(golden, source_weights):
    """Each has four bytes where the rest has two, in whatever group is chosen."""
    source = source_weights(golden("mixtral"))
    recipe = make_recipe("int2", 128, scales="fp16")
    least = weight_bytes(source.spec, recipe)
    for module, kind in (
        ("model.layers.0.block_sparse_moe.experts.1.w1", TensorRecipe("int4", 32)),
        ("model.layers.0.self_attn.q_proj", TensorRecipe("int4", 32)),
    ):
        larger = weight_bytes(source.spec, replace(recipe, tensors={module: kind}))
        shape, usual = source.shape(f"{module}.weight"), recipe.tensor("")
        each = 4 if "experts" in module else 2
        assert larger - least == matrix_bytes(shape, kind, each) - matrix_bytes(shape, usual, each)
        assert larger - least == _bytes(source, recipe, [module], kind) - _bytes(
            source, recipe, [module], usual
        )


def test_what_a_budget_chooses_is_fitted_though_offsets_are_not():
    assert {kind.method for kind in _kinds(make_recipe("int4_offset"))} == {"residual"}
    assert {kind.method for kind in _kinds(make_recipe("int4", method="gptq"))} == {"gptq"}


@pytest.mark.parametrize(
    ("weights", "fewest"), [("int4_asym", "int4"), ("int4_offset", "int4"), ("ternary", "int2")]
)
def test_formats_that_a_budget_does_not_choose_are_mentioned(weights, fewest, golden, tmp_path):
    given = options(tmp_path, budget=145_000, weights=weights)
    result = export(golden("llama").folder, tmp_path / "out", given)
    warning = next(each for each in result.warnings if "--budget" in each)
    assert f"so --weights {weights} says no more than {fewest} does" in warning
    kinds = {each["weights"] for each in result.manifest["recipe"]["tensors"].values()}
    assert kinds <= {fewest, "int4", "int8"}


def test_groups_that_a_budget_does_not_ask_for_are_mentioned(golden, tmp_path):
    given = options(tmp_path, budget=125_000, scales="fp16", group_size=64)
    warnings = export(golden("llama").folder, tmp_path / "out", given).warnings
    assert any(
        "so --group-size 64 concerns the embedding and the head" in each for each in warnings
    )


def test_budgets_that_no_bundle_has_are_refused_with_both_sizes(golden, tmp_path):
    llama = golden("llama").folder
    with pytest.raises(InputError, match=r"20,000 bytes, and the smallest .* at most") as refused:
        export(llama, tmp_path / "out", options(tmp_path, budget=20_000))
    least = int(re.findall(r"[\d,]+(?=;)", str(refused.value))[0].replace(",", ""))
    with pytest.raises(InputError, match=f"is {least - 1:,} bytes, and .* at most {least:,};"):
        export(llama, tmp_path / "out", options(tmp_path, budget=least - 1))
    with pytest.raises(InputError, match=r"90,000,000 bytes, more than the \d{3},\d{3} that"):
        export(llama, tmp_path / "out", options(tmp_path, budget=90_000_000))
    few = replace(options(tmp_path, budget=135_000).calibration, windows=7)
    with pytest.raises(InputError, match="raise --calibration-windows"):
        export(llama, tmp_path / "out", ExportOptions("int2", calibration=few))
    with pytest.raises(UnsupportedError, match="rules leave no projection"):
        given = options(tmp_path, budget=135_000, rules=("*=int8:64",))
        export(llama, tmp_path / "out", given)
    with pytest.raises(UnsupportedError, match="no smaller than --weights fp32, and there is none"):
        given = options(tmp_path, budget=135_000, weights="fp32", rules=("*.v_proj=int8:64",))
        export(llama, tmp_path / "out", given)
    assert not (tmp_path / "out").exists()


def test_what_a_budget_needs_is_said(tmp_path):
    text = (tmp_path / "text.txt",)
    assert checked_budget("auto", CalibrationOptions(text, budget=1), "portable") is None
    assert checked_budget("gptq", CalibrationOptions(text), "genai") == "gptq"
    for method, given, profile, message in (
        ("auto", CalibrationOptions(text), "portable", "such as --budget 60MB"),
        (None, CalibrationOptions(budget=1), "portable", "--calibrate FILE"),
        (None, CalibrationOptions(text, budget=1), "genai", "--budget is for --profile portable"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            checked_budget(method, given, profile)


def test_sizes_are_read_with_their_units():
    assert [parse_size("--budget", text) for text in ("60MB", "1.5 gb", "800KB", "123")] == [
        60_000_000, 1_500_000_000, 800_000, 123
    ]  # fmt: skip
    for text in ("", "MB", "-3MB", "60 apples", "1e3", "9" * 400 + "GB"):
        with pytest.raises(InputError, match="expected one such as 60MB"):
            parse_size("--budget", text)
