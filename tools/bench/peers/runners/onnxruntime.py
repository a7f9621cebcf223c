"""onnxruntime as a peer: the bundle's unmodified graph, keys and values passed on by binding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class OnnxruntimeRunner:
    """One sequence whose keys and values stay in onnxruntime's own memory."""

    version = onnxruntime.__version__

    def __init__(self, session: Any, config: dict[str, Any]) -> None:
        self._session = session
        self.vocab_size = config["vocab_size"]
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self._empty = np.zeros((1, config["num_key_value_heads"], 0, head), np.float32)
        names = [value.name for value in session.get_outputs()]
        self._presents = [name for name in names if name != "logits"]
        self.reset()

    def reset(self) -> None:
        empty = onnxruntime.OrtValue.ortvalue_from_numpy(self._empty)
        self._past = dict.fromkeys(self._presents, empty)
        self._length = 0

    def run(self, ids: list[int]) -> int:
        start, self._length = self._length, self._length + len(ids)
        binding = self._session.io_binding()
        tokens = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            "position_ids": np.arange(start, self._length, dtype=np.int64)[None],
        }
        for name, value in tokens.items():
            binding.bind_cpu_input(name, value)
        for name, value in self._past.items():
            binding.bind_ortvalue_input(name.replace("present", "past_key_values"), value)
        for name in ("logits", *self._presents):
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        logits, *presents = binding.get_outputs()
        self._past = dict(zip(self._presents, presents, strict=True))
        return int(logits.numpy()[0, -1].argmax())


def load(path: Path, threads: int, context: int) -> OnnxruntimeRunner:
    """Opens a bundle's graph; the context grows as needed."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        path / "model.onnx", settings, providers=["CPUExecutionProvider"]
    )
    return OnnxruntimeRunner(session, json.loads((path / "config.json").read_text()))
