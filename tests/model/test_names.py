"""No name in a model's folder leads out of it, to anything but a plain file, or to a huge one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgerun.errors import BundleError, UnsupportedError
from edgerun.model import bundle_files
from edgerun.model.bundle import open_bundle
from tests.model.tensor_fields import FIELDS, Field, initializers
from tests.support.bundles import bundle_of
from tests.support.oddities import ODDITIES, make_oddity

BAD_NAMES = ("../secret", "/etc/passwd", "sub/secret", "..", ".", "", "a\\secret", "secret\0")
TEXTS = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")
HUGE = 1 << 40


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle, with secrets where names might lead."""
    folder = tmp_path / "bundle"
    shutil.copytree(bundle_of("llama", weights="int4"), folder)
    (folder / "sub").mkdir()
    for secret in (tmp_path / "secret", folder / "sub" / "secret"):
        shutil.copy(folder / "model.onnx.data", secret)
    return folder


@pytest.fixture
def foreign(bundle: Path) -> Path:
    """The same as another exporter would leave it: without a manifest."""
    (bundle / "manifest.json").unlink()
    return bundle


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object], name: str) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def accept(folder: Path, name: str) -> None:
    """Makes the manifest agree with a file that was tampered with, as an attacker would."""
    path = folder / name
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.stat().st_size < HUGE else "0"
    entry = {"sha256": digest, "size": path.stat().st_size}
    rewrite(folder, lambda content: content["files"].update({name: entry}), "manifest.json")


def change_model(folder: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if (folder / "manifest.json").exists():
        accept(folder, "model.onnx")


def test_the_unaltered_folders_open(bundle: Path) -> None:
    assert open_bundle(bundle, verify=True).graph.nodes
    (bundle / "manifest.json").unlink()
    opened = open_bundle(bundle)
    assert opened.read_text("tokenizer.json")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_tensor_names_only_files_of_the_folder(bundle: Path, field: Field, name: str) -> None:
    change_model(bundle, lambda model: field(model, name))
    with pytest.raises(BundleError, match="only a file in the model's own folder"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_tensor_names_only_files_of_a_foreign_folder(foreign: Path, name: str) -> None:
    change_model(foreign, lambda model: initializers(model, name))
    with pytest.raises(BundleError, match="only a file in the model's own folder"):
        open_bundle(foreign)


@pytest.mark.parametrize("field", FIELDS)
def test_a_tensor_names_only_files_that_the_manifest_lists(bundle: Path, field: Field) -> None:
    """Otherwise altered weights would pass every check of digests."""
    shutil.copy(bundle / "model.onnx.data", bundle / "altered.data")
    change_model(bundle, lambda model: field(model, "altered.data"))
    with pytest.raises(BundleError, match="altered.data', which the manifest does not list"):
        open_bundle(bundle, verify=True)


@pytest.mark.parametrize("name", [*BAD_NAMES, "manifest.json"])
def test_the_manifest_lists_only_files_of_the_folder(bundle: Path, name: str) -> None:
    entry = {"sha256": "0" * 64, "size": 1}
    rewrite(bundle, lambda content: content["files"].update({name: entry}), "manifest.json")
    with pytest.raises(BundleError, match="no plain file name"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("context_length", 0, "says context_length 0; expected 1 to"),
        ("context_length", 1 << 40, "says context_length 1099511627776; expected 1 to"),
        ("eos_token_id", [1, 1 << 40], "outside the vocabulary"),
        ("vocab_size", "many", "is damaged"),
        ("type", "\xff", "is damaged"),
        ("embedding", "nested", "is damaged"),
    ],
)
def test_a_foreign_configuration_is_checked(
    foreign: Path, name: str, value: object, says: str
) -> None:
    rewrite(foreign, lambda content: content["model"].update({name: value}), "genai_config.json")
    path = foreign / "genai_config.json"
    text = path.read_text().replace("\\u00ff", "\xff").replace('"nested"', "[" * 100_000)
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BundleError, match=rf"genai_config\.json.*{says}"):
        open_bundle(foreign)


def test_a_foreign_model_is_a_single_graph(foreign: Path) -> None:
    rewrite(foreign, lambda content: content["model"].update(embedding={}), "genai_config.json")
    with pytest.raises(UnsupportedError, match="holds several graphs .*: only single decoders"):
        open_bundle(foreign)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_foreign_configuration_names_a_file_of_the_folder(foreign: Path, name: str) -> None:
    def point(content: dict[str, Any]) -> None:
        content["model"]["decoder"]["filename"] = name

    rewrite(foreign, point, "genai_config.json")
    with pytest.raises(BundleError, match="only a file in the same folder"):
        open_bundle(foreign)


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "model.onnx.data", *TEXTS])
@pytest.mark.parametrize(("kind", "says"), ODDITIES.items())
def test_every_file_of_a_bundle_is_a_plain_one(
    bundle: Path, name: str, kind: str, says: str
) -> None:
    make_oddity(bundle / name, kind)
    with pytest.raises(BundleError, match=f"{name} is not a plain file: it is {says}"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["genai_config.json", "model.onnx", *TEXTS])
@pytest.mark.parametrize(("kind", "says"), ODDITIES.items())
def test_every_file_of_a_foreign_folder_is_a_plain_one(
    foreign: Path, name: str, kind: str, says: str
) -> None:
    make_oddity(foreign / name, kind)
    with pytest.raises(BundleError, match=f"{name} is not a plain file: it is {says}"):
        open_bundle(foreign)


@pytest.mark.parametrize(("kind", "says"), ODDITIES.items())
def test_the_data_of_a_foreign_model_is_a_plain_file(foreign: Path, kind: str, says: str) -> None:
    make_oddity(foreign / "model.onnx.data", kind)
    with pytest.raises(BundleError, match=f"must be a plain file: it is {says}"):
        open_bundle(foreign)


def test_the_data_of_a_foreign_model_is_there(foreign: Path) -> None:
    (foreign / "model.onnx.data").write_bytes(b"")
    with pytest.raises(BundleError, match=r"of model\.onnx\.data, which has 0: the file is trunca"):
        open_bundle(foreign)
    (foreign / "model.onnx.data").unlink()
    with pytest.raises(BundleError, match="cannot open .*, the data of tensor '.*': No such file"):
        open_bundle(foreign)


@pytest.mark.parametrize("name", ["genai_config.json", "model.onnx", "tokenizer.json"])
def test_nothing_vouches_for_a_foreign_file_with_several_names(foreign: Path, name: str) -> None:
    os.link(foreign / name, foreign.parent / "other")
    with pytest.raises(BundleError, match=f"{name} has 2 names"):
        open_bundle(foreign)


def test_nothing_vouches_for_foreign_data_with_several_names(foreign: Path) -> None:
    os.link(foreign / "model.onnx.data", foreign.parent / "other")
    with pytest.raises(BundleError, match="single name: it has 2"):
        open_bundle(foreign)


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", *TEXTS])
@pytest.mark.parametrize("verify", [False, True])
def test_a_huge_file_is_neither_read_nor_hashed(
    bundle: Path, name: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(bundle / name, HUGE)
    if name != "manifest.json":
        accept(bundle, name)
    start = time.perf_counter()
    with pytest.raises(BundleError, match=f"{name} is too large: it has {HUGE} bytes; at most"):
        open_bundle(bundle, verify=verify)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("name", "limit"),
    [("config.json", 16 << 20), ("x.jinja", 1 << 20), ("tokenizer.json", 64 << 20)],
)
def test_every_kind_of_text_has_a_bound_of_its_own(bundle: Path, name: str, limit: int) -> None:
    for nbytes, says in ((limit, "does not match the digest"), (limit + 1, "is too large")):
        with (bundle / name).open("wb") as file:
            file.truncate(nbytes)
        files = {name: {"sha256": "0" * 64, "size": nbytes}}
        rewrite(bundle, lambda content, own=files: content["files"].update(own), "manifest.json")
        with pytest.raises(BundleError, match=f"{name} {says}"):
            open_bundle(bundle).read_text(name)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_file_that_is_longer_than_listed_is_refused(bundle: Path, name: str) -> None:
    size = (bundle / name).stat().st_size
    with (bundle / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(BundleError, match=f"has {size + 1} bytes and the manifest says {size}"):
        open_bundle(bundle)


def test_a_manifest_may_have_several_names(bundle: Path, tmp_path: Path) -> None:
    """Installers link files so; it vouches for itself."""
    os.link(bundle / "manifest.json", tmp_path / "another name")
    assert open_bundle(bundle).graph.nodes


def test_a_text_of_no_known_kind_has_a_bound(bundle: Path) -> None:
    for nbytes in (bundle_files.MAX_TEXT_BYTES, bundle_files.MAX_TEXT_BYTES + 1):
        with (bundle / "notes").open("wb") as file:
            file.truncate(nbytes)
        accept(bundle, "notes")
        opened = open_bundle(bundle)
        if nbytes == bundle_files.MAX_TEXT_BYTES:
            assert len(opened.read_text("notes")) == nbytes
    with pytest.raises(BundleError, match="notes is too large: it has 16777217 bytes"):
        opened.read_text("notes")


@pytest.mark.parametrize("name", ["genai_config.json", "model.onnx", *TEXTS])
def test_a_huge_foreign_file_is_not_read(foreign: Path, name: str) -> None:
    os.truncate(foreign / name, HUGE)
    with pytest.raises(BundleError, match=f"{name} is too large: it has {HUGE} bytes; at most"):
        open_bundle(foreign)


def test_a_manifest_lists_a_bounded_number_of_files(bundle: Path) -> None:
    entries = {f"file{number}": {"sha256": "", "size": 0} for number in range(300)}
    rewrite(bundle, lambda content: content["files"].update(entries), "manifest.json")
    with pytest.raises(BundleError, match="lists 30[0-9] files; at most 256"):
        open_bundle(bundle)


def test_a_dangling_manifest_does_not_make_a_folder_foreign(bundle: Path) -> None:
    """Else removing what a link leads to would turn all checks of digests off."""
    make_oddity(bundle / "manifest.json", "dangling link")
    with pytest.raises(BundleError, match="manifest.json is not a plain file"):
        open_bundle(bundle)


def test_a_link_says_how_to_copy_what_it_leads_to(bundle: Path) -> None:
    make_oddity(bundle / "tokenizer.json", "link")
    with pytest.raises(BundleError, match="cp -rL"):
        open_bundle(bundle)


def test_a_folder_may_be_reached_by_a_link(bundle: Path) -> None:
    (bundle.parent / "link").symlink_to(bundle)
    assert open_bundle(bundle.parent / "link").graph.nodes


def test_data_exchanged_between_check_and_use_is_not_used(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file even gets the number (inode) of the old one, where the system reuses them."""
    check = bundle_files.BundleFiles.check
    data = bundle / "model.onnx.data"

    def exchange(files: bundle_files.BundleFiles, **options: Any) -> None:
        check(files, **options)
        size = data.stat().st_size
        data.unlink()
        data.write_bytes(b"\xff" * size)

    expected = open_bundle(bundle).graph.constants
    monkeypatch.setattr(bundle_files.BundleFiles, "check", exchange)
    constants = open_bundle(bundle).graph.constants
    name = next(name for name in expected if name.endswith("/weight"))
    assert constants[name].codes.tobytes() == expected[name].codes.tobytes()  # type: ignore[union-attr]


def exchanges(bundle: Path) -> Iterator[None]:
    """Replaces the data by a link, a pipe, another file and the right one, for ever."""
    data, draft = bundle / "model.onnx.data", bundle / "draft"
    right = data.read_bytes()
    wrong = bytes(len(right))
    while True:
        for content in (wrong, right):
            os.symlink(bundle.parent / "secret", draft)
            os.replace(draft, data)
            yield
            draft.write_bytes(content)
            os.replace(draft, data)
            yield
            os.mkfifo(draft)
            os.replace(draft, data)
            yield
            draft.write_bytes(content)
            os.replace(draft, data)
            yield


@pytest.mark.parametrize("opens", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_data_that_is_exchanged_all_the_time(bundle: Path, opens: int) -> None:
    """What opens has the right weights; everything else is a sentence."""
    expected = open_bundle(bundle)
    name = next(name for name in expected.graph.constants if name.endswith("/weight"))
    codes: bytes = expected.graph.constants[name].codes.tobytes()  # type: ignore[union-attr]
    stop = threading.Event()

    def exchange() -> None:
        for _ in exchanges(bundle):
            if stop.is_set():
                return
            time.sleep(0.0005)

    thread = threading.Thread(target=exchange)
    thread.start()
    opened = 0
    try:
        for _ in range(opens):
            try:
                weight = open_bundle(bundle).graph.constants[name]
            except BundleError:
                continue
            assert weight.codes.tobytes() == codes  # type: ignore[union-attr]
            opened += 1
    finally:
        stop.set()
        thread.join()
    assert opened < opens
