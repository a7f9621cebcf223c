"""Random damage to GGUF vocabularies: only our own errors come out."""

from __future__ import annotations

import random

import numpy as np

from edgerun.errors import EdgerunError
from edgerun_export.tokenizers import from_gguf

CASES = 240


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
