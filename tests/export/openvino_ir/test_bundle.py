"""The openvino profile: a portable bundle that openvino-genai opens, too, with its weights once."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from edgerun.errors import MissingDependencyError, StorageError, UnsupportedError
from edgerun_export.graph.external_data import find_data
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.verify.compare import VerificationError, sample_ids, verify
from tests.support.peers import needs_complete_onnxruntime

openvino = pytest.importorskip("openvino")
openvino_tokenizers = pytest.importorskip("openvino_tokenizers")

pytestmark = pytest.mark.peers

OPENVINO = ExportOptions(profile="openvino")
FILES = {
    f"openvino_{name}.{suffix}"
    for name in ("model", "tokenizer", "detokenizer")
    for suffix in ("xml", "bin")
}
FORMATS = [
    ("llama", {"weights": "fp32"}),
    ("llama", {"weights": "int2"}),
    ("qwen3", {"weights": "int4", "head_weights": "int4", "embedding_weights": "int4"}),
    ("mistral", {"weights": "int8"}),
    ("bitnet-packed", {"weights": "ternary"}),
]
each_format = pytest.mark.parametrize(
    ("name", "options"), FORMATS, ids=[f"{name}-{o['weights']}" for name, o in FORMATS]
)


def graph_of(folder):
    return onnx.load(str(folder / "model.onnx"), load_external_data=False)


def constants_of(folder):
    """Offset and size of every constant of the IR."""
    tree = ElementTree.parse(folder / "openvino_model.xml")
    where = [layer.find("data") for layer in tree.iter("layer") if layer.get("type") == "Const"]
    return {(int(data.get("offset")), int(data.get("size"))) for data in where}


def test_files_are_those_of_the_portable_profile_and_openvino_s(exported):
    portable, folder = exported("qwen2").folder, exported("qwen2", profile="openvino").folder
    names = {path.name for path in portable.iterdir()} - {"model.onnx.data"}
    assert {path.name for path in folder.iterdir()} == names | FILES
    for name in names - {"manifest.json", "model.onnx"}:
        assert (folder / name).read_bytes() == (portable / name).read_bytes(), name


@each_format
def test_graph_is_that_of_the_portable_profile(name, options, exported):
    portable = graph_of(exported(name, **options).folder)
    model = graph_of(exported(name, profile="openvino", **options).folder)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = entry.value.replace("openvino_model.bin", "model.onnx.data")
    assert model == portable


@each_format
def test_weights_are_stored_once_for_both_graphs(name, options, exported):
    folder = exported(name, profile="openvino", **options).folder
    stored = list(find_data(graph_of(folder).graph.initializer))
    end = max(where.offset + where.length for where in stored)
    assert sum(size for offset, size in constants_of(folder) if offset >= end) < 600
    portable = exported(name, **options).folder
    weights = (portable / "model.onnx.data").read_bytes()
    data = (folder / "openvino_model.bin").read_bytes()
    assert data.startswith(weights)
    # By content, since two norms may hold the same values.
    constants = {data[offset : offset + size] for offset, size in constants_of(folder)}
    assert {data[where.offset : where.offset + where.length] for where in stored} <= constants


@needs_complete_onnxruntime
@each_format
def test_verification_runs_the_ir(name, options, exported):
    quality = exported(name, profile="openvino", verify=True, **options).manifest["quality"]
    assert quality["openvino_error"] <= 1e-4


def test_verification_finds_an_ir_that_computes_something_else(
    exported, golden, tmp_path, source_weights
):
    model = golden("llama")
    folder = shutil.copytree(exported("llama", profile="openvino").folder, tmp_path / "bundle")
    text = (folder / "openvino_model.xml").read_text()
    assert 'type="Cos"' in text
    (folder / "openvino_model.xml").write_text(text.replace('type="Cos"', 'type="Sin"'))
    ids = sample_ids(model.spec, (folder / "tokenizer.json").read_bytes())
    with pytest.raises(VerificationError, match="logits in OpenVINO differ"):
        verify(folder, model.spec, source_weights(model), ids, openvino=True)


@each_format
def test_activations_are_not_rounded_for_weights_of_two_bits(name, options, exported):
    """OpenVINO has no such product where a CPU has VNNI, and would fail on its usual settings."""
    folder = exported(name, profile="openvino", **options).folder
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    is_asked = model.has_rt_info(["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    assert is_asked == (options["weights"] in ("int2", "ternary"))
    request = openvino.Core().compile_model(model, "CPU").create_infer_request()
    ids = np.array([[1, 2, 3]])
    feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "position_ids": ids - 1}
    logits = request.infer({**feeds, "beam_idx": np.zeros(1, np.int32)})["logits"]
    assert np.isfinite(logits).all()


def test_files_are_the_same_in_every_process(golden, tmp_path):
    # In this process OpenVINO has numbered nodes of other tests already.
    export(golden("qwen3").folder, tmp_path / "one", OPENVINO)
    code = (
        "import sys; from pathlib import Path; from edgerun_export.pipeline import *\n"
        "export(sys.argv[1], Path(sys.argv[2]), ExportOptions(profile='openvino'))"
    )
    command = [sys.executable, "-c", code, str(golden("qwen3").folder), str(tmp_path / "two")]
    subprocess.run(command, check=True)
    for path in (tmp_path / "one").iterdir():
        data = path.read_bytes()
        assert data == (tmp_path / "two" / path.name).read_bytes(), path.name
        assert str(tmp_path).encode() not in data, path.name


def test_manifest_names_the_version_that_wrote_the_ir(exported):
    assert "openvino" not in exported("qwen2").manifest["exporter"]
    exporter = exported("qwen2", profile="openvino").manifest["exporter"]
    assert exporter["openvino"] == openvino.get_version()


def test_rows_of_a_batch_go_on_from_the_sequence_that_beam_idx_names(exported, golden):
    ids = golden("llama").ids
    folder = exported("llama", weights="fp32", profile="openvino").folder
    compiled = openvino.Core().compile_model(
        folder / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    request = compiled.create_infer_request()

    def run(rows, positions, total, beams):
        feeds = {
            "input_ids": np.array(rows, np.int64),
            "position_ids": np.tile(np.array(positions, np.int64), (2, 1)),
            "attention_mask": np.ones((2, total), np.int64),
            "beam_idx": np.array(beams, np.int32),
        }
        return request.infer(feeds)["logits"][:, -1].copy()

    run([ids[:4], ids[4:8]], range(4), 4, [0, 1])
    # Both rows go on from the first sequence, and get the same token.
    logits = run([ids[4:5], ids[4:5]], [4], 5, [0, 0])
    assert np.array_equal(logits[0], logits[1])
    expected = golden("llama").logits[4]
    assert np.abs(logits[0] - expected).max() <= 1e-4 * np.ptp(expected)


def refuse(golden, tmp_path, kind, match):
    with pytest.raises(kind, match=match):
        export(golden("llama").folder, tmp_path / "out", OPENVINO)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["openvino", "openvino_tokenizers"])
def test_missing_packages_are_named_before_anything_is_written(name, golden, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    refuse(golden, tmp_path, MissingDependencyError, r"pip install 'edgerun\[npu\]'")


def test_versions_too_old_are_refused(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(openvino, "get_version", lambda: "2025.3.0-1-releases/2025/3")
    refuse(golden, tmp_path, MissingDependencyError, "2026.4 or newer, and 2025.3.0")


def test_versions_that_do_not_fit_together_are_refused(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(openvino_tokenizers, "is_openvino_tokenizers_compatible", False)
    refuse(golden, tmp_path, MissingDependencyError, "do not fit together")


def test_graphs_that_openvino_cannot_read_are_refused(golden, tmp_path, monkeypatch):
    class Core:
        def read_model(self, path):
            raise RuntimeError("Exception from frontend:\nNo conversion rule found")

    monkeypatch.setattr(openvino, "Core", Core)
    refuse(golden, tmp_path, UnsupportedError, r"cannot read this model \(No conversion rule found")


def test_texts_that_are_cut_differently_are_told(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "edgerun_export.openvino_ir.check.tokenizer_differences", lambda folder, data: ["a b"]
    )
    (warning,) = export(golden("llama").folder, tmp_path / "out", OPENVINO).warnings
    assert "cuts 1 of the sample texts differently" in warning
    assert "'a b'" in warning


# Enough for the weights but not for the IR; enough for small files but not for the tokenizer.
@pytest.mark.parametrize(("step", "limit"), [("weights", 150_000), ("files", 10_000)])
def test_full_disk_is_a_storage_error_and_leaves_nothing(step, limit, golden, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill_up(reached, fraction):
        if reached == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    try:
        with pytest.raises(StorageError, match="no space left"):
            export(golden("llama").folder, tmp_path / "out", OPENVINO, fill_up)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
    # OpenVINO deletes what it could not write, and our constants are written to nowhere.
    assert Path(os.devnull).is_char_device()
