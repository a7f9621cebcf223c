"""What a checkpoint's configuration says of its 8-bit floats.

- ``fp8`` (transformers, ``integrations/finegrained_fp8.py`` and ``finegrained/core.py``; vLLM,
  ``quantization/fp8.py``): ``weight_block_size`` is ``[outputs, inputs]`` that share a scale, or
  null for a scale of each tensor.
- ``compressed-tensors`` (``quantization/quant_args.py``, ``compressors/naive_quantized`` and
  ``mxfp8``): groups of layers, each with a strategy for weights, ``tensor``, ``channel``, ``group``
  or ``block``.
- ``modelopt`` (TensorRT Model Optimizer, ``export/convert_hf_config.py``): ``quant_algo``, a scale
  of each tensor or output; old exports say it in ``hf_quant_config.json`` alone.
- ``fbgemm_fp8`` (transformers, ``integrations/fbgemm_fp8.py``): a scale of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import UnsupportedError
from edgerun.values import shown
from edgerun_export.checkpoint.files import decode_config
from edgerun_export.checkpoint.views.compressed_config import (
    FORMATS,
    INSTEAD,
    is_integer,
    section,
    weight_groups,
)

_MODELOPT_FILE = "hf_quant_config.json"
_FORMATS = ("float-quantized", "naive-quantized", "mxfp8-quantized", "dense")
_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
_Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How scales belong to 8-bit floats.

    Attributes:
        method: the quantisation method; None where the configuration names none.
        block: outputs and inputs that share a scale, where the configuration says.
    """

    method: str | None
    block: tuple[int, int] | None = None


def scaling_of(config: _Settings, read: Callable[[str], bytes | None]) -> Scaling | None:
    """What a checkpoint says of its 8-bit floats; None if it is quantised by another method.

    Args:
        config: keys of ``config.json``.
        read: returns what a file beside it holds, or None without one.

    Raises:
        UnsupportedError: it says what cannot be read.
        CheckpointError: a file beside it is broken.
    """
    settings = config.get("quantization_config")
    if not settings:
        data = read(_MODELOPT_FILE)
        if data is None:
            return Scaling(None)
        return _modelopt(section(decode_config(data, _MODELOPT_FILE), "quantization"))
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    return _METHODS[method](settings) if isinstance(method, str) and method in _METHODS else None


def _fp8(settings: _Settings) -> Scaling:
    size = settings.get("weight_block_size")
    return Scaling("fp8", None if size is None else _block("weight_block_size", size))


def _compressed_tensors(settings: _Settings) -> Scaling:
    blocks = set()
    for form, weights in weight_groups(settings):
        if not is_integer(weights):
            _check_format(form, weights)
            blocks.add(_of_strategy(weights))
    sizes = sorted(block for block in blocks if block is not None)
    if len(sizes) > 1:
        raise UnsupportedError(
            f"config.json has blocks of {sizes[0]} and of {sizes[1]} weights that share a scale; "
            f"expected one size for all, so {INSTEAD}"
        )
    return Scaling("compressed-tensors", sizes[0] if sizes else None)


def _check_format(form: Any, weights: _Settings) -> None:
    if form not in _FORMATS:
        raise UnsupportedError(
            f"config.json has weights of compressed-tensors in the format {shown(form)}; supported "
            f"are {', '.join(_FORMATS)}, and of integers {', '.join(FORMATS)}, so {INSTEAD}"
        )
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    if (kind, bits) != ("float", 8):
        raise UnsupportedError(
            f"config.json has weights of compressed-tensors of type {shown(kind)} in {shown(bits)} "
            f"bits; supported are floats in 8 and integers, so {INSTEAD}"
        )


def _of_strategy(weights: _Settings) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale, where these are neither a tensor nor an output."""
    strategy = weights.get("strategy")
    if strategy == "block":
        return _block("block_structure", weights.get("block_structure"))
    if strategy == "group":
        return _block("group_size", [1, weights.get("group_size")])
    return None


def _block(key: str, size: Any) -> tuple[int, int]:
    """Reads a size of blocks.

    Raises:
        UnsupportedError: it is no pair of whole numbers above 0.
    """
    is_pair = isinstance(size, list) and len(size) == 2
    if not is_pair or any(type(each) is not int or each < 1 for each in size):
        raise UnsupportedError(
            f"config.json: {key} is {shown(size)}; expected two whole numbers above 0, the outputs "
            f"and inputs that share a scale, so correct it or {INSTEAD}"
        )
    return size[0], size[1]


def _modelopt(settings: _Settings) -> Scaling:
    algorithm = settings.get("quant_algo")
    # None where keys and values alone are quantised.
    if algorithm is not None and algorithm not in _ALGORITHMS:
        raise UnsupportedError(
            f"the checkpoint has weights of ModelOpt's quant_algo {shown(algorithm)}; supported "
            f"are {' and '.join(_ALGORITHMS)}, so {INSTEAD}"
        )
    return Scaling("modelopt")


_METHODS: Mapping[str, Callable[[_Settings], Scaling]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "fbgemm_fp8": lambda _: Scaling("fbgemm_fp8"),
}
