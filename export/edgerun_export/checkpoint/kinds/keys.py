"""Typed access to the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError

_MAX_SIZE = 1 << 31


class Keys:
    """The metadata of one architecture.

    Every reader raises CheckpointError for what is missing or out of range, and UnsupportedError
    for what is no single value.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def beside(self, prefix: str) -> Keys:
        """The keys that stand behind another word than the architecture's name."""
        return Keys(self._metadata, prefix)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedError(
                f"metadata '{self._prefix}.{key}' is {str(value)[:60]}; expected one number "
                "(values that differ by layer are not supported)"
            )
        if not math.isfinite(value):
            raise CheckpointError(f"metadata '{self._prefix}.{key}' is {value}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise CheckpointError(
                f"metadata '{self._prefix}.{key}' is {value}; expected more than 0"
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on."""
        value = self.number(key, default)
        if value != int(value) or not 0 < value < _MAX_SIZE:
            raise CheckpointError(
                f"metadata '{self._prefix}.{key}' is {value}; expected 1 to {_MAX_SIZE - 1}"
            )
        return int(value)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self.number(key, default)
        if value != int(value) or not 0 <= value < _MAX_SIZE:
            raise CheckpointError(
                f"metadata '{self._prefix}.{key}' is {value}; expected 0 to {_MAX_SIZE - 1}"
            )
        return int(value)

    def by_layer(self, key: str, layers: int) -> list[int]:
        """A whole number from 0 on for each layer, or one for all."""
        value = self._get(key, None)
        numbers = list(value) if isinstance(value, list | tuple | np.ndarray) else [value] * layers
        if len(numbers) != layers or not all(_is_count(number) for number in numbers):
            raise CheckpointError(
                f"metadata '{self._prefix}.{key}' is {str(value)[:60]}; expected a whole number "
                f"from 0 on for each of {layers} layers"
            )
        return [int(number) for number in numbers]

    def numbers(self, key: str, layers: int) -> list[float]:
        """A number for each layer, which may be infinite."""
        value = self._get(key, None)
        numbers = list(value) if isinstance(value, list | tuple | np.ndarray) else []
        if len(numbers) != layers or not all(map(_is_number, numbers)):
            raise CheckpointError(
                f"metadata '{self._prefix}.{key}' is {str(value)[:60]}; expected a number for each "
                f"of {layers} layers"
            )
        return [float(number) for number in numbers]

    def flags(self, key: str, layers: int) -> list[bool]:
        """A truth value for each layer."""
        value = self._get(key, None)
        flags = list(value) if isinstance(value, list | tuple | np.ndarray) else []
        if len(flags) != layers or not all(isinstance(flag, bool | np.bool_) for flag in flags):
            raise CheckpointError(
                f"metadata '{self._prefix}.{key}' is {str(value)[:60]}; expected a truth value for "
                f"each of {layers} layers"
            )
        return [bool(flag) for flag in flags]

    def layer_types(self, usual: int, layers: int) -> list[str]:
        """Which layers have a window: all but every n-th, or those that are named.

        ``usual`` is n where nothing is said.
        """
        key = "attention.sliding_window_pattern"
        if isinstance(self._get(key, usual), list | tuple | np.ndarray):
            slides = self.flags(key, layers)
        else:
            period = self.size(key, usual)
            slides = [(layer + 1) % period != 0 for layer in range(layers)]
        return ["sliding_attention" if slide else "full_attention" for slide in slides]

    def text(self, key: str, default: str) -> str:
        """Any value, as a text."""
        return str(self._get(key, default))

    def has(self, key: str) -> bool:
        """Whether there is such a key."""
        return f"{self._prefix}.{key}" in self._metadata

    def _get(self, key: str, default: Any) -> Any:
        value = self._metadata.get(f"{self._prefix}.{key}", default)
        if value is None:
            raise CheckpointError(f"metadata lacks '{self._prefix}.{key}'")
        return value


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return is_number and not isinstance(value, bool) and not math.isnan(value)


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and 0 <= value < _MAX_SIZE


def short_float(value: float) -> float:
    """The shortest decimal with the same float32 value: 9.99999974e-06 was written as 1e-05."""
    return float(str(np.float32(value)))
