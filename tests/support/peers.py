"""What the other runtimes installed here can do, and how one of them is asked."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.backends.onnxruntime import BOUNDED, COMPLETE, release

try:
    ONNXRUNTIME = version("onnxruntime")
except PackageNotFoundError:
    ONNXRUNTIME = "0"

needs_complete_onnxruntime = pytest.mark.skipif(
    release(ONNXRUNTIME) < COMPLETE,
    reason=f"onnxruntime {ONNXRUNTIME} has no 2-bit weights and errs in some attention",
)
needs_bounds_of_onnxruntime = pytest.mark.skipif(
    release(ONNXRUNTIME) < BOUNDED,
    reason=f"onnxruntime {ONNXRUNTIME} masks scores before it bounds them",
)


def by_onnxruntime(names: list[str]) -> list[Any]:
    """Names of golden models, of which some are skipped where onnxruntime is too early for them."""
    return [pytest.param(name, marks=marks_of(name)) for name in names]


def marks_of(name: str, backend: str = "onnxruntime") -> list[pytest.MarkDecorator]:
    """What a test of a golden model on a back-end is marked with."""
    return [needs_bounds_of_onnxruntime] if (name, backend) == ("gemma2", "onnxruntime") else []


def onnxruntime_genai_tokens(bundle: Path, ids: list[int], count: int = 32) -> list[int]:
    """What onnxruntime-genai says greedily, at most so many tokens."""
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(bundle))
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + count, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array([ids], np.int32))
    tokens: list[int] = []
    while len(tokens) < count and not generator.is_done():
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return tokens
