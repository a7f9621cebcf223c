"""Compares what was written for OpenVINO with what it was made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import openvino_tokenizers  # noqa: F401  (importing it teaches OpenVINO its operators)
from numpy.typing import NDArray

from edgerun.model.text.sandboxed_library import SandboxedLibrary
from edgerun.model.text.tokenizer_check import check_tokenizer_json
from edgerun_export.openvino_ir.stateful import IR_FILE

# OpenVINO's CPU plug-in rounds weights' factors, activations and cache unless told not to.
_EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "KV_CACHE_PRECISION": "f32",
}

_TEXTS = (
    "Once upon a time, there was a little house near the sea.",
    "  It's 3.14159,\tisn't it?\n\n\nYES'LL 1234567 ",
    "Crème brûlée — naïve façade; Größe, żółć, Ёлка, ελληνικά",
    "你好，世界。こんにちは 안녕하세요 🙂👍🏽",
    "def f(x):\n    return {'a': x**2 != 0}  # a_b\r\n",
)


def run_stateful(folder: Path, ids: NDArray[np.int64], decode_steps: int) -> NDArray[np.float32]:
    """Runs the IR on OpenVINO's CPU plug-in: a prefill, then single tokens; returns all logits.

    Args:
        folder: the bundle.
        ids: token ids ``[tokens]``.
        decode_steps: how many tokens at the end are run one by one.
    """
    request = openvino.Core().compile_model(folder / IR_FILE, "CPU", _EXACT).create_infer_request()
    first = max(1, len(ids) - decode_steps)
    logits, position = [], 0
    for end in range(first, len(ids) + 1):
        feeds = {
            "input_ids": ids[None, position:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(position, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        logits.append(request.infer(feeds)["logits"][0].copy())
        position = end
    return np.concatenate(logits)


def tokenizer_differences(folder: Path, tokenizer_json: str) -> list[str]:
    """Returns those sample texts whose ids, or whose text from ids, differ from tokenizer.json's.

    Args:
        folder: the bundle.
        tokenizer_json: content of tokenizer.json.

    Raises:
        BundleError: the tokenizers library cannot read it, fails, or needs more time or memory
            than it may take. OpenVINO, which nothing limits, is asked only when it did not.
    """
    check_tokenizer_json(tokenizer_json)
    library = SandboxedLibrary(tokenizer_json)
    names = (token.content for token in library.facts.added)
    texts = (*_TEXTS, " and ".join(names))
    expected = library.round_trips(texts)
    core = openvino.Core()
    encode = core.compile_model(folder / "openvino_tokenizer.xml", "CPU")
    decode = core.compile_model(folder / "openvino_detokenizer.xml", "CPU")
    return [
        text
        for text, (ids, decoded) in zip(texts, expected, strict=True)
        if ids != encode([text])["input_ids"][0].tolist()
        or (ids and decoded != decode(np.array([ids]))["string_output"][0])
    ]
