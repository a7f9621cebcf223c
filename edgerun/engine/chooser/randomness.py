"""Random numbers that depend on nothing but a seed and a position.

A generator with a state draws other numbers after a token more or less. A function of the position
draws the same, whether a sequence runs alone or with others, was preempted and computed again, or
had tokens verified that were drafted (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"). The function is a keyed hash, which takes a microsecond; NumPy's Philox would take 20 ms
of every start to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeAlias

Uniform: TypeAlias = Callable[[int], float]

SPARE_BITS = 64 - 53  # a float has 53 bits
UNIT = 2.0**-53


def uniform(seed: int | None) -> Uniform:
    """Returns a function of positions, 0 to 2**64 - 1, whose values are uniform in [0, 1).

    Args:
        seed: 0 to 2**64 - 1; None takes a fresh one.
    """
    key = os.urandom(8) if seed is None else seed.to_bytes(8, "little")
    begun = blake2b(digest_size=8, key=key)

    def at(position: int) -> float:
        hashed = begun.copy()
        hashed.update(position.to_bytes(8, "little"))
        return (int.from_bytes(hashed.digest(), "little") >> SPARE_BITS) * UNIT

    return at
