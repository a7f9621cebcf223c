"""Reader of Hugging Face folders: ``config.json`` with one or several safetensors files.

Format: https://github.com/huggingface/safetensors (README, "Format"). The header is checked against
the file's size before anything is allocated; offsets must tile the data exactly, as upstream
demands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.model.bundle_files import MAX_BYTES, TOKENIZER
from edgerun_export.checkpoint.base import F32, I8, Checkpoint, Source, TensorInfo
from edgerun_export.checkpoint.codecs import SAFETENSORS, Codec, supported
from edgerun_export.checkpoint.files import (
    CONFIG_LIMIT_BYTES,
    MIB,
    ByteFile,
    check_inside,
    decode_config,
    decode_json,
    optional_reader,
    read_small,
)
from edgerun_export.checkpoint.registry import head
from edgerun_export.checkpoint.stored import (
    MAX_TENSORS,
    Stored,
    StoredCheckpoint,
    check_ranges,
    check_shape,
    row_bounds,
)
from edgerun_export.checkpoint.views.compressed import PARTS as COMPRESSED_PARTS
from edgerun_export.checkpoint.views.compressed import CompressedLayers
from edgerun_export.checkpoint.views.compressed_config import integer_weights_of
from edgerun_export.checkpoint.views.fp8 import Fp8Weights, has_fp8
from edgerun_export.checkpoint.views.fp8_config import Scaling, scaling_of
from edgerun_export.checkpoint.views.integer_types import with_integers
from edgerun_export.checkpoint.views.packed import PARTS as PACKED_PARTS
from edgerun_export.checkpoint.views.packed import PackedLayers
from edgerun_export.checkpoint.views.packed_config import packing_of
from edgerun_export.checkpoint.views.stacked import with_single_experts
from edgerun_export.tokenizers import from_hugging_face

# Upstream allows 100 MB; at about 120 bytes a tensor this is room for 130,000 of them.
_HEADER_LIMIT_BYTES = 16 * MIB
# Kimi K2 Thinking's, which names three tensors a weight, has 20 MB.
_INDEX_LIMIT_BYTES = 32 * MIB
_TOKENIZER_LIMIT_BYTES = MAX_BYTES[TOKENIZER]
_CARD, _CARD_BYTES = "README.md", 16384
_CARD_FIELD = re.compile(r"(license|license_name)[ \t]*:[ \t]*([^#]*)(?:#.*)?", re.ASCII)
_IDENTIFIER = re.compile(r"[\w.+-]{1,64}", re.ASCII)
_PACKED = ("qweight", "weight_packed")  # last parts of names of packed layers
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def claims(path: Path) -> bool:
    """Tell whether a path is a Hugging Face folder or a safetensors file."""
    if path.is_dir():
        return any((path / name).exists() for name in (_SINGLE, _INDEX))
    start = head(path, 9)
    return path.suffix == ".safetensors" or (
        start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= _HEADER_LIMIT_BYTES
    )


def open_path(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a folder, or one safetensors file with its ``config.json`` beside it.

    Raises:
        CheckpointError: a file is missing or broken.
        UnsupportedError: a llama2.c tokenizer was given, or layers are packed, or 8-bit floats
            scaled, in an unknown way.
    """
    if tokenizer is not None:
        raise UnsupportedError("--tokenizer is for llama2.c files; this folder has its own")
    folder = path if path.is_dir() else path.parent
    read = optional_reader(folder, _TOKENIZER_LIMIT_BYTES)
    config = _with_quantization(
        decode_config(
            read_small(folder / "config.json", CONFIG_LIMIT_BYTES, inside=True), "config.json"
        )
    )
    source = Source("safetensors", path.resolve().name, licence=_licence(folder))
    (parts, with_layers), scaling = _layers_of(config), scaling_of(config, read)
    stored = with_integers(_open_folder(folder) if path.is_dir() else _open_file(path), parts)
    checkpoint = SafetensorsCheckpoint(config, source, stored, lambda: from_hugging_face(read))
    try:
        _check_told(config, stored)
        return with_single_experts(_with_scales(with_layers(checkpoint), scaling))
    except Exception:
        checkpoint.close()
        raise


def _with_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that says where others do what it says of its weights.

    It may say so of its text model alone, or as compressed-tensors wrote it until 2024.
    """
    text, old = config.get("text_config"), config.get("compression_config")
    settings = text.get("quantization_config") if isinstance(text, dict) else None
    if not settings and isinstance(old, dict) and old:
        settings = {"quant_method": "compressed-tensors", **old}
    if settings and not config.get("quantization_config"):
        return {**config, "quantization_config": settings}
    return config


def _layers_of(
    config: Mapping[str, Any],
) -> tuple[Mapping[str, Codec], Callable[[Checkpoint], Checkpoint]]:
    """Types of what layers of integers are made of, by names, and the view that has the layers."""
    packing, weights = packing_of(config), integer_weights_of(config)
    if packing is not None:
        return PACKED_PARTS, partial(PackedLayers, packing=packing)
    if weights is not None:
        return COMPRESSED_PARTS, partial(CompressedLayers, weights=weights)
    return {}, lambda checkpoint: checkpoint


def _check_told(config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Checks that a configuration speaks of packed layers where there are any.

    Raises:
        CheckpointError: it does not; old AutoGPTQ and AutoAWQ wrote that into files of their own.
    """
    packed = next((name for name in names if name.rpartition(".")[2] in _PACKED), None)
    if packed is not None and not config.get("quantization_config"):
        raise CheckpointError(
            f"tensor '{packed}' is packed, and config.json has no quantization_config that says "
            "how; put there what quantize_config.json or quant_config.json beside it has, with "
            "quant_method, bits and group_size"
        )


def _with_scales(checkpoint: Checkpoint, scaling: Scaling | None) -> Checkpoint:
    """A checkpoint whose 8-bit floats are multiplied by their scales, where it has such."""
    if scaling is None or (scaling.method is None and not has_fp8(checkpoint)):
        return checkpoint
    return Fp8Weights(checkpoint, scaling)


class SafetensorsCheckpoint(StoredCheckpoint):
    """A Hugging Face checkpoint; adds the packed ternary layers of BitNet."""

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Unpack a BitNet layer; see ``Checkpoint.ternary``.

        Four output rows share a byte: row ``i * N/4 + j`` is bits ``2i`` and ``2i + 1`` of packed
        row ``j``, as code minus one (transformers, ``integrations/bitnet.py``, ``pack_weights``).
        """
        scale = f"{name}_scale"
        stored = self._find(name)
        if stored.info.dtype != "U8" or len(stored.info.shape) != 2 or scale not in self._stored:
            return None
        quarter, width = stored.info.shape
        first, end = row_bounds(rows, 4 * quarter)
        codes = np.empty((end - first, width), np.int8)
        row = first
        while row < end:
            part, at = divmod(row, quarter)
            count = min(end - row, quarter - at)
            packed = self.read(name, slice(at, at + count))
            codes[row - first : row - first + count] = (packed >> (2 * part)) & 3
            row += count
        codes -= np.int8(1)
        if codes.size and codes.max() > 1:
            raise CheckpointError(f"tensor '{name}' holds a packed code of 3; it is damaged")
        return codes, self._scale(scale)

    def _scale(self, name: str) -> F32:
        value: F32 = self.read(name).reshape(-1).astype(np.float32)
        if value.shape != (1,) or value[0] == 0:
            raise CheckpointError(f"tensor '{name}' must hold one scale other than 0")
        settings = self.config.get("quantization_config") or {}
        # BitLinear divides its output by the stored number, AutoBitLinear multiplies (same file).
        linear = settings.get("linear_class") if isinstance(settings, Mapping) else None
        return value if linear == "autobitlinear" else np.float32(1) / value


def _open_folder(folder: Path) -> dict[str, Stored]:
    if (folder / _SINGLE).exists():
        return _open_file(folder / _SINGLE, inside=True)
    data = read_small(folder / _INDEX, _INDEX_LIMIT_BYTES, inside=True)
    # An entry has one colon: this bounds their number before they become objects.
    if data.count(b":") > 2 * MAX_TENSORS:
        raise CheckpointError(f"'{_INDEX}' lists more than {MAX_TENSORS} tensors")
    index = decode_json(data, _INDEX, _Index)
    tensors: dict[str, Stored] = {}
    try:
        for shard in sorted(set(index.weight_map.values())):
            held = _open_shard(folder, shard, index.weight_map)
            twice = next((name for name in held if name in tensors), None)
            if twice is not None:
                held[twice].file.close()
                raise CheckpointError(
                    f"'{shard}' holds tensor '{twice}' a second time; remove it from one file"
                )
            tensors.update(held)
    except Exception:
        for stored in tensors.values():
            stored.file.close()
        raise
    return tensors


def _open_shard(folder: Path, shard: str, weight_map: Mapping[str, str]) -> dict[str, Stored]:
    """Open one file of several and check that it holds what the index says."""
    # A name with a separator could lead anywhere on this machine.
    if "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
        raise CheckpointError(f"'{_INDEX}' names '{shard[:200]}', not a .safetensors file name")
    held = _open_file(folder / shard, inside=True)
    promised = (name for name, where in weight_map.items() if where == shard)
    missing = next((name for name in promised if name not in held), None)
    if missing is not None:
        next(iter(held.values())).file.close()
        raise CheckpointError(f"'{shard}' lacks tensor '{missing}', which '{_INDEX}' promises")
    return held  # with those that the index forgot: leaving them out would change the model


def _open_file(path: Path, *, inside: bool = False) -> dict[str, Stored]:
    """Read a file's header and place its tensors."""
    file = ByteFile(path, inside=inside)
    try:
        return _place(file, *_header(file))
    except Exception:
        file.close()
        raise


def _header(file: ByteFile) -> tuple[dict[str, _Entry], int]:
    """Parse the header into entries and the offset at which data begins."""
    length = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if length > min(_HEADER_LIMIT_BYTES, file.size_bytes - 8):
        raise CheckpointError(
            f"'{file.name}' announces a header of {length} bytes in a file of {file.size_bytes}; "
            "it is truncated or not a safetensors file"
        )
    data = file.read(8, length).tobytes()
    # An entry has four colons, and what is said of the file has few: this bounds their number
    # before they become objects.
    if data.count(b":") > 5 * MAX_TENSORS:
        raise CheckpointError(f"'{file.name}' has more than {MAX_TENSORS} tensors")
    raw = decode_json(data, file.name, dict[str, msgspec.Raw])
    raw.pop("__metadata__", None)
    if len(raw) > MAX_TENSORS:
        raise CheckpointError(f"'{file.name}' has {len(raw)} tensors; at most {MAX_TENSORS}")
    return {
        name: decode_json(bytes(entry), name, _Entry) for name, entry in raw.items()
    }, 8 + length


def _place(file: ByteFile, entries: Mapping[str, _Entry], data: int) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        stored = _stored(file, name, entry, data)
        begin, end = entry.data_offsets
        if end - begin != stored.size_bytes or begin < 0 or data + end > file.size_bytes:
            raise CheckpointError(
                f"tensor '{name}' of {stored.size_bytes} bytes is placed at {begin} to {end} in "
                f"'{file.name}', which has {file.size_bytes - data} bytes of data; the file is "
                "truncated or damaged"
            )
        tensors[name] = stored
        ranges.append((begin, end, name))
    if not tensors:
        raise CheckpointError(f"'{file.name}' holds no tensors")
    check_ranges(ranges, file.name)
    if sum(end - begin for begin, end, _ in ranges) != file.size_bytes - data:
        raise CheckpointError(f"'{file.name}' holds bytes that belong to no tensor; it is damaged")
    return tensors


def _stored(file: ByteFile, name: str, entry: _Entry, data: int) -> Stored:
    codec = SAFETENSORS.get(entry.dtype)
    if codec is None:
        raise UnsupportedError(
            f"tensor '{name}' has type '{entry.dtype[:40]}'; supported: {supported(SAFETENSORS)}"
        )
    shape = tuple(entry.shape)
    check_shape(name, shape, codec)
    info = TensorInfo(name, shape, codec.name)
    return Stored(info, file, data + entry.data_offsets[0], codec)


def _licence(folder: Path) -> str | None:
    """The licence in a model card's front matter, if there is a card that says.

    ``license: other`` with a ``license_name`` is that name, as on the hub.
    """
    check_inside(folder / _CARD)
    card = head(folder / _CARD, _CARD_BYTES).decode("utf-8", "replace")
    fields = dict(_card_fields(card.splitlines()))
    licence = fields.get("license")
    return fields.get("license_name", licence) if licence == "other" else licence


def _card_fields(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Fields of a card's front matter about licences, if they are identifiers."""
    for index, line in enumerate(lines):
        if (index == 0) != (line.rstrip() == "---"):  # it begins and ends so
            return
        field = _CARD_FIELD.fullmatch(line)
        value = field[2].strip() if field else ""
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if field and _IDENTIFIER.fullmatch(value):
            yield field[1], value
