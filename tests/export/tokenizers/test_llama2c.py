"""llama2.c's tokenizer files."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import CheckpointError
from edgerun_export.tokenizers import from_llama2c

tokenizers = pytest.importorskip("tokenizers")
SPACE = "\u2581"


def write(pieces: list[str]) -> bytes:
    """A tokenizer.bin of 259 fixed pieces and these, scored in order."""
    texts = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    out = struct.pack("<i", max(len(text.encode()) for text in texts))
    for index, text in enumerate(texts):
        raw = text.replace(SPACE, " ").encode()
        out += struct.pack("<fi", -float(max(0, index - 259)), len(raw)) + raw
    return out


def load(data: bytes, size: int) -> Any:
    return tokenizers.Tokenizer.from_str(from_llama2c(data, size)["tokenizer.json"].decode())


@pytest.mark.parametrize("name", ["golden_bos", "golden_once"])
def test_the_real_tokenizer_agrees_with_the_golden_run(shared_data: Path, name: str) -> None:
    folder = shared_data / "models" / "stories260K"
    golden = json.loads((folder / f"{name}.json").read_text())
    tokenizer = load((folder / "tok512.bin").read_bytes(), 512)
    prompt = {"golden_bos": "", "golden_once": "Once upon a time"}[name]
    assert tokenizer.encode(prompt).ids == golden["prompt_ids"]
    assert tokenizer.decode(golden["greedy_ids"]) == golden["text"]
    assert tokenizer.encode(golden["text"]).ids == golden["greedy_ids"]
    assert len(golden["greedy_ids"]) > 100


@pytest.mark.parametrize("seed", range(20))
def test_encodes_as_run_c_does(
    seed: int, reference: Callable[..., list[str]], make_pieces: Callable[..., list[str]]
) -> None:
    pieces = make_pieces(seed)
    tokenizer = load(write(pieces), 259 + len(pieces))
    draw = random.Random(seed)
    scores = [-float(index) for index in range(len(pieces))]
    for _ in range(50):
        text = "".join(draw.choices("ab ", k=draw.randrange(0, 30)))
        assert tokenizer.encode(text).tokens == ["<s>", *reference(text, pieces, scores)]


def test_bytes_are_their_value_plus_three() -> None:
    tokenizer = load(write([SPACE]), 260)
    assert tokenizer.encode("é").ids == [1, 259, 0xC3 + 3, 0xA9 + 3]
    assert tokenizer.decode([1, 259, 0xC3 + 3, 0xA9 + 3]) == "é"


def test_refuses_a_tokenizer_of_another_model() -> None:
    with pytest.raises(CheckpointError, match="260 pieces and the model 512"):
        from_llama2c(write([SPACE]), 512)


@pytest.mark.parametrize("cut", [1, 5, 8, 9])
def test_refuses_a_truncated_file(cut: int) -> None:
    data = write([SPACE, "abcdefg"])
    with pytest.raises(CheckpointError, match="truncated"):
        from_llama2c(data[:-cut], 261)


@pytest.mark.parametrize("length", [-1, 2**31 - 1])
def test_refuses_a_length_outside_the_file(length: int) -> None:
    data = struct.pack("<ifi", 7, 0.0, length) + b"abc"
    with pytest.raises(CheckpointError, match=f"has length {length}, and 3 bytes are left"):
        from_llama2c(data, 1)
