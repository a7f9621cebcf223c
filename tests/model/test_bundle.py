"""Opening bundles: what is checked, and what each broken bundle says."""

import gc
import json
import os
import shutil

import numpy as np
import onnx
import pytest

from edgerun.cli.main import main
from edgerun.errors import BundleError, InputError, UnsupportedError
from edgerun.model.bundle import open_bundle
from tests.support.bundles import bundle_of, runner


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle_of("llama", weights="int4"), folder)
    return folder


def rewrite(folder, change):
    """Changes the manifest as someone would who can recompute nothing else."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def accept(folder, name):
    """Makes the manifest agree with a file that was tampered with."""
    import hashlib

    data = (folder / name).read_bytes()
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    rewrite(folder, lambda manifest: manifest["files"].update({name: entry}))


def test_a_good_bundle_opens_and_reads_text(bundle):
    opened = open_bundle(bundle, verify=True)
    assert opened.config.vocab_size > 0
    assert json.loads(opened.read_text("tokenizer.json"))


def test_the_digest_identifies_the_content(bundle):
    digest = open_bundle(bundle).digest
    assert digest == open_bundle(bundle_of("llama", weights="int4")).digest
    assert digest != open_bundle(bundle_of("llama", weights="int8")).digest


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_truncated_file_is_named(bundle, name):
    path = bundle / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match=f"{name} has .* bytes and the manifest says"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_flipped_bit_is_found(bundle, name):
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} does not match the digest"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_a_missing_file_is_named(bundle, name):
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        open_bundle(bundle)


def test_a_folder_without_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(BundleError, match="nor is it a checkpoint"):
        open_bundle(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BundleError, match="there is no model at .*nowhere"):
        open_bundle(tmp_path / "nowhere")


BROKEN = ["", "{", "[]", '{"format": 1}', "\xff", "[" * 100_000]
BROKEN += ['{"format": "\xff"}', '{"exporter": {"by": ' + "[" * 100_000]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_manifest_is_one_sentence(bundle, text):
    (bundle / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(BundleError, match=r"manifest\.json"):
        open_bundle(bundle)


def test_a_bundle_of_methods_that_nobody_here_knows_runs(bundle, capsys):
    """Codes are codes, whatever found them; what the manifest says of that is for readers."""

    def change(manifest):
        manifest["recipe"] |= {"method": "sinkhorn", "tensors": {"*": {"method": "annealed"}}}
        manifest["quality"] |= {"calibration": {"held_out": "not measured"}, "sinkhorn": [1]}

    ids = np.arange(5)
    with runner(bundle, "cpu") as model:
        expected = model.run(ids)
    rewrite(bundle, change)
    assert open_bundle(bundle, verify=True).manifest.recipe["method"] == "sinkhorn"
    with runner(bundle, "cpu") as model:
        np.testing.assert_array_equal(model.run(ids), expected)
    assert main(["inspect", str(bundle)]) == 0
    assert "sinkhorn" in capsys.readouterr().out


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_is_refused(bundle, version):
    rewrite(bundle, lambda manifest: manifest.update(format_version=version))
    with pytest.raises(UnsupportedError, match=f"bundle format {version}"):
        open_bundle(bundle)


@pytest.mark.parametrize("key", ["format", "pack"])
@pytest.mark.parametrize("value", ["", "zip"])
def test_what_a_manifest_says_of_itself_is_checked(bundle, key, value):
    rewrite(bundle, lambda manifest: manifest.update({key: value}))
    with pytest.raises(BundleError, match=rf"manifest\.json says {key} '{value}'"):
        open_bundle(bundle)


def test_a_bundle_has_a_model(bundle):
    rewrite(bundle, lambda manifest: manifest["files"].pop("model.onnx"))
    with pytest.raises(BundleError, match="lists no file in its manifest called 'model.onnx'"):
        open_bundle(bundle)


def test_a_text_is_one(bundle):
    (bundle / "chat_template.jinja").write_bytes(b"\xff")
    accept(bundle, "chat_template.jinja")
    with pytest.raises(BundleError, match="chat_template.jinja is not UTF-8 text"):
        open_bundle(bundle).read_text("chat_template.jinja")


@pytest.mark.parametrize(
    "error", [TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError]
)
def test_whatever_reading_trips_over_means_that_the_file_is_broken(bundle, error, monkeypatch):
    def trip(graph):
        raise error("what nobody thought of")

    monkeypatch.setattr("edgerun.model.bundle.lower", trip)
    with pytest.raises(BundleError, match="is inconsistent: .*what nobody thought of"):
        open_bundle(bundle)


@pytest.mark.parametrize("key", ["num_layers", "vocab_size", "context_length", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 2**40])
def test_impossible_dimensions_are_refused(bundle, key, value):
    rewrite(bundle, lambda manifest: manifest["model"].update({key: value}))
    if (key, value) == ("head_dim", 0):  # states nothing: layers might differ
        assert open_bundle(bundle).graph.nodes
        return
    with pytest.raises(BundleError, match=key):
        open_bundle(bundle)


def test_the_largest_dimension_is_possible(bundle):
    rewrite(bundle, lambda manifest: manifest["model"].update(context_length=2**24))
    assert open_bundle(bundle).config.context_length == 2**24
    rewrite(bundle, lambda manifest: manifest["model"].update(context_length=2**24 + 1))
    with pytest.raises(BundleError, match="says context_length 16777217; expected 1 to 16777216"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "tokens",
    [
        {"eos_token_ids": [10**6]},
        {"eos_token_ids": [1, -1]},
        {"bos_token_id": 264},
        {"pad_token_id": -1},
    ],
)
def test_special_tokens_must_be_in_the_vocabulary(bundle, tokens):
    rewrite(bundle, lambda manifest: manifest["model"].update(vocab_size=264, **tokens))
    with pytest.raises(BundleError, match="outside the vocabulary of 264"):
        open_bundle(bundle)


@pytest.mark.parametrize("large", [False, True])
def test_a_listed_file_with_the_right_digest_may_have_several_names(bundle, large, monkeypatch):
    monkeypatch.setattr("edgerun.model.bundle_files.ALWAYS_HASHED_BYTES", 0 if large else 2**20)
    os.link(bundle / "model.onnx.data", bundle.parent / "cache")  # as installers do
    assert open_bundle(bundle).graph.constants
    data = (bundle / "model.onnx.data").read_bytes()
    (bundle / "model.onnx.data").write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(BundleError, match="does not match the digest"):
        open_bundle(bundle)


def set_range(folder, key, change):
    """Changes a number of the last range in the data file, with a manifest that agrees."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)

    def entry(tensor, key):
        return next(pair for pair in tensor.external_data if pair.key == key)

    external = [tensor for tensor in model.graph.initializer if tensor.external_data]
    last = max(external, key=lambda tensor: int(entry(tensor, "offset").value))
    entry(last, key).value = str(change(int(entry(last, key).value)))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    accept(folder, "model.onnx")


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        ("offset", lambda offset: -1, "reads bytes -1 to"),
        ("offset", lambda offset: 2**62, "reads bytes .* the file is truncated"),
        ("offset", lambda offset: 2**64, "reads bytes .* the file is truncated"),
        ("offset", lambda offset: "0x10", "broken data range"),
        ("length", lambda length: "x", "broken data range"),
        ("length", lambda length: length + 1, r"needs \d+ bytes, its data range has"),
        ("length", lambda length: length - 1, r"needs \d+ bytes, its data range has"),
        ("length", lambda length: 0, "its data range has 0"),
        ("length", lambda length: -length, "its data range has -"),
    ],
)
def test_external_ranges_are_checked(bundle, key, change, says):
    set_range(bundle, key, change)
    with pytest.raises(BundleError, match=says):
        open_bundle(bundle)


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "-1"), ("length", "-1"), ("offset", str(1 << 40))]
)
def test_external_ranges_of_tensors_that_nobody_reads_are_checked(bundle, key, value):
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    attribute = model.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.data_location = onnx.TensorProto.EXTERNAL
    for name, text in {"location": "model.onnx.data", key: value}.items():
        attribute.t.external_data.add(key=name, value=text)
    (bundle / "model.onnx").write_bytes(model.SerializeToString())
    accept(bundle, "model.onnx")
    with pytest.raises(BundleError, match="reads bytes .* the file is truncated"):
        open_bundle(bundle)


def test_external_data_may_end_with_its_file_and_no_byte_later(bundle):
    data = bundle / "model.onnx.data"
    size = data.stat().st_size
    length = 0

    def to_the_end(value):
        nonlocal length
        length = value
        return value

    set_range(bundle, "length", to_the_end)
    set_range(bundle, "offset", lambda offset: size - length)
    assert open_bundle(bundle).graph.constants
    set_range(bundle, "offset", lambda offset: size - length + 1)
    with pytest.raises(BundleError, match=f"to {size + 1} of model.onnx.data, which has {size}"):
        open_bundle(bundle)


def test_random_damage_to_the_graph_never_crashes(bundle):
    """With a manifest that agrees, as an attacker would write it."""
    import random

    original = (bundle / "model.onnx").read_bytes()
    rng = random.Random(0)
    for _ in range(150):
        data = bytearray(original)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        (bundle / "model.onnx").write_bytes(data)
        accept(bundle, "model.onnx")
        try:
            open_bundle(bundle)
        except InputError as error:
            assert "\n" not in str(error).strip()


def test_a_folder_of_another_exporter_opens(shared_data):
    folder = shared_data / "models" / "onnx-tiny-random" / "engine" / "dummy-decoder"
    opened = open_bundle(folder)
    assert opened.config.vocab_size == 32
    assert opened.graph.source == folder / "decoder.onnx"


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_left_as_it_was(is_enabled, bundle):
    """It rests while a graph is read, also while one is refused."""
    (gc.enable if is_enabled else gc.disable)()
    try:
        open_bundle(bundle)
        assert gc.isenabled() == is_enabled
        (bundle / "model.onnx").write_bytes(b"no model")
        accept(bundle, "model.onnx")
        with pytest.raises(BundleError):
            open_bundle(bundle)
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
