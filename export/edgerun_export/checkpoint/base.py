"""The contract between a source checkpoint and the rest of the exporter.

Whatever the file format, a checkpoint looks like a Hugging Face one: ``config.json`` keys,
``model.layers.0.self_attn.q_proj.weight`` names, half-split rotary rows. Adding a format is adding
one module to this package (see ``registry.py``); nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun.values import shown

MAX_LICENCE, MAX_LOCATION = 100, 500  # characters
Array = NDArray[Any]
F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
Integers = NDArray[np.signedinteger[Any]]  # int8, or int16
U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known about a tensor without reading it.

    Attributes:
        name: Hugging Face name.
        shape: logical shape, outermost first; for packed types the shape as stored.
        dtype: the type in the file: ``F32``, ``BF16``, ``U8``, ``Q4_0``, ``TQ2_0``, ...
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint came from, fit for a manifest: never an absolute path.

    Attributes:
        kind: the reader's name: ``safetensors``, ``gguf`` or ``llama2c``.
        location: file or folder name, or hub id.
        revision: the hub's commit, where there is one.
        licence: licence identifier stated by the checkpoint, where it states one.
        url: where the checkpoint says that it is published.
    """

    kind: str
    location: str
    revision: str | None = None
    licence: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a user says of a checkpoint; None leaves what its files say.

    Attributes:
        licence: its licence, best as an SPDX identifier.
        location: where it comes from: a URL, or a few words.

    Raises:
        InputError: one is no line of printable characters, or too long.
    """

    licence: str | None = None
    location: str | None = None

    def __post_init__(self) -> None:
        for name, most in (("licence", MAX_LICENCE), ("location", MAX_LOCATION)):
            value = getattr(self, name)
            if value is not None and printable_line(value, most) != value:
                raise InputError(
                    f"--{name} is {shown(value)}; expected one line of 1 to {most} printable "
                    "characters, without spaces around it"
                )

    def applied(self, source: Source) -> Source:
        """Returns the source as a manifest is to state it."""
        if self.location is not None:
            source = replace(source, location=self.location, url=None)
        return source if self.licence is None else replace(source, licence=self.licence)


def printable_line(value: Any, most: int) -> str | None:
    """Returns a text as one line without spaces around it; None for what is none, or too long."""
    text = value.strip() if isinstance(value, str) else ""
    return text if 0 < len(text) <= most and text.isprintable() else None


class Affine(NamedTuple):
    """Weights as ``value * scale + offset``.

    Attributes:
        values: int8 ``[N, K]``, around 0.
        scales: float32 ``[N, K / g]``.
        offsets: float32 ``[N, K / g]``.
    """

    values: I8
    scales: F32
    offsets: F32


class Checkpoint(Protocol):
    """An opened source checkpoint; close it when done (it is also a context manager).

    Attributes:
        config: keys of config.json.
        source: where it came from.
        notes: sentences about what was left out knowingly.
    """

    config: Mapping[str, Any]
    source: Source
    notes: tuple[str, ...]

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Describe every tensor, by Hugging Face name."""
        ...

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read a tensor, or the given rows (first axis) of it.

        Only the bytes of those rows enter memory, plus about 10 MB of working space.

        Args:
            name: a key of :meth:`tensors`.
            rows: slice of the first axis with step 1; ``None`` reads everything.

        Returns:
            float32, dequantised, ``[rows, ...]``. Tensors stored as ``U8`` or ``I8`` come back in
            that type, unchanged.

        Raises:
            CheckpointError: there is no such tensor, its bytes are gone, or it holds NaN or Inf.
            UnsupportedError: the stored type cannot be decoded.
        """
        ...

    def integers(self, name: str, rows: slice | None = None) -> tuple[Integers, F32] | None:
        """Read a tensor that the file itself stores as integers and scales.

        Args:
            name: a key of :meth:`tensors`.
            rows: logical output rows, step 1; ``None`` reads everything.

        Returns:
            int8 values ``[N, K]``, or int16 where codes of 8 bits have zero points, and exact
            float32 scales ``[N, K/g]`` of either sign; the weight is value times scale. ``None``
            where the tensor is not stored so.

        Raises:
            CheckpointError: as for :meth:`read`, or an integer that its type does not have.
        """
        ...

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read a tensor that the file itself stores as integers, scales and minima.

        Args:
            name: a key of :meth:`tensors`.
            rows: logical output rows, step 1; ``None`` reads everything.

        Returns:
            what the weights are; ``None`` where the tensor is not stored so.

        Raises:
            CheckpointError: as for :meth:`read`.
        """
        ...

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read a tensor that the file itself stores as ternary values and scales.

        Args:
            name: a key of :meth:`tensors`.
            rows: logical output rows, step 1; ``None`` reads everything.

        Returns:
            int8 values in {-1, 0, 1} of shape ``[N, K]`` and exact float32 scales: shape ``(1,)``,
            ``[N, 1]`` for ``I2_S`` or ``[N, K/256]`` for ``TQ1_0``/``TQ2_0``. The weight is value
            times scale. ``None`` where the tensor is not stored as ternary.

        Raises:
            CheckpointError: as for :meth:`read`, or a value outside {-1, 0, 1}.
        """
        ...

    def read_to_the_end(self) -> frozenset[str]:
        """Names of the tensors whose last row was read through this object."""
        ...

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Build or pass through the tokenizer's files, by file name.

        Returns:
            ``tokenizer.json``, ``tokenizer_config.json`` (chat template inside), and
            ``special_tokens_map.json`` and ``generation_config.json`` where the source implies
            them.

        Raises:
            CheckpointError: the source has no tokenizer or a broken one.
            UnsupportedError: it has one of a kind that cannot be converted.
        """
        ...

    def digest(self) -> str:
        """Tell checkpoints apart: SHA-256 of the configuration and of all files with weights.

        The files are read whole, a piece at a time; their names do not count.

        Raises:
            CheckpointError: one cannot be read.
        """
        ...

    def close(self) -> None:
        """Release the files; reading afterwards raises ``CheckpointError``."""
        ...

    def __enter__(self) -> Checkpoint: ...

    def __exit__(self, *_: object) -> None: ...
