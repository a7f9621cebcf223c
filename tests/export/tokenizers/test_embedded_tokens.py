"""Tokens without a row in the embedding: left out where no text has them, else refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgerun
from edgerun.errors import CheckpointError
from edgerun_export.architectures import describe
from edgerun_export.embedded_tokens import with_embeddings
from edgerun_export.pipeline import export
from tests.support.bundles import GOLDEN

PICTURE = "<image_soft_token>"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "gemma3_text", tmp_path / "gemma3"))


def change(folder: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def add_picture(tokenizer: dict[str, Any], id_: int) -> None:
    tokenizer["added_tokens"].append(
        {**tokenizer["added_tokens"][0], "id": id_, "content": PICTURE}
    )


def test_a_token_for_pictures_behind_the_embedding_is_left_out(
    checkpoint: Path, tmp_path: Path
) -> None:
    """As Gemma 3 270M and 1B have it (id 262144 of 262144 rows)."""
    rows = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    plain = export(checkpoint, tmp_path / "plain")
    assert not any("embedding" in warning for warning in plain.warnings)
    change(checkpoint, "tokenizer.json", lambda content: add_picture(content, rows))
    described = {str(rows): {"content": PICTURE, "special": True}}
    change(
        checkpoint,
        "tokenizer_config.json",
        lambda content: content.update(added_tokens_decoder=described),
    )
    result = export(checkpoint, tmp_path / "bundle")
    assert any(PICTURE in warning and "left out" in warning for warning in result.warnings)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert PICTURE not in (tmp_path / "bundle" / name).read_text()
    with edgerun.load(tmp_path / "bundle") as llm, edgerun.load(tmp_path / "plain") as other:
        text = f"a {PICTURE}"
        assert llm.tokenizer.encode(text) == other.tokenizer.encode(text)


def test_a_word_behind_the_embedding_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    rows = json.loads((checkpoint / "config.json").read_text())["vocab_size"]

    def add(content: dict[str, Any]) -> None:
        content["model"]["vocab"]["zzz"] = rows
        add_picture(content, rows + 1)

    change(checkpoint, "tokenizer.json", add)
    with pytest.raises(CheckpointError, match="do not belong together"):
        export(checkpoint, tmp_path / "bundle")


@pytest.mark.parametrize("vocabulary", [[["a", 0.0], []], [["a", 0.0], 1], [["a", 0.0], [[], 0.0]]])
def test_what_is_no_piece_of_a_unigram_model_is_no_token(
    vocabulary: list[Any], checkpoint: Path
) -> None:
    """Nor is an added token without a text; those who read the tokenizer refuse it."""
    added = [{"id": 9}, {"id": 99, "content": "b"}]
    tokenizer = {"added_tokens": added, "model": {"vocab": vocabulary}}
    config = json.loads((checkpoint / "config.json").read_text())
    spec = replace(describe(config), vocab_size=10)
    files, warnings = with_embeddings(spec, {"tokenizer.json": json.dumps(tokenizer).encode()})
    assert json.loads(files["tokenizer.json"])["added_tokens"] == added[:1]
    assert len(warnings) == 1


def test_tokens_that_have_no_id_are_spoken_of(checkpoint: Path, tmp_path: Path) -> None:
    """transformers would give them ids behind the embedding."""
    listed = {"99999": {"content": PICTURE, "special": True}}
    change(
        checkpoint,
        "tokenizer_config.json",
        lambda content: content.update(added_tokens_decoder=listed),
    )
    warnings = export(checkpoint, tmp_path / "bundle").warnings
    assert any(
        f"have no id in the model's vocabulary, and left out: {PICTURE}" in w for w in warnings
    )
