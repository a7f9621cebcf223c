"""Golden checkpoints whose layers are integers, written one number after the other."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tests.support.bundles import GOLDEN

Tensors = dict[str, NDArray]
Pack = Callable[[NDArray, NDArray, NDArray], Tensors]
BF16 = ml_dtypes.bfloat16
MODULE = "model.layers.0.mlp.gate_proj"
NAME = f"{MODULE}.weight"
GROUP = 32
PROJECTION = re.compile(r"_proj\.weight$|experts\.\d+\.w[123]\.weight$")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
NIBBLES = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ: nibble i of an int32 is output NIBBLES[i]


@dataclass(frozen=True)
class Layout:
    """How a method stores matrices.

    Attributes:
        settings: ``quantization_config`` in config.json.
        pack: codes ``[N, K]``, zero points and scales ``[N, groups]`` to tensors, by the last part
            of their names; codes and zero points are 0 to ``2^bits - 1``.
        bits: of a code.
        group: inputs that share a scale; None for all.
        dtype: of scales.
        is_centred: whether zero points are all the middle of the codes.
    """

    settings: Mapping[str, Any]
    pack: Pack
    bits: int = 4
    group: int | None = GROUP
    dtype: Any = np.float16
    is_centred: bool = False


def put(words: NDArray, row: int, column: int, bits: int, place: int, value: int) -> None:
    """Writes a number into an element of uint32 words."""
    words[row, column] |= np.uint32(int(value) << (bits * place))


def pack_awq(codes: NDArray, points: NDArray) -> Tensors:
    """``qweight`` and ``qzeros`` of codes ``[N, K]`` and zero points ``[N, groups]``."""
    tensors = {}
    for part, numbers in (("qweight", codes), ("qzeros", points)):
        words = np.zeros((numbers.shape[1], len(numbers) // 8), np.uint32)
        for n, k in np.ndindex(*numbers.shape):
            put(words, k, n // 8, 4, NIBBLES.index(n % 8), numbers[n, k])
        tensors[part] = words.view(np.int32)
    return tensors


def pack_gptq(codes: NDArray, points: NDArray, bits: int = 4, less: int = 1) -> Tensors:
    """The same in GPTQ's order; version 1 stores zero points less one."""
    each = 32 // bits
    words = np.zeros((codes.shape[1] // each, len(codes)), np.uint32)
    for n, k in np.ndindex(*codes.shape):
        put(words, k // each, n, bits, k % each, codes[n, k])
    zeros = np.zeros((points.shape[1], len(points) // each), np.uint32)
    for n, g in np.ndindex(*points.shape):
        put(zeros, g, n // each, bits, n % each, (int(points[n, g]) - less) % (1 << bits))
    return {"qweight": words.view(np.int32), "qzeros": zeros.view(np.int32)}


def along_rows(numbers: NDArray, bits: int) -> NDArray:
    """Numbers ``[n, count]``, those of a row one after the other in int32 ``[n, words]``."""
    each = 32 // bits
    words = np.zeros((len(numbers), -(-numbers.shape[1] // each)), np.uint32)
    for n, k in np.ndindex(*numbers.shape):
        put(words, n, k // each, bits, k % each, numbers[n, k])
    return words.view(np.int32)


def pack_compressed(bits: int = 4, *, has_zeros: bool = True) -> Pack:
    """What compressed-tensors writes as ``pack-quantized``."""

    def pack(codes: NDArray, points: NDArray, scales: NDArray) -> Tensors:
        shape, parts = np.array(codes.shape, np.int64), Tensors()
        if has_zeros:
            parts["weight_zero_point"] = along_rows(points.T, bits).T.copy()
        packed = along_rows(codes, bits)
        return parts | {"weight_packed": packed, "weight_shape": shape, "weight_scale": scales}

    return pack


def in_bytes(bits: int = 8, *, has_zeros: bool = False) -> Pack:
    """What compressed-tensors writes as ``int-quantized``."""

    def pack(codes: NDArray, points: NDArray, scales: NDArray) -> Tensors:
        middle = 1 << (bits - 1)
        parts = {"weight_zero_point": (points - middle).astype(np.int8)} if has_zeros else {}
        return {"weight": (codes - middle).astype(np.int8), "weight_scale": scales} | parts

    return pack


def compressed(form: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    """What compressed-tensors writes into config.json."""
    usual = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    sizes = {"group_size": GROUP} if weights.get("strategy", "group") == "group" else {}
    group = {"targets": ["Linear"], "weights": usual | sizes | weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def of_scales(pack: Callable[[NDArray, NDArray], Tensors]) -> Pack:
    """What GPTQ and AWQ write, whose scales are ``[groups, N]``."""
    return lambda codes, points, scales: pack(codes, points) | {"scales": scales.T.copy()}


def integer_model(
    folder: Path,
    layout: Layout,
    model: str = "llama",
    alter: Callable[[Tensors], None] = lambda tensors: None,
) -> Tensors:
    """A golden checkpoint with projections as integers; returns all weights that it stands for.

    Zero points are the middle if the settings say so. Routers stay as they are, and so does what
    has rows of no whole groups.
    """
    shutil.copytree(GOLDEN / model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": layout.settings})
    )
    tensors, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    weights, most = dict(tensors), 1 << layout.bits
    for name in [name for name in tensors if PROJECTION.search(name)]:
        n, k = tensors[name].shape
        group = k if layout.group is None else layout.group
        if k % group:
            continue
        del tensors[name]
        codes = rng.integers(0, most, (n, k))
        codes[:, :2] = 0, most - 1  # the whole range in the first group of every row
        points = rng.integers(0, most, (n, k // group))
        if layout.is_centred:
            points[:] = most // 2
        spread = 2.0 ** (4 - layout.bits) / 100
        scales = (rng.uniform(0.5, 1.5, points.shape) * spread).astype(layout.dtype)
        module = name.removesuffix(".weight")
        parts = layout.pack(codes, points, scales)
        tensors |= {f"{module}.{part}": array for part, array in parts.items()}
        integers = codes - np.repeat(points, group, axis=1)
        factors = np.repeat(scales.astype(np.float32), group, axis=1)
        weights[name] = integers.astype(np.float32) * factors
    alter(tensors)
    arrays = {
        name: np.ascontiguousarray(each).reshape(each.shape) for name, each in tensors.items()
    }
    save_file(arrays, folder / "model.safetensors")
    return weights


def packed_model(
    folder: Path,
    settings: dict[str, Any],
    pack: Callable[[NDArray, NDArray], Tensors],
    bits: int = 4,
    alter: Callable[[Tensors], None] = lambda tensors: None,
    model: str = "llama",
    group: int = GROUP,
) -> Tensors:
    """A checkpoint of GPTQ or AWQ; returns what its projections stand for."""
    is_centred = bool(settings.get("sym"))
    layout = Layout(settings, of_scales(pack), bits, group, is_centred=is_centred)
    weights = integer_model(folder, layout, model, alter)
    kept = load_file(folder / "model.safetensors")
    return {name: weight for name, weight in weights.items() if name not in kept}
