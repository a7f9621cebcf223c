"""Ternary weights that are trained: exact in a bundle, and what trains them computes the model."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from edgerun.errors import InputError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.numpy_model import forward
from tools.ternary.codes import GROUP, REACH, Trained, begin
from tools.ternary.run import begin_run, check_model, model_digest
from tools.torch_llama.plain import check
from tools.torch_llama.save import save_checkpoint
from tools.torch_llama.text import WATCHED, read_windows

LLAMA = "tests/golden/llama-yarn"


@pytest.fixture
def llama(repo_root):
    with open_checkpoint(str(repo_root / LLAMA)) as checkpoint:
        yield checkpoint, interpret(checkpoint)[0]


def trained(rows: int, columns: int, seed: int) -> Trained:
    """Any state: groups without a code, with one, and scales that half precision rounds."""
    random = np.random.default_rng(seed)
    units = random.uniform(-1.4, 1.4, (rows, -(-columns // GROUP), GROUP)).astype(np.float32)
    units[0, 0] = 0.3
    units[1, 0, 1:] = -0.2
    scales = random.uniform(1e-3, 0.1, units.shape[:2]).astype(np.float32)
    return Trained(units, scales, columns)


@pytest.mark.parametrize("method", ["rtn", "mse", "gptq"])
def test_training_begins_with_the_codes_of_a_fit(method):
    random = np.random.default_rng(0)
    rows = random.standard_normal((6, 70)).astype(np.float32)
    rows[2, 32:64] = 0
    packed = quantise_rows(rows, "ternary", 32, "mse" if method == "gptq" else method)
    if method == "gptq":  # whose scales have either sign
        packed.scales[:] *= np.where(random.random(packed.scales.shape) < 0.5, -1, 1)
    began = begin(packed, rows)
    expected = block_layout("ternary").unpack(packed)
    np.testing.assert_allclose(began.values(), expected, rtol=2**-10, atol=1e-7)
    assert (began.scales > 0).all()
    codes = np.rint(began.units)
    assert np.abs(began.units - codes).max() <= REACH + 1e-6
    assert (began.units.reshape(6, -1)[:, 70:] == 0).all()


def test_a_trained_checkpoint_is_exported_to_the_bit(llama, tmp_path):
    checkpoint, source = llama
    names = [
        f"model.layers.{layer}.{projection.path}.weight"
        for layer in range(source.spec.num_layers)
        for projection in source.spec.projections(layer)
    ]
    changed = {name: trained(*source.shape(name), seed).values() for seed, name in enumerate(names)}
    norm = source.vector(source.spec.final_norm_weight) * np.float32(1.25)
    changed[source.spec.final_norm_weight] = norm
    save_checkpoint(checkpoint, source, changed, tmp_path / "model")
    for scales in ("fp32", "fp16"):
        options = ExportOptions(weights="ternary", group_size=GROUP, scales=scales)
        result = export(str(tmp_path / "model"), tmp_path / scales, options)
        weights = BundleWeights(result.folder, source.spec)
        for name in names:
            np.testing.assert_array_equal(weights.matrix(name), changed[name], err_msg=name)
        np.testing.assert_array_equal(weights.vector(source.spec.final_norm_weight), norm)


def test_a_tensor_of_another_shape_is_not_written(llama, tmp_path):
    checkpoint, source = llama
    name = source.spec.final_norm_weight
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        save_checkpoint(checkpoint, source, {name: np.ones(3, np.float32)}, tmp_path)


def test_windows_are_those_of_calibration_mixed_and_some_only_watched(llama, tmp_path):
    checkpoint, _ = llama
    files = [tmp_path / name for name in ("first.txt", "second.txt")]
    for file, letter in zip(files, "ab", strict=True):
        file.write_text("\n".join(f"{letter}{n} is a line" for n in range(3000)))
    windows = read_windows(checkpoint, files, 40, 16)
    fitted = {tuple(window) for window in windows.fitted.tolist()}
    assert 40 <= len(windows.fitted) <= 42
    assert 2 <= len(windows.held_out) <= WATCHED
    assert not fitted & {tuple(window) for window in windows.held_out.tolist()}
    again = read_windows(checkpoint, files, 40, 16)
    np.testing.assert_array_equal(windows.fitted, again.fitted)
    letters = windows.fitted[:, 1]  # all windows begin with bos and a line
    assert len(set(letters)) == 2
    assert len(set(letters[:10])) == 2  # neither text comes first


def test_texts_too_short_to_hold_a_window_out_are_refused(llama, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n".join(f"{n} is a line" for n in range(300)))
    with pytest.raises(InputError, match="3 windows are too few to hold one out"):
        read_windows(llama[0], [file], 3, 16)


def test_a_run_goes_on_with_what_it_began_with_alone(llama, tmp_path):
    model, settings = model_digest(llama[1]), {"rate": "0.003"}
    with pytest.raises(InputError, match="no layers of this model"):
        check_model(tmp_path, model)
    begin_run(tmp_path, model, {"rate": "0.1"})
    (tmp_path / "logits.pt").write_bytes(b"")
    with pytest.raises(InputError, match="was learnt from layers that are gone"):
        begin_run(tmp_path, model, settings)
    (tmp_path / "logits.pt").unlink()
    begin_run(tmp_path, model, settings)  # nothing was fitted yet
    (tmp_path / "layer-0000.npz").write_bytes(b"")
    begin_run(tmp_path, model, settings)
    check_model(tmp_path, model)
    for other in ((model, {"rate": "0.1"}), ("another", settings)):
        with pytest.raises(InputError, match="another model, or fitted with other text"):
            begin_run(tmp_path, *other)
    with pytest.raises(InputError, match="no layers of this model"):
        check_model(tmp_path, "another")


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen3", "mixtral", "bitnet-master", "granite", "cohere", "gemma2"]
)
def test_what_is_more_than_a_plain_llama_is_refused(name, repo_root):
    with (
        open_checkpoint(str(repo_root / "tests" / "golden" / name)) as checkpoint,
        pytest.raises(UnsupportedError, match="plain Llama"),
    ):
        check(interpret(checkpoint)[0].spec)


def test_plain_llamas_are_not_refused(llama):
    check(llama[1].spec)


def test_a_checkpoint_of_floats_is_not_called_one_of_integers(llama, tmp_path):
    checkpoint, source = llama
    stated = {**checkpoint.config, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    integers = SimpleNamespace(config=stated, tokenizer_files=checkpoint.tokenizer_files)
    save_checkpoint(integers, source, {}, tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())


class TestWithTorch:
    """What trains."""

    @pytest.fixture(autouse=True)
    def torch(self):
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        torch.set_num_threads(1)
        return torch

    @pytest.fixture
    def ids(self, llama):
        return np.random.default_rng(0).integers(0, llama[1].spec.vocab_size, (10, 24))

    @pytest.fixture
    def settings(self, torch):
        from tools.ternary.blocks import Settings

        return Settings(torch.float32, epochs=20, rate=2e-2, batch=2)

    def test_layers_compute_what_the_numpy_model_does(self, llama, ids, torch):
        from tools.torch_llama.layer import source_layer
        from tools.torch_llama.model import Model

        _, source = llama
        model = Model(source, ids.shape[1], torch.float32)
        layers = [source_layer(source, at, torch.float32) for at in range(source.spec.num_layers)]
        with torch.no_grad():
            logits = model.logits(torch.from_numpy(ids), layers, model.final_norm).numpy()
        expected = np.stack([forward(source.spec, source, window) for window in ids])
        assert np.abs(logits - expected).max() <= 1e-5 * np.ptp(expected)

    def test_moments_are_those_of_calibration(self, llama, ids, torch):
        from edgerun_export.calibrate.taps import all_groups, observe
        from edgerun_export.calibrate.weights import LayerWeights
        from edgerun_export.verify.numpy_ends import embedded
        from tools.ternary.blocks import Stage, Streams
        from tools.torch_llama.layer import Layer, source_layer

        _, source = llama
        spec, random = source.spec, np.random.default_rng(1)
        here = np.stack([embedded(spec, source, window) for window in ids])
        there = here + random.standard_normal(here.shape).astype(np.float32)
        weights = LayerWeights(source, 0)
        own = source_layer(source, 0, torch.float32)
        stage = Stage(Layer(spec, 0, ids.shape[1]), own, own)
        streams = Streams(torch.from_numpy(here), torch.from_numpy(there), len(ids))
        groups = all_groups(spec, 0)

        def seen(hidden, path):
            runs = [observe(spec, weights, 0, each, groups) for each in hidden]
            inputs = np.concatenate([run.inputs[path] for run in runs])
            added = [run.residuals[path] for run in runs if path in run.residuals]
            return inputs, np.concatenate(added) if added else None

        for part, group in enumerate(groups):
            path = group[0].path
            (x, at), (other, beside) = seen(here, path), seen(there, path)
            moments = stage.moments(part, streams)
            np.testing.assert_allclose(moments.importance, (x * x).mean(axis=0), rtol=1e-4)
            if at is None:
                assert moments.change is None
                expected, given = (other - x).T @ x / len(x), moments.drift
            else:
                assert moments.drift is None
                matrix = source.matrix(f"model.layers.0.{path}.weight")
                missing = (other - x) @ matrix.T + beside - at
                expected, given = missing.T @ x / len(x), moments.change
            assert np.abs(given - expected).max() <= 1e-4 * np.abs(expected).max()

    def test_gradients_pass_through_the_rounding(self, torch):
        from tools.ternary.matrix import Matrix

        state = trained(4, 70, 3)
        matrix = Matrix(state, torch.float32)
        np.testing.assert_allclose(matrix.weight.detach(), state.values(), rtol=1e-3)
        given = torch.randn(4, 70)
        (matrix.weight * given).sum().backward()
        matrix.spread()
        wide = np.pad(given.numpy(), ((0, 0), (0, 26))).reshape(4, 3, 32)
        steps = wide * state.scales[..., None]
        np.testing.assert_allclose(matrix.units.grad, steps, rtol=1e-5)
        codes = np.clip(np.rint(state.units), -1, 1)
        np.testing.assert_allclose(
            matrix.log_scales.grad, (steps * codes).sum(-1), rtol=1e-4, atol=1e-6
        )

    def test_what_is_learnt_stays_only_where_it_is_better(self, llama, ids, torch, settings):
        from tools.ternary.blocks import Settings, Stage, Streams, learnt, rounded
        from tools.torch_llama.layer import Layer, norms, source_layer

        _, source = llama
        hidden = torch.from_numpy(source.matrix(source.spec.embedding_weight))
        hidden = hidden[torch.from_numpy(ids)]
        streams = Streams(hidden, hidden, 8)
        functions = Layer(source.spec, 0, ids.shape[1])
        stage = Stage(functions, source_layer(source, 0, torch.float32), norms(source, 0))
        begun = rounded(stage, streams, source, 0)
        target = stage.outputs(hidden, stage.layer)
        stays, errors = learnt(stage, streams, target, begun, settings)
        assert errors["learnt"] < errors["rounded"]
        assert not np.array_equal(stays["q_proj"].units, begun["q_proj"].units)
        wild = Settings(torch.float32, epochs=3, rate=3.0, batch=2)
        stays, errors = learnt(stage, streams, target, begun, wild)
        assert errors["learnt"] > errors["rounded"]
        assert stays is begun

    def test_both_stages_bring_the_model_nearer_and_go_on(
        self, llama, ids, torch, settings, tmp_path
    ):
        from tools.ternary.blocks import Streams, file_of, fit, read_layer
        from tools.ternary.logits import Student, train, watched
        from tools.torch_llama.layer import source_layer
        from tools.torch_llama.model import Model
        from tools.torch_llama.text import Windows

        _, source = llama
        windows = Windows(ids[:8], ids[8:])
        model = Model(source, ids.shape[1], torch.float32)
        with torch.no_grad():
            hidden = model.embedding[torch.from_numpy(ids)]
        fit(source, Streams(hidden, hidden, 8), settings, tmp_path)
        lines = (tmp_path / "blocks.log").read_text().splitlines()
        assert len(lines) == source.spec.num_layers
        before = {layer: read_layer(file_of(tmp_path, layer)) for layer in range(len(lines))}
        last = len(lines) - 1
        file_of(tmp_path, last).unlink()
        fit(source, Streams(hidden, hidden, 8), settings, tmp_path)
        again = read_layer(file_of(tmp_path, last))
        for name, each in before[last].items():
            np.testing.assert_array_equal(again[name].units, each.units)

        teacher = [source_layer(source, at, torch.float32) for at in range(source.spec.num_layers)]
        # To the windows that it learns: a random model has nothing to say of others.
        fitted = torch.from_numpy(windows.fitted)

        def student():
            return Student(source, model, tmp_path, torch.float32, (1e-2, 1e-3))

        first = student()
        begun = watched(model, first, teacher, fitted)["kl"]
        train(model, first, teacher, windows, (1e9, 30), 2, tmp_path)
        ended = watched(model, first, teacher, fitted)["kl"]
        assert ended < 0.8 * begun
        second = student()
        second.restore(tmp_path / "logits.pt")
        assert second.step == 30
        expected, restored = first.changed(), second.changed()
        assert expected.keys() == restored.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(restored[name], value)


@pytest.mark.parametrize("rates", [(0.1, 0.0), (0.0, 0.02)])
def test_units_and_scales_have_rates_of_their_own(rates):
    torch = pytest.importorskip("torch")
    from tools.ternary.matrix import Matrix, Optimiser

    matrix = Matrix(trained(4, 64, 0), torch.float32)
    norm = torch.ones(3, requires_grad=True)
    before = [each.detach().clone() for each in (matrix.units, matrix.log_scales, norm)]
    (matrix.weight.square().sum() + norm.square().sum()).backward()
    matrix.spread()
    Optimiser([matrix], [norm], *rates).step(0.5)
    after = (matrix.units, matrix.log_scales, norm)
    # Adam's first step is as long as its rate.
    steps = [
        (new - old).detach().abs().max().item() for old, new in zip(before, after, strict=True)
    ]
    assert steps == pytest.approx([rates[0] / 2, rates[1] / 2, rates[1] / 2], rel=1e-3)


@pytest.mark.parametrize("option", ["--steps", "--minutes"])
def test_training_for_nothing_is_refused(option, monkeypatch, capsys):
    pytest.importorskip("torch")
    from tools.ternary import logits

    needed = ["m", "--calibrate", "t", "--run", "r", "--out", "o"]
    monkeypatch.setattr("sys.argv", ["logits", *needed, option, "0"])
    with pytest.raises(SystemExit):
        logits.main()
    assert "must be above 0" in capsys.readouterr().err
