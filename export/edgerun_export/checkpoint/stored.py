"""A checkpoint whose tensors are ranges of bytes in files: what all readers have in common."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32, I8, U8, Affine, Array, Source, TensorInfo
from edgerun_export.checkpoint.codecs import SAFETENSORS, Codec, Codes, supported
from edgerun_export.checkpoint.files import ByteFile
from edgerun_export.checkpoint.minima import MINIMA

# Decoding goes through pieces of this many weights, so that its temporaries stay at a few MB
# whatever the size of the tensor.
_PIECE_WEIGHTS = 1 << 20
_MAX_AXES = 8
# Descriptions take about 1 kB of memory each, however little a hostile file spends on one.
MAX_TENSORS = 1 << 17


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies and how to decode it.

    Attributes:
        info: its description, in Hugging Face terms.
        file: the open file.
        offset: first byte.
        codec: its storage type.
        paired_head_dim: where the file interleaves rotary pairs (llama.cpp's ``llama``, llama2.c):
            rows per head, to be put back to half-split; otherwise ``None``.
        added: what the file's values are more than Hugging Face's.
        factor: what the file's values are multiplied by, scales and minima where there are such.
    """

    info: TensorInfo
    file: ByteFile
    offset: int
    codec: Codec
    paired_head_dim: int | None = None
    added: float = 0.0
    factor: float = 1.0

    @property
    def row_count(self) -> int:
        """Length of the first axis; a tensor without axes is one row."""
        return self.info.shape[0] if self.info.shape else 1

    @property
    def row_weights(self) -> int:
        """Weights in a row: everything after the first axis."""
        return math.prod(self.info.shape[1:])

    @property
    def size_bytes(self) -> int:
        """Bytes that the tensor takes in the file."""
        return encoded_bytes(self.info.shape, self.codec)


def encoded_bytes(shape: tuple[int, ...], codec: Codec) -> int:
    """Bytes that a tensor of this shape takes."""
    return math.prod(shape) // codec.block_weights * codec.block_bytes + codec.tail_bytes


def check_shape(name: str, shape: tuple[int, ...], codec: Codec) -> None:
    """Check that a shape read from a file is one that a tensor of that type can have.

    Raises:
        CheckpointError: too many axes, an axis below 1, rows that are not whole blocks, or not
            two axes where one scale is for a whole matrix.
    """
    if len(shape) > _MAX_AXES or any(size < 1 for size in shape):
        raise CheckpointError(
            f"tensor '{name}' has shape {list(shape)[:16]}; expected at most {_MAX_AXES} axes, "
            "each at least 1"
        )
    innermost = shape[-1] if len(shape) > 1 else 1
    if innermost % codec.block_weights:
        raise CheckpointError(
            f"tensor '{name}' of type {codec.name} has shape {list(shape)}; expected two or "
            f"more axes, the last in multiples of {codec.block_weights}"
        )
    if codec.tail_bytes and len(shape) != 2:
        raise CheckpointError(
            f"tensor '{name}' of type {codec.name} has shape {list(shape)}; expected two axes, "
            "since it has one scale"
        )


def check_ranges(ranges: list[tuple[int, int, str]], file_name: str) -> None:
    """Check that no two tensors share bytes.

    Args:
        ranges: (first byte, end, tensor name); sorted in place.
        file_name: for the error.

    Raises:
        CheckpointError: two of them overlap.
    """
    ranges.sort()
    for (_, end, name), (begin, _, other) in zip(ranges, ranges[1:], strict=False):
        if begin < end:
            raise CheckpointError(f"tensors '{name}' and '{other}' overlap in '{file_name}'")


def row_bounds(rows: slice | None, count: int) -> tuple[int, int]:
    """Turn a slice of the first axis into (first, end).

    Raises:
        ValueError: the slice has a step (a caller's bug, not a user's mistake).
    """
    start, stop, step = (rows or slice(None)).indices(count)
    if step != 1:
        raise ValueError(f"rows {rows} must have step 1")
    return start, max(start, stop)


def half_split(read: Callable[[int, int], Array], rows: tuple[int, int], head_dim: int) -> Array:
    """Read rows of an interleaved projection in half-split order.

    Within a head, interleaved row ``2j + h`` is half-split row ``h * head_dim/2 + j``.

    Args:
        read: reads rows [first, end) as they lie in the file.
        rows: wanted half-split rows, (first, end).
        head_dim: rows per head.

    Returns:
        The rows; the heads that the range touches are read whole.
    """
    first_head, end_head = rows[0] // head_dim, -(-rows[1] // head_dim)
    raw = read(first_head * head_dim, end_head * head_dim)
    heads = raw.reshape(-1, head_dim // 2, 2, *raw.shape[1:])
    ordered = np.swapaxes(heads, 1, 2).reshape(raw.shape)
    skipped = first_head * head_dim
    return ordered[rows[0] - skipped : rows[1] - skipped]


class StoredCheckpoint:
    """The part of ``Checkpoint`` that does not depend on the format.

    Args:
        config: Hugging Face configuration.
        source: origin.
        stored: every tensor, by Hugging Face name.
        tokenizer: builds the tokenizer's files when asked.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        source: Source,
        stored: Mapping[str, Stored],
        tokenizer: Callable[[], Mapping[str, bytes]],
    ) -> None:
        self.config = config
        self.source = source
        self.notes: tuple[str, ...] = ()
        self._stored = stored
        self._tokenizer = tokenizer
        self._rows_read: dict[str, int] = {}

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Describe every tensor; see ``Checkpoint.tensors``."""
        return {name: stored.info for name, stored in self._stored.items()}

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        stored = self._find(name)
        bounds = self._bounds(stored, rows)
        out = _ordered(stored, _decode, bounds)
        return out.reshape(()) if not stored.info.shape else out

    def integers(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read stored integers and scales; see ``Checkpoint.integers``."""
        stored = self._find(name)
        if stored.codec.codes is None or len(stored.info.shape) != 2:
            return None
        bounds = self._bounds(stored, rows)
        return _unpack(stored, stored.codec.codes, _ordered(stored, _raw_rows, bounds))

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read stored integers, scales and minima; see ``Checkpoint.affine``."""
        stored = self._find(name)
        minima = MINIMA.get(stored.codec.name)
        if minima is None or len(stored.info.shape) != 2:
            return None
        raw = _ordered(stored, _raw_rows, self._bounds(stored, rows))
        values, *others = minima.affine(raw.reshape(-1, stored.codec.block_bytes))
        factor = np.float32(stored.factor)
        scales, offsets = (each.reshape(len(raw), -1) * factor for each in others)
        for numbers in (scales, offsets):
            check_finite(numbers, name, 0, len(raw))
        return Affine(values.reshape(len(raw), -1), scales, offsets)

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read stored ternary values and scales; see ``Checkpoint.ternary``."""
        codes = self._find(name).codec.codes
        return None if codes is None or codes.high > 1 else self.integers(name, rows)

    def read_to_the_end(self) -> frozenset[str]:
        """Names of the tensors that were read; see ``Checkpoint.read_to_the_end``."""
        return frozenset(
            name for name, end in self._rows_read.items() if end == self._stored[name].row_count
        )

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Build the tokenizer's files; see ``Checkpoint.tokenizer_files``."""
        return self._tokenizer()

    def digest(self) -> str:
        """SHA-256 of configuration and weights; see ``Checkpoint.digest``."""
        files = {stored.file for stored in self._stored.values()}
        config = json.dumps(self.config, sort_keys=True, default=str)
        parts = [config, *sorted(file.sha256() for file in files)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def close(self) -> None:
        """Close every file."""
        for stored in self._stored.values():
            stored.file.close()

    def __enter__(self) -> StoredCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bounds(self, stored: Stored, rows: slice | None) -> tuple[int, int]:
        """Returns (first, end) of ``rows``, and keeps in mind how far the tensor was read."""
        first, end = row_bounds(rows, stored.row_count)
        name = stored.info.name
        self._rows_read[name] = max(end, self._rows_read.get(name, 0))
        return first, end

    def _find(self, name: str) -> Stored:
        try:
            return self._stored[name]
        except KeyError:
            raise CheckpointError(
                f"the checkpoint '{self.source.location}' has no tensor '{name}'"
            ) from None


def _pieces(stored: Stored, first: int, end: int) -> Iterator[tuple[int, int]]:
    step = max(1, _PIECE_WEIGHTS // max(1, stored.row_weights))
    for start in range(first, end, step):
        yield start, min(end, start + step)


def _ordered(
    stored: Stored, read: Callable[[Stored, int, int], Array], bounds: tuple[int, int]
) -> Array:
    if stored.paired_head_dim is None:
        return read(stored, *bounds)
    return half_split(lambda a, b: read(stored, a, b), bounds, stored.paired_head_dim)


def _raw_rows(stored: Stored, first: int, end: int) -> U8:
    """Encoded bytes of rows [first, end): ``uint8 [rows, row_bytes]``."""
    codec = stored.codec
    row_bytes = stored.row_weights // codec.block_weights * codec.block_bytes
    data = stored.file.read(stored.offset + first * row_bytes, (end - first) * row_bytes)
    return data.reshape(end - first, row_bytes)


def _decode(stored: Stored, first: int, end: int) -> Array:
    codec, name = stored.codec, stored.info.name
    if codec.decode is None:
        raise UnsupportedError(
            f"tensor '{name}' is stored as {codec.name}, which cannot be read; "
            f"supported: {supported(SAFETENSORS)}; take the checkpoint in one of these"
        )
    out = np.empty((end - first, stored.row_weights), codec.out)
    for start, stop in _pieces(stored, first, end):
        blocks = _raw_rows(stored, start, stop).reshape(-1, codec.block_bytes)
        piece = out[start - first : stop - first]
        # A huge float16 scale times a quant may overflow: reported below, not by a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            piece[...] = codec.decode(blocks).reshape(piece.shape)
        if stored.added:
            piece -= stored.added
        if stored.factor != 1:
            piece *= np.float32(stored.factor)
        check_finite(piece, name, start, stop)
    return out.reshape(end - first, *stored.info.shape[1:])


def check_finite(values: Array, name: str, first: int, end: int) -> None:
    """Check decoded values.

    Raises:
        CheckpointError: NaN or Inf is among them.
    """
    if values.size == 0 or not np.issubdtype(values.dtype, np.floating):
        return
    # min and max propagate NaN and need no temporary, unlike isfinite over everything.
    if not (math.isfinite(values.min()) and math.isfinite(values.max())):
        raise CheckpointError(
            f"tensor '{name}' holds NaN or Inf in rows {first} to {end - 1}; the checkpoint is "
            "damaged or was saved from a diverged run"
        )


def _unpack(stored: Stored, codes: Codes, raw: U8) -> tuple[I8, F32]:
    name, width = stored.info.name, stored.row_weights
    values = np.empty((len(raw), width), np.int8)
    scales = np.empty((len(raw), width // codes.group), np.float32)
    for start, stop in _pieces(stored, 0, len(raw)):
        some, scale = codes.unpack(raw[start:stop].reshape(-1, stored.codec.block_bytes))
        values[start:stop] = some.reshape(stop - start, width)
        scales[start:stop] = scale.reshape(stop - start, -1)
    if stored.factor != 1:
        scales *= np.float32(stored.factor)
    check_finite(scales, name, 0, len(raw))
    if values.size and values.max() > codes.high:
        raise CheckpointError(
            f"tensor '{name}' holds a {stored.codec.name} code for {values.max()}; it is damaged"
        )
    return values, scales[:, :1] if codes.uniform else scales
