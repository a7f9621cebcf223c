"""Random damage to sentencepiece models and GGUF vocabularies: only our own errors come out."""

from __future__ import annotations

import random
import struct

import numpy as np

from edgerun.errors import EdgerunError
from edgerun_export.tokenizers import from_gguf, from_hugging_face

CASES = 240


def field(number: int, wire: int, payload: bytes) -> bytes:
    size = bytes([len(payload)]) if wire == 2 else b""
    return bytes([number << 3 | wire]) + size + payload


def model_bytes() -> bytes:
    """A valid sentencepiece model of three special pieces and some letters, written by hand."""
    pieces = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3), *((b"%c" % c, 1) for c in range(97, 123))]
    out = b""
    for index, (text, kind) in enumerate(pieces):
        score = struct.pack("<f", -index)
        out += field(1, 2, field(1, 2, text) + field(2, 5, score) + field(3, 0, bytes([kind])))
    trainer = field(3, 0, b"\x02")
    normalizer = field(4, 0, b"\x00")
    return out + field(2, 2, trainer) + field(3, 2, normalizer)


def test_sentencepiece_models() -> None:
    data = model_bytes()
    assert b'"z"' in from_hugging_face({"tokenizer.model": data}.get)["tokenizer.json"]
    draw = random.Random(0)
    refused = 0
    for _ in range(CASES):
        broken = bytearray(data[: draw.randrange(len(data))] if draw.random() < 0.3 else data)
        for _ in range(draw.randrange(1, 4)):
            if broken:
                broken[draw.randrange(len(broken))] = draw.randrange(256)
        try:
            from_hugging_face({"tokenizer.model": bytes(broken)}.get)
        except EdgerunError:
            refused += 1
    assert refused > CASES // 4


def test_gguf_metadata() -> None:
    tokens = ["<unk>", "<s>", "a", "b", "ab"]
    valid = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "merges": ["a b"],
        "scores": np.arange(5, dtype=np.float32),
        "token_type": np.array([2, 3, 1, 1, 1], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 1,
        "unknown_token_id": 0,
        "add_bos_token": True,
        "add_space_prefix": False,
    }
    odd = [None, -1, 2**64 - 1, 1.5, float("nan"), "", "gpt2", [], ["", ""], True, b"x"]
    odd += [np.array([np.nan] * 5, np.float32), np.array([], np.int8), np.array([True] * 5)]
    assert from_gguf({f"tokenizer.ggml.{key}": value for key, value in valid.items()})
    draw = random.Random(0)
    refused = 0
    for _ in range(CASES):
        broken = valid | {draw.choice(list(valid)): draw.choice(odd) for _ in range(2)}
        if draw.random() < 0.5:
            broken["model"] = "gpt2"
        try:
            from_gguf({f"tokenizer.ggml.{k}": v for k, v in broken.items() if v is not None})
        except EdgerunError:
            refused += 1
    assert refused > CASES // 4
