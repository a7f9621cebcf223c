"""onnxruntime-genai as a peer: the bundle's folder as it is, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai


class GenaiRunner:
    """One sequence in a generator of its own."""

    version = getattr(genai, "__version__", "unknown")

    def __init__(self, model: Any, vocab_size: int, context: int) -> None:
        self._model, self._context = model, context
        self.vocab_size = vocab_size
        self.reset()

    def reset(self) -> None:
        params = genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self._context, do_sample=False)
        self._generator = genai.Generator(self._model, params)

    def run(self, ids: list[int]) -> int:
        self._generator.append_tokens(np.array([ids], np.int32))
        return int(
            np.asarray(self._generator.get_logits()).reshape(-1, self.vocab_size)[-1].argmax()
        )


def load(path: Path, threads: int, context: int) -> GenaiRunner:
    """Opens a bundle."""
    config = genai.Config(str(path))
    options = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    vocab_size = json.loads((path / "config.json").read_text())["vocab_size"]
    return GenaiRunner(genai.Model(config), vocab_size, context + 1)
