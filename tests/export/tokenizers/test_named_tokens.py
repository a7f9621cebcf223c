"""Tokens that tokenizer.json leaves out and other files name, as transformers 5.24 adds them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgerun.errors import CheckpointError
from edgerun_export.tokenizers import from_hugging_face

tokenizers = pytest.importorskip("tokenizers")
LETTERS = ["h", "i", "[", "X", "]", "\u0120"]
PLAIN = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
SPECIAL = {"content": "[X]", "special": True, **PLAIN}
OTHER = {"content": "[Y]", "special": False, **PLAIN}


def tokenizer_json(kind: str = "BPE", **keys: Any) -> bytes:
    ids = {letter: index for index, letter in enumerate(LETTERS)}
    model = {"type": "BPE", "vocab": ids, "merges": []}
    if kind == "Unigram":
        model = {"type": kind, "unk_id": 0, "vocab": [[each, -1.0] for each in LETTERS]}
    return json.dumps({"version": "1.0", "model": model, **keys}).encode()


def converted(files: dict[str, Any], data: bytes = tokenizer_json()) -> dict[str, bytes]:
    """Converts a folder of these files, by what they are called without their ending."""
    folder = {f"{name}.json": json.dumps(value).encode() for name, value in files.items()}
    return from_hugging_face({"tokenizer.json": data, **folder}.get)


def ids_of(files: dict[str, bytes], text: str = "hi[X]") -> list[int]:
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    ids: list[int] = tokenizer.encode(text).ids
    return ids


CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "listed": ({"tokenizer_config": {"added_tokens_decoder": {"6": SPECIAL}}}, [0, 1, 6]),
    "by id": (
        {"tokenizer_config": {"added_tokens_decoder": {"7": SPECIAL, "6": OTHER}}},
        [0, 1, 7],
    ),
    "added_tokens.json": ({"added_tokens": {"[X]": 7, "[Y]": 6}}, [0, 1, 7]),
    "a text with a role": ({"tokenizer_config": {"eos_token": "[X]"}}, [0, 1, 6]),
    "an object with a role": ({"tokenizer_config": {"pad_token": SPECIAL}}, [0, 1, 6]),
    "a role of its own": ({"tokenizer_config": {"image_token": "[X]"}}, [0, 1, 6]),
    "more": ({"tokenizer_config": {"additional_special_tokens": ["[X]"]}}, [0, 1, 6]),
    "named": ({"tokenizer_config": {"extra_special_tokens": {"a": "[X]"}}}, [0, 1, 6]),
    "special_tokens_map.json": ({"special_tokens_map": {"eos_token": {**SPECIAL}}}, [0, 1, 6]),
    "after those listed": (
        {"tokenizer_config": {"eos_token": "[X]", "added_tokens_decoder": {"6": OTHER}}},
        [0, 1, 7],
    ),
    "not where tokens are listed": (
        {
            "tokenizer_config": {"added_tokens_decoder": {"6": OTHER}},
            "special_tokens_map": {"eos_token": "[X]"},
            "added_tokens": {"[X]": 7},
        },
        [0, 1, 2, 3, 4],
    ),
    "another id than the next": (
        {"tokenizer_config": {"added_tokens_decoder": {"10": SPECIAL}}},
        [0, 1, 2, 3, 4],
    ),
    "no row": (
        {"tokenizer_config": {"eos_token": "[X]"}, "config": {"vocab_size": 6}},
        [0, 1, 2, 3, 4],
    ),
    "a row of the text model": (
        {"tokenizer_config": {"eos_token": "[X]"}, "config": {"text_config": {"vocab_size": 7}}},
        [0, 1, 6],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_tokens_have_the_ids_that_transformers_gives_them(case: str, kind: str) -> None:
    files, expected = CASES[case]
    assert ids_of(converted(files, tokenizer_json(kind))) == expected


def test_a_token_of_the_vocabulary_is_added_with_its_id() -> None:
    files = converted({"tokenizer_config": {"eos_token": "X"}})
    (added,) = json.loads(files["tokenizer.json"])["added_tokens"]
    assert added == {"id": 3, "content": "X", "special": True, **PLAIN}


def test_a_token_with_a_role_is_special_whatever_is_listed() -> None:
    listed = {"6": {**SPECIAL, "special": False, "lstrip": True}}
    files = converted({"tokenizer_config": {"eos_token": "[X]", "added_tokens_decoder": listed}})
    (added,) = json.loads(files["tokenizer.json"])["added_tokens"]
    assert added["special"] is True and added["lstrip"] is True


def test_nothing_changes_where_nothing_is_missing() -> None:
    listed = tokenizer_json(added_tokens=[{"id": 6, **SPECIAL}])
    settings = {"eos_token": "[X]", "added_tokens_decoder": {"6": SPECIAL}}
    assert converted({"tokenizer_config": settings}, listed)["tokenizer.json"] == listed


def test_roles_of_the_map_are_those_of_the_configuration() -> None:
    roles = {"special_tokens_map": {"eos_token": "i"}}
    files = converted({"tokenizer_config": {"eos_token": "h"}, **roles})
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "i"


@pytest.mark.parametrize("listed", [{"six": SPECIAL}, {"6": {}}, {"6": "[X]"}])
def test_refuses_tokens_that_are_not_described(listed: Any) -> None:
    with pytest.raises(CheckpointError, match="added tokens in tokenizer_config.json or added_to"):
        converted({"tokenizer_config": {"added_tokens_decoder": listed}})
