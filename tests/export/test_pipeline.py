import errno
import json
import resource
import shutil
import signal
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import edgerun_export.pipeline as pipeline
from edgerun.errors import CheckpointError, InputError, StorageError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FILES = {
    "config.json",
    "generation_config.json",
    "genai_config.json",
    "manifest.json",
    "model.onnx",
    "model.onnx.data",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of a golden checkpoint that a test may damage."""
    return Path(shutil.copytree(GOLDEN / "qwen2", tmp_path / "checkpoint"))


def edit(checkpoint, **changes):
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def read_tensors(checkpoint):
    source = open_checkpoint(str(checkpoint))
    tensors = {name: source.read(name) for name in source.tensors()}
    source.close()
    return tensors


def change(checkpoint, name, value):
    """Replaces a tensor, or removes it; the file becomes float32."""
    tensors = read_tensors(checkpoint)
    tensors.pop(name)
    if value is not None:
        tensors[name] = value
    save_file(tensors, checkpoint / "model.safetensors")


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name != "checkpoint"]


def test_bundle_holds_the_documented_files(exported):
    folder = exported("qwen2").folder
    assert {path.name for path in folder.iterdir()} == FILES


def test_manifest_lists_size_and_digest_of_every_other_file(exported):
    folder = exported("qwen2").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == FILES - {"manifest.json"}
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": sha256(data).hexdigest()}


def test_manifest_says_what_the_bundle_is(exported):
    manifest = exported("qwen3").manifest
    assert manifest["format"] == "edgerun-bundle"
    assert manifest["format_version"] == 1
    assert manifest["model"] == {
        "architecture": "qwen3",
        "context_length": 128,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "vocab_size": 264,
        "bos_token_id": 256,
        "eos_token_ids": [257],
        "pad_token_id": None,
    }
    assert manifest["recipe"] == {
        "weights": "int4",
        "group_size": 32,
        "head_weights": "int8",
        "embedding_weights": "int8",
        "activations": "int8",
        "profile": "portable",
        "method": None,
        "scales": "fp32",
        "rules": (),
        "tensors": {},
        "transforms": (),
        "natively_ternary": False,
    }
    assert manifest["source"] == {
        "kind": "safetensors",
        "location": "qwen3",
        "revision": None,
        "licence": None,
        "url": None,
    }


@pytest.mark.parametrize(("name", "weights"), [("llama", "int4"), ("bitnet-packed", "ternary")])
def test_default_format_suits_the_model(name, weights, exported):
    assert exported(name).recipe.weights == weights


def test_exports_are_byte_for_byte_the_same(tmp_path):
    bundles = [tmp_path / "one", tmp_path / "two"]
    for bundle in bundles:
        export(GOLDEN / "bitnet-master", bundle)
    for name in FILES:
        assert (bundles[0] / name).read_bytes() == (bundles[1] / name).read_bytes(), name


def test_no_file_names_a_folder_of_this_machine(tmp_path, checkpoint):
    edit(checkpoint, _name_or_path=str(checkpoint))
    export(checkpoint, tmp_path / "out")
    for name in FILES:
        assert str(tmp_path).encode() not in (tmp_path / "out" / name).read_bytes(), name


def test_existing_output_is_kept_unless_forced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("data")
    with pytest.raises(InputError, match="--force"):
        export(GOLDEN / "llama", out)
    assert (out / "precious").exists()
    with pytest.raises(InputError, match="no bundle"):
        export(GOLDEN / "llama", out, ExportOptions(force=True))
    assert (out / "precious").exists()
    (out / "manifest.json").write_text('{"format": "edgerun-bundle"}')
    export(GOLDEN / "llama", out, ExportOptions(force=True))
    assert {path.name for path in out.iterdir()} == FILES | {"precious"}
    assert (out / "precious").read_text() == "data"
    assert leftovers(tmp_path) == ["out"]


@pytest.mark.parametrize("out", [".", ".."])
def test_the_source_is_never_replaced(out, checkpoint):
    (checkpoint / "manifest.json").touch()
    (checkpoint.parent / "manifest.json").touch()
    with pytest.raises(InputError, match="holds the checkpoint"):
        export(checkpoint, checkpoint / out, ExportOptions(force=True))
    assert (checkpoint / "model.safetensors").exists()


def test_a_revision_of_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is for hub ids"):
        export(GOLDEN / "llama", tmp_path / "out", ExportOptions(revision="main"))


def test_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("data")
    with pytest.raises(InputError, match="is a file"):
        export(GOLDEN / "llama", tmp_path / "file" / "out")


def test_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("data")
    with pytest.raises(InputError, match="not a folder"):
        export(GOLDEN / "llama", tmp_path / "out", ExportOptions(force=True))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_interrupted_export_leaves_nothing_behind(interrupt, tmp_path):
    def stop(step, fraction):
        if step == "weights" and fraction > 0.5:
            raise interrupt

    with pytest.raises(interrupt):
        export(GOLDEN / "llama", tmp_path / "out", progress=stop)
    assert leftovers(tmp_path) == []


def test_failed_replacement_leaves_the_old_bundle(tmp_path):
    out = tmp_path / "out"
    export(GOLDEN / "llama", out)
    before = (out / "manifest.json").read_bytes()

    def stop(step, fraction):
        if step == "finish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(GOLDEN / "qwen2", out, ExportOptions(force=True), stop)
    assert (out / "manifest.json").read_bytes() == before
    assert leftovers(tmp_path) == ["out"]


def test_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match="no space left"):
            export(GOLDEN / "llama", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert leftovers(tmp_path) == []


def test_missing_write_permission_is_a_storage_error(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("edgerun.files.drafts.tempfile.mkdtemp", refuse)
    with pytest.raises(StorageError, match="no permission to write"):
        export(GOLDEN / "llama", tmp_path / "out")


def test_missing_tensor_is_named(tmp_path, checkpoint):
    change(checkpoint, "model.layers.1.mlp.up_proj.weight", None)
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj"):
        export(checkpoint, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_tensor_of_another_shape_is_named(tmp_path, checkpoint):
    change(checkpoint, "model.layers.0.self_attn.q_proj.weight", np.zeros((32, 64), np.float32))
    with pytest.raises(CheckpointError, match=r"has shape \[32, 64\].* asks for \[64, 64\]"):
        export(checkpoint, tmp_path / "out")


def test_nan_weights_are_refused(tmp_path, checkpoint):
    weight = np.zeros((64, 64), np.float32)
    weight[3, 4] = np.nan
    change(checkpoint, "model.layers.0.self_attn.q_proj.weight", weight)
    with pytest.raises(CheckpointError, match="NaN"):
        export(checkpoint, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_tokenizer_larger_than_the_embedding_is_refused(tmp_path, checkpoint):
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"][0]["id"] = 5000
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="5001 tokens and the model's embedding 264 rows"):
        export(checkpoint, tmp_path / "out")


def test_unpacked_weights_in_a_packed_checkpoint_are_refused(tmp_path):
    checkpoint = Path(shutil.copytree(GOLDEN / "bitnet-master", tmp_path / "checkpoint"))
    edit(checkpoint, quantization_config={"quant_method": "bitnet", "linear_class": "bitlinear"})
    with pytest.raises(CheckpointError, match="stored packed"):
        export(checkpoint, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "gptx"},
            "--method gptx is not supported; choose one of: descent, gptaq",
        ),
        ({"weights": "int3"}, "--weights int3 is not supported; choose one of: int2, .*, source$"),
        ({"group_size": 48}, "--group-size 48"),
        ({"head_weights": "int2"}, "--head-weights int2"),
        ({"embedding_weights": "int2"}, "--embedding-weights int2"),
        ({"activations": "int4"}, "--activations int4"),
        ({"profile": "npu"}, "--profile npu"),
    ],
)
def test_options_without_an_implementation_are_refused(options, message, tmp_path):
    with pytest.raises(UnsupportedError, match=message):
        export(GOLDEN / "llama", tmp_path / "out", ExportOptions(**options))


def test_hidden_size_that_blocks_do_not_divide_needs_an_fp32_head(tmp_path, checkpoint):
    # 72 = 8 * 9: an embedding row cannot be cut into blocks of 16.
    edit(checkpoint, hidden_size=72, head_dim=16)
    shapes = describe(json.loads((checkpoint / "config.json").read_text())).tensors()
    generator = np.random.default_rng(0)
    tensors = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, checkpoint / "model.safetensors")
    with pytest.raises(UnsupportedError, match="--head-weights fp32"):
        export(checkpoint, tmp_path / "out", ExportOptions(head_weights="int8"))
    with pytest.raises(UnsupportedError, match="leave --embedding-weights out"):
        export(checkpoint, tmp_path / "out", ExportOptions(embedding_weights="int4"))
    result = export(checkpoint, tmp_path / "out", ExportOptions(verify=True))
    assert result.recipe.head_weights == "fp32"


@pytest.mark.parametrize("width", [4, 24])
def test_the_genai_profile_refuses_heads_that_its_attention_does_not_take(
    width, tmp_path, checkpoint
):
    edit(checkpoint, head_dim=width)
    shapes = describe(json.loads((checkpoint / "config.json").read_text())).tensors()
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, checkpoint / "model.safetensors")
    with pytest.raises(UnsupportedError, match=f"--profile genai: .* have {width} elements"):
        export(checkpoint, tmp_path / "out", ExportOptions(profile="genai"))
    export(checkpoint, tmp_path / "out", ExportOptions())


@pytest.mark.parametrize("weights", ["ternary", "int2"])
def test_damage_of_two_bits_is_measured_and_reported(weights, exported):
    result = exported("llama", weights=weights)
    (warning,) = result.warnings
    quality = result.manifest["quality"]
    assert 0.2 < quality["relative_weight_error"] < 0.9
    assert quality["kl_divergence"] > 0.05
    assert f"not trained for {weights}" in warning
    assert f"{quality['relative_weight_error']:.0%}" in warning


def test_natively_ternary_models_give_no_warning(exported):
    assert exported("bitnet-packed").warnings == []


def test_progress_goes_through_all_steps_in_order(tmp_path):
    seen = []
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time. " * 20, encoding="utf-8")
    export(
        GOLDEN / "llama",
        tmp_path / "out",
        ExportOptions(
            verify=True,
            calibration=CalibrationOptions((text,), 2, 16),
            transforms=("rotate",),
        ),
        lambda step, fraction: seen.append((step, fraction)),
    )
    steps = list(dict.fromkeys(step for step, _ in seen))
    assert steps == list(pipeline.STEPS)
    fractions = [fraction for step, fraction in seen if step == "weights"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1, abs=0.01)


def test_folders_are_swapped_where_the_system_cannot_do_it_in_one_step(tmp_path, monkeypatch):
    monkeypatch.setattr("edgerun.files.folder._RENAME_EXCHANGE", -1)
    for name in ("llama", "qwen2"):
        export(GOLDEN / name, tmp_path / "out", ExportOptions(force=True))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["model"]["architecture"] == "qwen2"
    assert leftovers(tmp_path) == ["out"]
