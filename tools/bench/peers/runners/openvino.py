"""OpenVINO as a peer: the bundle's graph, its cache turned into the model's own state.

What is left to OpenVINO: precision of the arithmetic and dynamic quantisation of activations.
The cache is float16, as the other peers have it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from edgerun_export.openvino_ir.stateful import make_stateful


class OpenvinoRunner:
    """One sequence in the state of an inference request."""

    version = openvino.get_version()

    def __init__(self, request: Any, vocab_size: int) -> None:
        self._request = request
        self.vocab_size = vocab_size
        self._length = 0

    def reset(self) -> None:
        self._request.reset_state()
        self._length = 0

    def run(self, ids: list[int]) -> int:
        start, self._length = self._length, self._length + len(ids)
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            "position_ids": np.arange(start, self._length, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer(feeds, share_inputs=True)
        logits = self._request.get_tensor("logits").data
        return int(logits[0, -1].argmax())


def load(path: Path, threads: int, context: int) -> OpenvinoRunner:
    """Compiles a bundle's graph for the CPU; the context grows as needed."""
    core = openvino.Core()
    model = core.read_model(path / "model.onnx")
    make_stateful(model)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "KV_CACHE_PRECISION": "f16",
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    config = json.loads((path / "config.json").read_text())
    return OpenvinoRunner(request, config["vocab_size"])
