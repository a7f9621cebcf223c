"""Formats and methods side by side."""

import json
import shutil

import numpy as np
import onnx
import pytest
import typer
from safetensors.numpy import save_file
from typer.testing import CliRunner

from edgerun.errors import InputError, StorageError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.bundle_files import MODEL_FILE
from edgerun_export.graph.external_data import find_data
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quality import command
from edgerun_export.quality import measure as measuring
from edgerun_export.quality.command import register
from edgerun_export.quality.settings import Setting, settings
from edgerun_export.recipe import make_recipe
from edgerun_export.sizes import weight_bytes

TEXT = "Once upon a time there was a small house near the sea, and a dog lived in it. "


def run(*arguments):
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    done = CliRunner().invoke(app, ["quality", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, count in (("train.txt", 100), ("test.txt", 40)):
        (folder / name).write_text(TEXT * count, encoding="utf-8")
    return folder


def test_settings_are_all_formats_with_all_methods_that_make_them():
    assert settings("int4, int2:64", "mse,gptq", calibrates=True) == [
        Setting("int4", 32, "mse"),
        Setting("int4", 32, "gptq"),
        Setting("int2", 64, "mse"),
        Setting("int2", 64, "gptq"),
    ]
    everything = {each.method for each in settings("int2", "all", calibrates=True)}
    assert {"rtn", "mse", "gptq", "gptaq", "descent", "residual"} <= everything
    assert "ternary" not in everything
    without = {each.method for each in settings("int2", "all", calibrates=False)}
    assert without == {"rtn", "mse"}


def test_formats_are_made_by_their_usual_methods_unless_others_are_named():
    formats = "int4,ternary,int8_offset"
    assert settings(formats, None, calibrates=False) == [
        Setting("int4", 32, "mse"),
        Setting("ternary", 128, "ternary"),
        Setting("int8_offset", 32, "rtn"),
    ]
    assert [each.method for each in settings(formats, None, calibrates=True)] == [
        "mse", "gptq", "residual", "ternary", "gptq", "residual", "rtn"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("formats", "methods", "message"),
    [
        ("int4:33", "mse", "--formats int4:33: expected a group of one of 16, 32, "),
        ("int4:x", "mse", "--formats int4:x: expected FORMAT or FORMAT:GROUP"),
        ("int4:" + "9" * 5000, "mse", "expected FORMAT or FORMAT:GROUP"),
        ("fp32", "mse", "no fp32"),
        ("int3", "mse", "--formats int3 is not supported; .* int2_offset, "),
        ("int4", "magic", "--methods magic is not supported; choose one of: "),
        ("int4", "mse,all", "--methods all is not supported"),
        ("int4", "gptq", "--methods gptq fits weights .* --calibrate FILE"),
        ("int4", "ternary", "the method ternary makes ternary, and not int4"),
        (",", "mse", "name at least one"),
    ],
)
def test_what_cannot_be_compared_is_refused(formats, methods, message):
    with pytest.raises(UnsupportedError, match=message):
        settings(formats, methods, calibrates=False)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"weights": "int4"}),
        ("llama", {"weights": "int2", "group_size": 64, "head_weights": "int4"}),
        ("llama", {"weights": "int4", "scales": "fp16"}),
        ("llama", {"weights": "int4", "embedding_weights": "int4"}),
        ("qwen3", {"weights": "fp32"}),
        ("qwen3", {"weights": "int4", "head_weights": "int4", "embedding_weights": "int4"}),
        ("qwen3", {"weights": "int4", "embedding_weights": "fp32"}),
        ("mixtral", {"weights": "ternary"}),
        ("mixtral", {"weights": "int4", "scales": "fp16"}),
        ("qwen2", {"weights": "int4_offset"}),
    ],
)
def test_bytes_are_those_of_the_bundle(name, options, exported, golden):
    result = exported(name, **options)
    model = onnx.load(str(result.folder / MODEL_FILE), load_external_data=False)
    stored = sum(where.length for where in find_data(model.graph.initializer))
    assert weight_bytes(golden(name).spec, result.recipe) == stored


def test_formats_that_no_bundle_of_a_model_has_are_not_measured(golden, source_weights):
    source = source_weights(golden("mixtral"))
    measurement = measuring.Measurement(source, None, 1, lambda what, done: None)
    with pytest.raises(UnsupportedError, match="experts have no offsets"):
        next(measurement.run([Setting("int4_offset", 32, "rtn")], None))


def test_a_table_of_settings_is_printed_kept_and_gone_on_with(golden, texts, tmp_path, monkeypatch):
    saved = tmp_path / "table.json"
    common = (golden("llama").folder, "--text", texts / "test.txt", "--calibrate",
              texts / "train.txt", "--tokens", 32, "--windows", 4, "--calibration-windows", 8,
              "--save", saved)  # fmt: skip
    rows = json.loads(run(*common, "--formats", "int4", "--methods", "mse,gptq", "--json"))
    assert [row["setting"] for row in rows] == ["source", "int4:32:mse", "int4:32:gptq"]
    assert rows[0]["bytes"] > rows[1]["bytes"] == rows[2]["bytes"]
    assert all(row["texts"]["test.txt"]["bits_per_byte"] > 0 for row in rows)
    assert json.loads(saved.read_text())["rows"] == rows

    class Unexpected:
        def __init__(self, *_):
            raise AssertionError("this is known already")

    monkeypatch.setattr(measuring, "LayerFitter", Unexpected)
    table = run(*common, "--formats", "int4", "--methods", "gptq").splitlines()
    assert table[0].split("\t") == ["text", "weights", "MB", "bits/byte", "perplexity", "change"]
    assert [line.split("\t")[:2] for line in table[1:]] == [
        ["test.txt", "source"], ["test.txt", "int4:32:gptq"]
    ]  # fmt: skip


def test_sizes_and_what_runtimes_round_are_in_the_same_table(golden, texts, tmp_path):
    common = (golden("llama").folder, "--text", texts / "test.txt", "--calibrate",
              texts / "train.txt", "--tokens", 32, "--windows", 2, "--calibration-windows", 18,
              "--formats", "int2", "--methods", "mse")  # fmt: skip
    columns = ("--activations", "fp32,int8", "--kv-cache", "int8", "--save", tmp_path / "a.json")
    spec = golden("llama").spec
    least, most = (weight_bytes(spec, make_recipe(kind)) for kind in ("int2", "int4"))
    budget = (least + most) // 2
    rows = json.loads(run(*common, *columns, "--budget", f"{budget},{budget + 5000}", "--json"))
    names = [f"{size / 1e6:g}MB:mixed mse" for size in (budget, budget + 5000)]
    assert [row["setting"] for row in rows] == ["source", "int2:32:mse", *names]
    assert rows[1]["bytes"] == least < rows[2]["bytes"] <= budget < rows[3]["bytes"]
    for row in rows:
        assert list(row["texts"]) == ["test.txt, KV int8", "test.txt, activations int8, KV int8"]
        plain, rounded = (each["bits_per_byte"] for each in row["texts"].values())
        assert (plain == rounded) is (row["setting"] == "source")
    with pytest.raises(InputError, match="smallest bundle is reckoned with at most"):
        run(*common, "--budget", "1KB")


def test_a_budget_needs_text_and_methods_that_make_all_formats():
    mixed = settings("int4", "mse,rtn", "fp16", "60MB,1.5GB", calibrates=True)[2:]
    assert [each.name for each in mixed] == [
        "60MB/fp16:mixed mse", "60MB/fp16:mixed rtn", "1500MB/fp16:mixed mse",
        "1500MB/fp16:mixed rtn",
    ]  # fmt: skip
    everything = settings("ternary", "all", budgets="1MB", calibrates=True)
    assert {each.method for each in everything if each.budget is None} > {
        each.method for each in everything if each.budget
    }
    with pytest.raises(UnsupportedError, match="--budget weighs .* --calibrate FILE"):
        settings("int4", "mse", budgets="1MB", calibrates=False)
    with pytest.raises(UnsupportedError, match="the method ternary makes ternary, and not int2"):
        settings("ternary", "ternary", budgets="1MB", calibrates=True)


def test_a_table_of_something_else_is_not_gone_on_with(golden, texts, tmp_path):
    saved = tmp_path / "table.json"
    common = ("--text", texts / "test.txt", "--tokens", 32, "--windows", 2, "--methods", "rtn",
              "--formats", "int8", "--save", saved)  # fmt: skip
    run(golden("llama").folder, *common)
    with pytest.raises(InputError, match="measured with another model; name"):
        run(golden("qwen3").folder, *common)
    with pytest.raises(InputError, match="with another text, or number of its windows; name"):
        run(golden("llama").folder, *common, "--windows", 1)
    of, row = json.loads(saved.read_text())["of"], {"setting": "a", "bytes": 1, "seconds": 0}
    for rows in (row | {"texts": []}, row | {"texts": {"a": 1}}):
        saved.write_text(json.dumps({"of": of, "rows": [rows]}))
        with pytest.raises(InputError, match="is no table of this command"):
            run(golden("llama").folder, *common)
    saved.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is no table of this command"):
        run(golden("llama").folder, *common)
    saved.write_text("[]")
    with pytest.raises(InputError, match="is no table of this command"):
        run(golden("llama").folder, *common)


def _with_other_weights(folder):
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _with_another_config(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))


@pytest.mark.parametrize("alter", [_with_other_weights, _with_another_config])
def test_a_table_of_another_checkpoint_of_the_same_name_is_not_gone_on_with(
    alter, golden, texts, tmp_path
):
    first, second = (tmp_path / run / "checkpoint" for run in ("first", "second"))
    for folder in (first, second):
        shutil.copytree(golden("llama").folder, folder)
    common = ("--text", texts / "test.txt", "--tokens", 32, "--windows", 2, "--methods", "rtn",
              "--formats", "int8", "--save", tmp_path / "table.json")  # fmt: skip
    before = run(first, *common)
    assert run(second, *common) == before  # a copy is the same model
    alter(second)
    with pytest.raises(InputError, match="measured with another model; name"):
        run(second, *common)


def test_a_table_of_weights_that_were_transformed_for_another_format_is_not_gone_on_with(
    golden, texts, tmp_path
):
    common = (golden("llama").folder, "--text", texts / "test.txt", "--calibrate",
              texts / "train.txt", "--tokens", 32, "--windows", 2, "--calibration-windows", 2,
              "--transform", "awq", "--methods", "rtn", "--save", tmp_path / "t.json")  # fmt: skip
    run(*common, "--formats", "int4")
    run(*common, "--formats", "int4,int2")
    with pytest.raises(InputError, match="measured with another transform; name"):
        run(*common, "--formats", "int2")


def test_bad_input_is_refused_before_anything_is_measured(golden, texts, tmp_path):
    llama = golden("llama").folder
    with pytest.raises(InputError, match="two files are called 'test.txt'"):
        run(llama, "--text", texts / "test.txt", "--text", tmp_path / "test.txt")
    with pytest.raises(UnsupportedError, match="--calibration-windows says how much text is read"):
        run("no checkpoint", "--text", texts / "test.txt", "--calibration-windows", 8)
    train = texts / "train.txt"
    with pytest.raises(InputError, match="what they were fitted to, which flatters them"):
        run("no checkpoint", "--text", train, "--calibrate", train)
    with pytest.raises(InputError, match=r"--plot .*table.gif: a plot is written as \.svg"):
        run(llama, "--text", texts / "test.txt", "--plot", tmp_path / "table.gif")
    for option, name in (("--plot", "table.svg"), ("--save", "table.json")):
        with pytest.raises(InputError, match=f"cannot write .*{name}: there is no folder .*/no"):
            run("no checkpoint", "--text", "no text", option, tmp_path / "no" / name)
    with pytest.raises(UnsupportedError, match="ternary already"):
        run(golden("bitnet-packed").folder, "--text", texts / "test.txt", "--methods", "mse")


def test_without_text_to_fit_to_usual_methods_need_none(golden, texts):
    text = ("--text", texts / "test.txt", "--tokens", 32, "--windows", 1)
    table = run(golden("llama").folder, *text, "--formats", "int4")
    assert [line.split("\t")[1] for line in table.splitlines()[1:]] == ["source", "int4:32:mse"]


def test_a_model_whose_head_has_no_whole_blocks_is_measured_as_it_is_exported(
    golden, texts, tmp_path
):
    llama, model = golden("llama").folder, tmp_path / "odd"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama / name, model)
    config = json.loads((llama / "config.json").read_text()) | {"hidden_size": 40, "head_dim": 16}
    (model / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(0)
    shapes = describe(config, {}).tensors()
    save_file(
        {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        model / "model.safetensors",
    )
    given = (model, "--text", texts / "test.txt", "--tokens", 32, "--windows", 1)
    rows = json.loads(run(*given, "--formats", "int4", "--methods", "rtn", "--json"))
    recipe = export(model, tmp_path / "out", ExportOptions(weights="int4")).recipe
    assert recipe.head_weights == "fp32"
    assert rows[1]["bytes"] == weight_bytes(describe(config, {}), recipe)


def test_a_plot_is_drawn(golden, texts, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "table.svg"
    run(golden("llama").folder, "--text", texts / "test.txt", "--tokens", 32, "--windows", 2,
        "--formats", "int8,int4", "--methods", "rtn,mse", "--plot", plot)  # fmt: skip
    drawn = plot.read_text(encoding="utf-8")
    assert "<svg" in drawn and "test.txt" in drawn
    for label in ("rtn", "mse", "int8:32", "int4:32"):  # each once, in the legend
        assert drawn.count(f"<!-- {label} -->") == 1


def _full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_table_is_printed_though_its_plot_cannot_be_written(
    golden, texts, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("matplotlib")

    monkeypatch.setattr("edgerun.files.output.write_atomically", _full)
    options = {"text": [texts / "test.txt"], "tokens": 32, "windows": 1, "formats": "int8"}
    plot = tmp_path / "table.svg"
    with pytest.raises(StorageError, match=f"cannot write {plot}: No space left"):
        command.quality_command(str(golden("llama").folder), plot=plot, **options)
    assert "int8:32:mse" in capsys.readouterr().out


def test_a_table_that_cannot_be_kept_is_an_error_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("edgerun.files.output.write_atomically", _full)
    saved = measuring.Saved(tmp_path / "table.json", {})
    with pytest.raises(StorageError, match=r"cannot write .*/table\.json: No space left"):
        saved.add(measuring.Row("source", 1, {}, 0.0))


def test_methods_of_a_trained_model_come_in_the_order_of_what_they_know(shared_data, tmp_path):
    stories = shared_data / "corpora" / "tinystories"
    rows = json.loads(
        run(
            shared_data / "models" / "stories260K" / "stories260K.bin",
            "--text",
            stories / "valid.txt",
            "--calibrate",
            stories / "train.txt",
            "--tokens",
            128,
            "--windows",
            8,
            "--calibration-windows",
            24,
            "--formats",
            "int2",
            "--methods",
            "mse,gptq,residual",
            "--json",
        )  # fmt: skip
    )
    source, mse, gptq, residual = (row["texts"]["valid.txt"]["perplexity"] for row in rows)
    assert source < 4.5
    assert residual < 0.65 * gptq < 0.4 * mse
    assert residual < 6 * source


def test_a_budget_without_text_held_out_is_refused_before_anything_is_measured(
    golden, texts, monkeypatch
):
    monkeypatch.setattr(measuring.Measurement, "_measured", None)
    common = (golden("llama").folder, "--text", texts / "test.txt", "--calibrate",
              texts / "train.txt", "--tokens", 32, "--windows", 2, "--formats", "int2",
              "--methods", "mse", "--budget", "1MB")  # fmt: skip
    said = r"6 windows of 1 texts leave none: raise --calibration-windows to 8, or"
    with pytest.raises(InputError, match=said):
        run(*common, "--calibration-windows", 6)


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, "+0.0%"), (0.985, "-1.5%"), (3.5, "+250.0%"), (100_013.4, "x 1e+05")]
)
def test_changes_are_percents_until_factors_are_easier_to_read(ratio, said):
    assert command._change(ratio) == said
