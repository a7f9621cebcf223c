"""Runs one kernel on NumPy arrays, and collects the cases of all kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.isa import available_isas, bfloat16_multiplier
from edgerun.kernels.lang.isa import MODELS, isa_of
from edgerun.kernels.run.instructions import instruction
from edgerun.kernels.run.program import Program, ThreadTeam

ROWS = 1  # word of the frame that holds the number of rows
UNTOUCHED = 77  # fills outputs, so that what a kernel should not write shows
ISAS = available_isas()
BFLOAT16_MODELS = {bfloat16_multiplier(isa) for isa in MODELS.values()}
# What multiplies bfloat16 here, and models of what does not.
_HERE = {*map(bfloat16_multiplier, map(isa_of, ISAS))} - {""}
BFLOAT16_MULTIPLIERS = sorted(_HERE | (BFLOAT16_MODELS - {f"{name}_model" for name in _HERE}))
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def float_lanes(isa: str) -> int:
    """float32 lanes of an instruction set's vectors."""
    return isa_of(isa).float_lanes


def unpacked(isa: str) -> dict[str, Any]:
    """Constants of a kernel that unpacks weights, as programs have it for an instruction set."""
    return {"isa": isa, "tokens": isa_of(isa).tile[1]}


def ordered_for(isa: str, packed: int = 1) -> dict[str, Any]:
    """The same for weights with scales of blocks; experts' activations are in rows, not packed."""
    return unpacked(isa) | {"packed": packed}


@dataclass(frozen=True)
class Call:
    """One kernel call on arrays, and what must hold after it.

    Attributes:
        params: compile-time constants.
        fields: arrays stand for their addresses; ``rows`` is filled in.
        rows: what the field ``rows`` points to; 0 for kernels without such a field.
        check: asserts.
        chunks: number of chunks; one a row unless given.
    """

    params: dict[str, Any]
    fields: dict[str, Any]
    rows: int
    check: Callable[[], None]
    chunks: int | None = None


@dataclass(frozen=True)
class Case:
    """A kernel and the arguments of the function that prepares a call of it."""

    kernel: str
    prepare: Callable[..., Call]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        parts = [str(value).replace(" ", "") for value in self.arguments.values()]
        return "-".join([self.kernel, *parts])


CASES: list[Case] = []


def cases_of(kernel: str, **choices: list[Any]) -> Callable[[Callable[..., Call]], Any]:
    """Registers a function that prepares calls of a kernel, for every combination of choices."""

    def register(prepare: Callable[..., Call]) -> Callable[..., Call]:
        for values in itertools.product(*choices.values()):
            CASES.append(Case(kernel, prepare, dict(zip(choices, values, strict=True))))
        return prepare

    return register


def run(kernel: str, call: Call, team: ThreadTeam) -> None:
    """Runs a call to its end."""
    frame = np.zeros(8, np.int64)
    frame[0], frame[ROWS] = call.rows if call.chunks is None else call.chunks, call.rows
    fields = {
        name: value.ctypes.data if isinstance(value, np.ndarray) else int(value)
        for name, value in call.fields.items()
    }
    if call.rows:
        fields["rows"] = frame.ctypes.data + 8 * ROWS
    step = instruction(
        kernel, params=call.params, fields=fields, chunks=(0, 1, 1), reads=set(), writes=set()
    )
    team.run(Program([step], [call], frame))
    team.settle()


def random(shape: tuple[int, ...], seed: int = 0, gap: int = 0) -> F32:
    """Normal values; each row is followed by ``gap`` values that must not be read."""
    x = np.full((*shape[:-1], shape[-1] + gap), np.nan, np.float32)
    x[..., : shape[-1]] = _normal(shape, seed)
    return x


@lru_cache(64)
def _normal(shape: tuple[int, ...], seed: int) -> F64:
    """Drawn once for all instruction sets and threads on which a kernel is tried."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape) * 3


def untouched(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """An output array."""
    return np.full(shape, UNTOUCHED, dtype)


def assert_near(actual: NDArray[Any], expected: NDArray[Any], bound: float) -> None:
    """Error at most ``bound`` times the largest expected magnitude, and nothing but numbers."""
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    largest = max(float(np.abs(expected).max(initial=0)), 1e-30)
    error = float(np.abs(actual.astype(np.float64) - expected).max(initial=0)) / largest
    assert error <= bound, f"error {error:.2e} of the largest value, allowed {bound:.0e}"
