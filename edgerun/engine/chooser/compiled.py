"""The kernels of ``kernels/choice``, once they are there, and memory for them.

A short run does not wait for a compiler: kernels come from disk, or are compiled beside a process
that draws many tokens, which goes on without them meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.choice.numbers import BLOCK, NUMBERS, RESULTS
from edgerun.kernels.jit.service import compiled, is_kept, native

logger = logging.getLogger(__name__)

PATIENCE = 512  # tokens that are drawn before anything is compiled for them: seconds of it
CANDIDATES, DRAW = "candidates", "draw"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled functions of an address of arguments, and of a number that they ignore."""

    candidates: Callable[[int, int], None]
    draw: Callable[[int, int], None]


class Source:
    """Brings the kernels; any thread may ask at any time.

    Attributes:
        kernels: None until they are there.
    """

    def __init__(self) -> None:
        """Has none yet."""
        self.kernels: Kernels | None = None
        self._asked = 0

    def get(self) -> Kernels | None:
        """The kernels, if they are there; asking often has them compiled."""
        return self.kernels or self._sought()

    def wait(self) -> Kernels:
        """The kernels, compiled now if need be.

        Raises:
            Exception: whatever keeps them from being compiled.
        """
        self.kernels = Kernels(native(CANDIDATES), native(DRAW))
        return self.kernels

    def _sought(self) -> Kernels | None:
        self._asked += 1
        if self._asked == 1 and is_kept(CANDIDATES) and is_kept(DRAW):
            self._try()
        elif self._asked == PATIENCE:
            threading.Thread(target=self._try, daemon=True).start()
        return self.kernels

    def _try(self) -> None:
        try:
            self.wait()
        except Exception as error:  # choices are made without them
            logger.debug("no kernels for choosing tokens: %s", error)


SOURCE = Source()


class Workspace:
    """Arrays that kernels work in, for one thread and one size of vocabulary.

    Attributes:
        keys, depths, weights: float32 ``[size]``.
        variable: the words of ``candidates`` that callers fill in, which come first.
        numbers: float64, see ``kernels/choice/numbers.py``.
        result: int64, see there.
        candidates: address of the arguments of that kernel.
        draw: that of the other's.
    """

    def __init__(self, size: int) -> None:
        """Takes the number of logits."""
        self.size = size
        self.keys, self.depths, self.weights = (np.empty(size, np.float32) for _ in range(3))
        arrays: dict[str, NDArray[np.generic]] = {
            "keys": self.keys,
            "depths": self.depths,
            "weights": self.weights,
            "spare": np.empty(size, np.float32),
            "ids": np.empty(size, np.int32),
            "places": np.empty(size, np.int32),
            "sums": np.empty(1 + size // BLOCK, np.float64),
            "numbers": np.zeros(NUMBERS, np.float64),
            "result": np.zeros(RESULTS, np.int64),
        }
        words = {"size": size} | {name: array.ctypes.data for name, array in arrays.items()}
        calls = [
            np.array([words.get(word, 0) for word in compiled(name).signature.names], np.int64)
            for name in (CANDIDATES, DRAW)
        ]
        self._alive = [*arrays.values(), *calls]
        self.candidates, self.draw = (call.ctypes.data for call in calls)
        self.variable: Any = calls[0].data  # faster to fill in than arrays
        self.numbers: Any = arrays["numbers"].data
        self.result: Any = arrays["result"].data


_LOCAL = threading.local()


def workspace(size: int) -> Workspace:
    """This thread's memory for so many logits."""
    spaces: dict[Any, Workspace] = _LOCAL.__dict__
    if size not in spaces:
        spaces[size] = Workspace(size)
    return spaces[size]
