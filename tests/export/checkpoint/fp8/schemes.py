"""Golden checkpoints brought to FP8, as each of the quantisation methods writes them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgerun_export.checkpoint import open_checkpoint
from tests.support.bundles import GOLDEN

Tensors = dict[str, NDArray]
E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16
LARGEST = 448
QUANTISED = re.compile(
    r"_proj(_with_mqa)?\.weight$|experts\.\d+\.w[123]\.weight$|_linear\.weight$|experts\.\w+_proj$"
)


@dataclass(frozen=True)
class Scheme:
    """How a method scales weights.

    Attributes:
        settings: ``quantization_config`` in config.json.
        block: outputs and inputs that share a scale; None for a whole matrix.
        suffix: of the names of scales.
        shape: of a matrix's scales, from that of their grid.
        dtype: of the scales; ``uint8`` for codes of E8M0.
        others: tensors beside a weight that are scales of something else.
        file: content of ``hf_quant_config.json``.
    """

    settings: Mapping[str, Any]
    block: tuple[int, int] | None = None
    suffix: str = "_scale"
    shape: Callable[[tuple[int, int]], tuple[int, ...]] = lambda grid: grid
    dtype: Any = np.float32
    others: tuple[str, ...] = ()
    file: Mapping[str, Any] = field(default_factory=dict)


def compressed(form: str = "float-quantized", **weights: Any) -> dict[str, Any]:
    """What compressed-tensors writes into config.json."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


ROW = (1, 1 << 20)
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [24, 40]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
MODELOPT = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
SCHEMES = {
    "qwen3": Scheme(BLOCKS, (24, 40), "_scale_inv", dtype=BF16),
    "deepseek": Scheme(BLOCKS, (24, 40), "_scale_inv"),
    "wide": Scheme(BLOCKS | {"weight_block_size": [24, 4096]}, (24, 4096), "_scale_inv"),
    "deepseek-e8m0": Scheme(BLOCKS, (24, 40), "_scale_inv", dtype=E8M0),
    "ministral3": Scheme(STATIC, None, "_scale_inv", lambda grid: (), BF16, ("activation_scale",)),
    "vllm-static": Scheme(STATIC, None, shape=lambda grid: (), others=("input_scale",)),
    "tensor": Scheme(
        compressed(strategy="tensor"), shape=lambda grid: (1,), others=("input_scale",)
    ),
    "channel": Scheme(compressed(strategy="channel"), ROW, dtype=BF16),
    "block": Scheme(compressed(strategy="block", block_structure=[24, 40]), (24, 40), dtype=BF16),
    "mxfp8": Scheme(
        compressed("mxfp8-quantized", strategy="group", group_size=32), (1, 32), dtype=np.uint8
    ),
    "modelopt": Scheme(
        {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        ROW,
        shape=lambda grid: grid[:1],
    ),
    "modelopt-old": Scheme(
        {}, shape=lambda grid: (), others=("input_scale", "k_scale"), file=MODELOPT
    ),
    "fbgemm": Scheme({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, ROW),
}


def quantise(weight: NDArray, scheme: Scheme) -> tuple[NDArray, NDArray, NDArray]:
    """Codes and scales of a matrix, and the weights that they stand for, by the definition."""
    rows, columns = scheme.block or weight.shape
    groups = np.ix_(np.arange(len(weight)) // rows, np.arange(weight.shape[1]) // columns)
    grid = groups[0].max() + 1, groups[1].max() + 1
    largest = np.zeros(grid, np.float32)
    np.maximum.at(largest, groups, np.abs(weight))
    scales = np.maximum(largest / LARGEST, 1e-6)
    if scheme.dtype in (E8M0, np.uint8):
        scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
    typed = scales.astype(E8M0 if scheme.dtype is np.uint8 else scheme.dtype)
    exact = typed.astype(np.float32)
    codes = np.clip(weight / exact[groups], -LARGEST, LARGEST).astype(E4M3)
    stored = typed.view(np.uint8) if scheme.dtype is np.uint8 else typed
    return codes, stored.reshape(scheme.shape(grid)), codes.astype(np.float32) * exact[groups]


def fp8_model(
    folder: Path,
    scheme: Scheme,
    model: str = "llama",
    alter: Callable[[Tensors], None] = lambda tensors: None,
) -> Tensors:
    """Writes a golden checkpoint in FP8; returns the weights that its tensors stand for."""
    tensors, weights = Tensors(), source_tensors(model)
    for name, weight in weights.items():
        if QUANTISED.search(name) is None:
            tensors[name] = weight
            continue
        matrices = [quantise(each, scheme) for each in weight.reshape(-1, *weight.shape[-2:])]
        codes, scales, exact = map(np.stack, zip(*matrices, strict=True))
        experts = weight.shape[:-2]
        tensors[name] = codes.reshape(weight.shape)
        tensors[f"{name}{scheme.suffix}"] = scales.reshape((*experts, *scales.shape[1:]))
        weights[name] = exact.reshape(weight.shape)
        module = name.removesuffix("weight")
        tensors |= {f"{module}{other}": np.ones(1, np.float32) for other in scheme.others}
    alter(tensors)
    write(
        folder, model, tensors, {"quantization_config": scheme.settings} if scheme.settings else {}
    )
    if scheme.file:
        (folder / "hf_quant_config.json").write_text(json.dumps(scheme.file))
    return weights


def source_tensors(model: str) -> Tensors:
    """Tensors of a golden checkpoint as they are stored, in float32."""
    with open_checkpoint(str(GOLDEN / model)) as checkpoint:
        while hasattr(checkpoint, "_checkpoint"):
            checkpoint = checkpoint._checkpoint
        return {name: checkpoint.read(name) for name in checkpoint.tensors()}


def write(folder: Path, model: str, tensors: Tensors, more: Mapping[str, Any]) -> None:
    """Writes a checkpoint with the files of a golden one and other tensors."""
    shutil.copytree(GOLDEN / model, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.npz"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    arrays = {
        name: np.ascontiguousarray(each).reshape(each.shape) for name, each in tensors.items()
    }
    save_file(arrays, folder / "model.safetensors")
