"""Experts that a safetensors checkpoint stores in stacks.

The gate and up projections of all experts of a layer are one tensor, the down projections another.

gpt-oss has outputs of gate and up in turns (gate, up, gate, ...): as floats ``[experts, K, N]``,
or in MXFP4 (OCP Microscaling Formats 1.0, section 5.3) as ``_blocks``, uint8
``[experts, N, K / 32, 16]``, two codes a byte, and ``_scales``, uint8 ``[experts, N, K / 32]``.
Biases are ``[experts, N]``. Granite has ``input_linear`` and ``output_linear``, floats
``[experts, N, K]``, all outputs of gate before those of up. So has Gemma 4, whose experts have a
factor each, by which the down projection is multiplied here. Qwen3-VL is released with floats
``[experts, K, N]``, all outputs of gate before those of up, and transformers may write
``[experts, N, K]`` (``conversion_mapping.py``, ``qwen3_vl_moe``): both stacks of a layer together
tell which. So are experts without biases of other models, where transformers writes them as it
holds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import (
    F32,
    I8,
    Array,
    Checkpoint,
    Integers,
    TensorInfo,
)
from edgerun_export.checkpoint.codecs import MXFP4_BLOCK, mxfp4_scales, mxfp4_values
from edgerun_export.checkpoint.stored import MAX_TENSORS, check_finite
from edgerun_export.checkpoint.views.base import Replacing

_STACK = re.compile(r"(model\.layers\.\d+\.\w+\.experts)\.(gate_up_proj|down_proj)(_bias|_blocks)?")
_SCALED = re.compile(
    r"(model\.(?:language_model\.)?layers\.\d+)\.experts\.(gate_up_proj|down_proj)"
)
_FACTORS = "router.per_expert_scale"
_EITHER = re.compile(
    r"((?:model\.language_model|language_model\.model)\.layers\.\d+\.mlp\.experts)"
    r"\.(gate_up_proj|down_proj)"
)
_LINEAR = re.compile(
    r"(model\.layers\.\d+\.block_sparse_moe)\.(input_linear|output_linear)\.weight"
)
# Of each stack: what it holds.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
    "input_linear": ("gate_proj", "up_proj"),
    "output_linear": ("down_proj",),
}
_ROWS, _COLUMNS = "_rows", "_columns"  # the kinds of Granite's and of Qwen3-VL's
_AXES = {"": 3, _ROWS: 3, _COLUMNS: 3, "_bias": 2, "_blocks": 4}
_HELD = 4  # blocks and scales of an expert are read by its gate and its up projection


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a tensor of one expert lies.

    Attributes:
        info: its description.
        stack: name of the tensor that holds it.
        kind: ``""`` for floats, ``_ROWS`` for floats by output, ``_COLUMNS`` for floats by input
            with all outputs of gate before those of up, ``"_bias"``, ``"_blocks"`` for MXFP4.
        expert: its number.
        outputs: which of the outputs in the stack are its own.
    """

    info: TensorInfo
    stack: str
    kind: str
    expert: int
    outputs: slice


class StackedExperts(Replacing):
    """A checkpoint, with a tensor of each expert in place of those of all."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: a stack has other axes, there are no scales that fit, a tensor of an
                expert is there twice, or there are more than there can be.
        """
        super().__init__(checkpoint)
        self._parts: dict[str, _Part] = {}
        self._factors: dict[str, F32] = {}
        for name, info in self._stored.items():
            stack = _stack(name)
            if stack is not None:
                del self._others[name]
                module, part, kind = stack
                if not kind and f"{module}.gate_up_proj_bias" not in self._stored:
                    kind = _COLUMNS  # not gpt-oss's, whose experts have biases
                is_turned = kind == _COLUMNS and _is_by_output(self._stored, module)
                self._add(info, module, part, _ROWS if is_turned else kind)
        self._held: dict[tuple[str, int], Array] = {}

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        part = self._parts.get(name)
        if part is None:
            return self._checkpoint.read(name, rows)
        if part.kind == "_blocks":
            values, scales = self._integers(part, rows)
            grouped = values.reshape(*scales.shape, MXFP4_BLOCK).astype(np.float32)
            return (grouped * scales[..., None]).reshape(values.shape)
        stack = self._expert(part.stack, part.expert)
        first, end = self._bounds(part.info.name, rows)
        by_output = stack if part.kind == _ROWS else stack.T
        outputs: Array = by_output[part.outputs][first:end]
        factors = self._factors.get(part.stack)
        return np.ascontiguousarray(outputs if factors is None else outputs * factors[part.expert])

    def integers(self, name: str, rows: slice | None = None) -> tuple[Integers, F32] | None:
        """Read MXFP4 codes, twice their value, and scales; see ``Checkpoint.integers``."""
        part = self._parts.get(name)
        if part is None:
            return self._checkpoint.integers(name, rows)
        return self._integers(part, rows) if part.kind == "_blocks" else None

    def close(self) -> None:
        """Close every file."""
        self._held.clear()
        super().close()

    def _add(self, info: TensorInfo, module: str, stack: str, kind: str) -> None:
        if len(info.shape) != _AXES[kind]:
            raise CheckpointError(
                f"tensor '{info.name}' has shape {list(info.shape)}; expected {_AXES[kind]} axes, "
                "the first of experts"
            )
        if kind == "_blocks":
            self._take_scales(info)
        if _SCALED.fullmatch(info.name) and stack == "down_proj":
            self._take_factors(info)
        if len(self._parts) + info.shape[0] * len(_PARTS[stack]) > MAX_TENSORS:
            raise CheckpointError(
                f"the stacks of experts up to '{info.name}' have more than {MAX_TENSORS} tensors"
            )
        for name, part in _parts(info, module, stack, kind):
            if name in self._parts or name in self._others:
                raise CheckpointError(f"tensor '{name}' is there twice, once in '{info.name}'")
            self._parts[name], self._own[name] = part, part.info

    def _take_scales(self, blocks: TensorInfo) -> None:
        name = blocks.name.removesuffix("blocks") + "scales"
        scales = self._others.pop(name, None)
        pairs = blocks.dtype, blocks.shape[-1], scales and (scales.dtype, scales.shape)
        if pairs != ("U8", MXFP4_BLOCK // 2, ("U8", blocks.shape[:-1])):
            beside = "none" if scales is None else f"{scales.dtype} {list(scales.shape)}"
            raise CheckpointError(
                f"tensor '{blocks.name}' is {blocks.dtype} {list(blocks.shape)} and its scales are "
                f"{beside}; expected U8 [experts, N, K / 32, 16] and one scale for each 16 bytes"
            )

    def _take_factors(self, down: TensorInfo) -> None:
        """Takes the factors of a layer's experts, which its down projections are multiplied by."""
        name = f"{down.name.removesuffix('.experts.down_proj')}.{_FACTORS}"
        factors = self._others.pop(name, None)
        if factors is None or factors.shape != down.shape[:1]:
            beside = "none" if factors is None else f"of shape {list(factors.shape)}"
            raise CheckpointError(
                f"tensor '{down.name}' has {down.shape[0]} experts, and factors '{name}' are "
                f"{beside}; expected one for each"
            )
        self._factors[down.name] = self._checkpoint.read(name).astype(np.float32)

    def _integers(self, part: _Part, rows: slice | None) -> tuple[I8, F32]:
        first, end = self._bounds(part.info.name, rows)
        blocks, scales = (
            self._expert(name, part.expert)[part.outputs][first:end]
            for name in (part.stack, part.stack.removesuffix("blocks") + "scales")
        )
        decoded = mxfp4_scales(scales)
        check_finite(decoded, part.info.name, first, end)
        values = mxfp4_values(np.stack([blocks & 15, blocks >> 4], axis=-1))
        return values.reshape(len(blocks), -1), decoded

    def _expert(self, stack: str, expert: int) -> Array:
        """What a stack holds of one expert."""
        key = stack, expert
        if key not in self._held:
            if len(self._held) >= _HELD:
                self._held.pop(next(iter(self._held)))
            self._held[key] = self._checkpoint.read(stack, slice(expert, expert + 1))[0]
        return self._held[key]


def with_single_experts(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with a tensor of each expert, whether it stores them so or in stacks.

    Raises:
        CheckpointError: a stack is not what ``StackedExperts`` can read.
    """
    if any(_stack(name) for name in checkpoint.tensors()):
        return StackedExperts(checkpoint)
    return checkpoint


def _stack(name: str) -> tuple[str, str, str] | None:
    """Path of the experts, stack and kind of a tensor; None for one that is no stack."""
    match = _STACK.fullmatch(name)
    if match is not None:
        return match[1], match[2], match[3] or ""
    match = _SCALED.fullmatch(name)
    if match is not None:
        return f"{match[1]}.experts", match[2], _ROWS
    match = _EITHER.fullmatch(name)
    if match is not None:
        return match[1], match[2], _COLUMNS
    match = _LINEAR.fullmatch(name)
    return None if match is None else (f"{match[1]}.experts", match[2], _ROWS)


def _is_by_output(tensors: Mapping[str, TensorInfo], module: str) -> bool:
    """Whether stacks of a layer are ``[experts, N, K]``, by their sizes.

    As such, gate and up projections read what the down projection makes, and make twice what it
    reads; otherwise the reverse is so. Stacks that fit neither way are refused for their sizes.
    """
    both = [tensors.get(f"{module}.{part}") for part in ("gate_up_proj", "down_proj")]
    shapes = [info.shape[1:] for info in both if info is not None and len(info.shape) == 3]
    return len(shapes) == 2 and shapes[0] == (2 * shapes[1][1], shapes[1][0])


def _sizes(info: TensorInfo, kind: str) -> tuple[int, tuple[int, ...]]:
    """Outputs of an expert, and what its weights have beside that axis."""
    _, *sizes = info.shape
    if kind == "_bias":
        return sizes[0], ()
    if kind == _ROWS:
        return sizes[0], (sizes[1],)
    if kind == _COLUMNS:
        return sizes[1], (sizes[0],)
    return (sizes[0], (sizes[1] * MXFP4_BLOCK,)) if kind else (sizes[1], (sizes[0],))


def _parts(info: TensorInfo, module: str, stack: str, kind: str) -> Iterator[tuple[str, _Part]]:
    names = _PARTS[stack]
    outputs, inputs = _sizes(info, kind)
    if outputs % len(names):
        raise CheckpointError(
            f"tensor '{info.name}' has {outputs} outputs, which {' and '.join(names)} cannot share"
        )
    each = outputs // len(names)
    shape = (each, *inputs)
    suffix, dtype = ("bias" if kind == "_bias" else "weight"), info.dtype
    for expert in range(info.shape[0]):
        for place, name in enumerate(names):
            own = slice(place, None, len(names))
            if kind in (_ROWS, _COLUMNS):
                own = slice(place * each, (place + 1) * each)
            full = f"{module}.{expert}.{name}.{suffix}"
            part = TensorInfo(full, shape, "MXFP4" if kind == "_blocks" else dtype)
            yield full, _Part(part, info.name, kind, expert, own)
