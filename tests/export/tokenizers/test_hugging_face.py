"""Tokenizers of Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgerun.errors import CheckpointError
from edgerun_export.bundle_files import parse_object
from edgerun_export.checkpoint.files import optional_reader
from edgerun_export.embedded_tokens import vocabulary_size
from edgerun_export.tokenizers import from_hugging_face

TOKENIZER = b'{ "model":{"type": "BPE"},  "odd spacing": 1}\n'
CONFIG = b'{"eos_token": "<e>",   "chat_template": "old"}'


def convert(**files: bytes) -> dict[str, bytes]:
    """Convert files given as keywords, with ``__`` for the dot."""
    return from_hugging_face({k.replace("__", "."): v for k, v in files.items()}.get)


def test_passes_files_on_byte_for_byte() -> None:
    files = convert(
        tokenizer__json=TOKENIZER,
        tokenizer_config__json=CONFIG,
        special_tokens_map__json=b'{"eos_token":  "<e>"}',
        generation_config__json=b'{"eos_token_id":  2}',
        unrelated__json=b"{}",
    )
    assert files == {
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": CONFIG,
        "special_tokens_map.json": b'{"eos_token":  "<e>"}',
        "generation_config.json": b'{"eos_token_id":  2}',
    }


def test_puts_a_template_file_into_the_configuration() -> None:
    template = "{% for m in messages %}{{ m.content }} é\n{% endfor %}"
    files = convert(
        tokenizer__json=TOKENIZER,
        tokenizer_config__json=CONFIG,
        chat_template__jinja=template.encode(),
    )
    assert json.loads(files["tokenizer_config.json"]) == {
        "eos_token": "<e>",
        "chat_template": template,
    }
    alone = convert(tokenizer__json=TOKENIZER, chat_template__jinja=template.encode())
    assert json.loads(alone["tokenizer_config.json"]) == {"chat_template": template}


def template_of(**files: bytes) -> str | None:
    converted = convert(tokenizer__json=TOKENIZER, **files)
    template = json.loads(converted.get("tokenizer_config.json", b"{}")).get("chat_template")
    assert isinstance(template, str | None)
    return template


def test_takes_the_template_of_a_processor_where_there_is_no_other() -> None:
    """``chat_template.json`` comes before ``processor_config.json``, as newer before older."""
    processor = b'{"processor_class": "SmolVLMProcessor", "chat_template": "processor"}'
    both = {
        "chat_template__json": b'{"chat_template": "json"}',
        "processor_config__json": processor,
    }
    assert template_of(**both) == "json"
    assert template_of(processor_config__json=processor) == "processor"
    assert template_of(**both, tokenizer_config__json=b'{"eos_token": "<e>"}') == "json"
    assert template_of(**both, tokenizer_config__json=CONFIG) == "old"
    assert template_of(**both, chat_template__jinja=b"jinja") == "jinja"
    assert template_of(chat_template__json=b'{"chat_template": 3}') is None
    with pytest.raises(CheckpointError, match=r"'chat_template.json' is not the JSON expected"):
        template_of(chat_template__json=b"[]")


def test_says_what_to_take_for_a_tokenizer_that_is_tekken_alone() -> None:
    words = r"as tekken.json alone, .*; put tokenizer.json and tokenizer_config.json beside it"
    with pytest.raises(CheckpointError, match=words):
        convert(tekken__json=b"{}", tokenizer_config__json=CONFIG)
    assert convert(tekken__json=b"{}", tokenizer__json=TOKENIZER) == {"tokenizer.json": TOKENIZER}
    with pytest.raises(CheckpointError) as caught:
        convert(tekken__json=b"{}", tokenizer__model=b"no sentencepiece")
    assert "tekken" not in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_names_the_file_that_is_nested_too_deep(name: str) -> None:
    deep = b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}"
    with pytest.raises(CheckpointError, match=f"'{name}' is nested more than 100 levels deep"):
        from_hugging_face({"tokenizer.json": TOKENIZER, name: deep}.get)
    with pytest.raises(CheckpointError, match=f"'{name}' is nested more than 100 levels deep"):
        parse_object(name, deep)
    assert parse_object(name, b'{"a": ' + b"[" * 90 + b"]" * 90 + b"}")


@pytest.mark.parametrize("bad", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"],
)
def test_names_the_file_that_is_not_json(name: str, bad: bytes) -> None:
    files = {"tokenizer.json": TOKENIZER, "tokenizer_config.json": CONFIG} | {name: bad}
    if name == "added_tokens.json":
        files = {"tokenizer.model": b"x", name: bad}
    with pytest.raises(CheckpointError, match=f"'{name}' is not the JSON expected"):
        from_hugging_face(files.get)


def test_refuses_a_folder_without_tokenizer() -> None:
    with pytest.raises(CheckpointError, match="neither tokenizer.json nor tokenizer.model"):
        convert(tokenizer_config__json=CONFIG)
    with pytest.raises(CheckpointError, match="has no 'model'"):
        convert(tokenizer__json=b"{}")


def test_passes_a_real_one_on(shared_data: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = shared_data / "tokenizers" / "minimind" / "model"
    files = from_hugging_face(optional_reader(folder, 1 << 27))
    assert files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    assert "im_start" in json.loads(files["tokenizer_config.json"])["chat_template"]
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.encode("<|im_end|>").ids == [2]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("1e999", r"gives a token the id inf; expected a whole number from 0 to 2147483647$"),
        ("-1", r"gives a token the id -1; expected"),
        ("2.5", r"gives a token the id 2\.5; expected"),
        ("true", r"gives a token the id True; expected"),
        ('"7"', r"gives a token the id '7'; expected"),
        ("2147483648", r"gives a token the id 2147483648; expected"),
        pytest.param("9" * 5000, "^tokenizer.json has a number of too many digits$", id="digits"),
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_ids_are_whole_numbers_from_0(number: str, reason: str, added: bool) -> None:
    text = '{"model": {"vocab": {"zz": FIRST}}, "added_tokens": [{"id": SECOND}]}'
    text = text.replace("SECOND" if added else "FIRST", number)
    text = text.replace("FIRST", "3").replace("SECOND", "3")
    with pytest.raises(CheckpointError, match=reason):
        vocabulary_size(parse_object("tokenizer.json", text.encode()))
    counted = parse_object("tokenizer.json", text.replace(number, "2147483647").encode())
    assert vocabulary_size(counted) == 1 << 31
