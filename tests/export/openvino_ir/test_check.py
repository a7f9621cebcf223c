"""Tokenizers of OpenVINO against the tokenizers library, which runs in the sandbox."""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import BundleError
from tests.support import fakes

pytest.importorskip("openvino_tokenizers")

from edgerun_export.openvino_ir import check  # noqa: E402
from edgerun_export.openvino_ir.tokenizer import write_tokenizer  # noqa: E402
from edgerun_export.pipeline import ExportOptions, export  # noqa: E402

pytestmark = pytest.mark.peers

TOO_MUCH = r"it needs more time or memory \(.* MB\) than is allowed"
TEXTS = [*check._TEXTS, " and ".join([*fakes.SPECIALS, "<think>"])]


def replacing(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def sequence(key: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: parts}


GROWING = sequence("normalizers", *[replacing("e", "ee")] * 20)
LEVEL = json.loads(fakes.byte_tokenizer_json())["decoder"]
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
# A text that ends with a full stop is parted in every way there is.
TRYING = {**SPLIT, "pattern": {"Regex": r"(.+)+(?<!\.)$"}}


def tokenizer_json(**parts: Any) -> str:
    return json.dumps({**json.loads(fakes.byte_tokenizer_json()), **parts})


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes OpenVINO's graphs of a tokenizer."""

    def write(text: str) -> Path:
        folder = tmp_path / str(sum(1 for _ in tmp_path.iterdir()))
        folder.mkdir()
        write_tokenizer(folder, json.loads(text), 0)
        return folder

    return write


def test_graphs_of_the_same_tokenizer_do_not_differ(written):
    text = tokenizer_json()
    assert check.tokenizer_differences(written(text), text) == []


def test_texts_whose_ids_differ_are_returned(written):
    other = tokenizer_json(normalizer=replacing("sea", "see"))
    assert check.tokenizer_differences(written(tokenizer_json()), other) == TEXTS[:1]


def test_texts_that_ids_give_back_differently_are_returned(written):
    other = tokenizer_json(decoder=sequence("decoders", LEVEL, replacing("sea", "see")))
    assert check.tokenizer_differences(written(tokenizer_json()), other) == TEXTS[:1]


def test_what_the_file_puts_around_a_text_counts(written):
    text = {"Sequence": {"id": "A", "type_id": 0}}
    end = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|im_end|>": {"id": "<|im_end|>", "ids": [fakes.END], "tokens": ["<|im_end|>"]}
        },
    }
    other = tokenizer_json(post_processor=template)
    assert check.tokenizer_differences(written(other), other) == []
    assert check.tokenizer_differences(written(tokenizer_json()), other) == TEXTS


def test_a_file_that_multiplies_text_is_refused(golden, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(golden("llama").folder, source)
    content = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text(json.dumps({**content, "normalizer": GROWING}))
    with pytest.raises(BundleError, match=r"makes up to \d+ bytes of one; at most \d+ make sense"):
        export(source, tmp_path / "out", ExportOptions(profile="openvino"))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"normalizer": GROWING}, TOO_MUCH),
        (
            {"pre_tokenizer": sequence("pretokenizers", TRYING, LEVEL)},
            ".*retry-limit",
        ),
    ],
    ids=["memory", "panic"],
)
def test_what_the_library_does_with_a_bomb_it_does_elsewhere(
    parts, reason, written, monkeypatch, capfd
):
    monkeypatch.setattr(check, "check_tokenizer_json", lambda text: None)
    folder = written(tokenizer_json())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match=f"tokenizer.json fails on this text: {reason}"):
        check.tokenizer_differences(folder, tokenizer_json(**parts))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert capfd.readouterr() == ("", "")
