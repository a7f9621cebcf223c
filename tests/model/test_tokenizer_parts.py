"""Tokenizers that would make the library panic are refused before it says so on the terminal."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import BundleError
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.model.text.tokenizer_parts import check_parts

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
WORDS = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "b", "max_input_chars_per_word": 9}
RULES = base64.b64encode(b"\x00\x01\x00\x00").decode()

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no rules": ({"normalizer": {"type": "Precompiled"}}, "rules are damaged"),
    "short rules": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": RULES}},
        "rules are damaged",
    ),
    "replaced nothing": (
        {"normalizer": {**REPLACE, "pattern": {"String": ""}}},
        "replaces an empty text",
    ),
    "pieces of nothing": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "pieces of 0"),
    "token without id": ({"post_processor": TEMPLATE}, "'<s>' around a text"),
    "token without id, nested": (
        {"post_processor": {"type": "Sequence", "processors": [TEMPLATE]}},
        "'<s>' around a text",
    ),
    "replaced gap": (
        {"normalizer": {**REPLACE, "pattern": {"Regex": "(?=a)"}}},
        "replaces an empty text",
    ),
    "no unknown word": ({"model": WORDS}, "names 'b' for unknown words"),
    "other type": ({"decoder": {"type": "fuse"}}, "decoder of type 'fuse'"),
    "no text as type": ({"decoder": {"type": [["Fuse"]]}}, "decoder of type "),
    "no text as token": (
        {"post_processor": {**TEMPLATE, "single": [{"SpecialToken": {"id": []}}]}},
        "cannot be read",
    ),
    "no type": ({"normalizer": {"pattern": {"String": "a"}, "content": ""}}, "of type None"),
    # The library takes it for the sequence that it looks like.
    "hidden sequence": (
        {"normalizer": {"type": "SEQUENCE", "normalizers": [REPLACE] * 6}},
        "normalizer of type 'SEQUENCE'",
    ),
    "sequence of nothing": ({"normalizer": {"type": "Sequence"}}, "without 'normalizers'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_library_would_panic_at_is_refused(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    parts, message = BROKEN[name]
    with pytest.raises(BundleError, match=message):
        Tokenizer.from_json(json.dumps({"model": BPE, **parts}))
    assert capfd.readouterr().err == ""


def test_all_golden_tokenizers_pass(repo_root: Path) -> None:
    for path in (repo_root / "tests" / "golden").glob("*/tokenizer.json"):
        check_parts(path.read_text())
    check_parts((repo_root / "models/default/bundle/tokenizer.json").read_text())


def test_real_tokenizers_pass(shared_data: Path) -> None:
    found = sorted(shared_data.rglob("tokenizer.json"))
    for path in found:
        check_parts(path.read_text())
    assert found
