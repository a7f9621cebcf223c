"""Seeded mutations and truncations of valid files: nothing but our own errors may come out."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import EdgerunError
from edgerun_export.checkpoint import open_checkpoint

CASES = 240
Make = Callable[..., Path]
Tensors = dict[str, np.ndarray]


def consume(path: Path) -> None:
    """Use everything a checkpoint offers."""
    with open_checkpoint(str(path)) as checkpoint:
        for name in checkpoint.tensors():
            checkpoint.read(name)
            checkpoint.read(name, slice(0, 1))
            checkpoint.ternary(name)
        checkpoint.tokenizer_files()


def check(target: Path, broken: Path, variants: list[bytes]) -> None:
    """Every variant either opens or raises an EdgerunError; most must raise."""
    original = broken.read_bytes()
    consume(target)
    refused = 0
    tracemalloc.start()
    for data in variants:
        broken.write_bytes(data)
        try:
            consume(target)
        except EdgerunError as error:
            refused += 1
            assert 10 < len(str(error)) < 2000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    broken.write_bytes(original)
    assert len(variants) == CASES
    assert refused > CASES // 4
    assert peak < len(original) + 64e6


@pytest.mark.filterwarnings("error")
def test_gguf(make_gguf: Make, tensors: Tensors, mutate: Callable[..., object]) -> None:
    path = make_gguf(tensors)
    check(path, path, list(mutate(path.read_bytes(), CASES, 1, 4000)))  # type: ignore[call-overload]


@pytest.mark.parametrize("version", [0, 1])
def test_llama2c(
    make_llama2c: Make, tensors: Tensors, mutate: Callable[..., object], version: int
) -> None:
    path = make_llama2c(tensors, version)
    check(path, path, list(mutate(path.read_bytes(), CASES, 2, 60)))  # type: ignore[call-overload]


def test_llama2c_tokenizer(
    make_llama2c: Make, tensors: Tensors, mutate: Callable[..., object]
) -> None:
    path = make_llama2c(tensors, 1)
    broken = path.parent / "tokenizer.bin"
    check(path, broken, list(mutate(broken.read_bytes(), CASES, 3, 4000)))  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_hugging_face(hf_folder: Path, mutate: Callable[..., object], name: str) -> None:
    broken = hf_folder / name
    variants = list(mutate(broken.read_bytes(), CASES, 4, 2500))  # type: ignore[call-overload]
    check(hf_folder, broken, variants)
