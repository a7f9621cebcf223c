"""What ``EDGERUN_DEBUG`` shows, on stderr: 1 the plan, 2 times, 3 shapes, 4 values."""

from __future__ import annotations

import logging
import re
import sys
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np

from edgerun.env import settings

PLAN, TIMES, SHAPES, VALUES = 1, 2, 3, 4
SHOWN_VALUES = 6


def enabled(level: int) -> bool:
    """Whether the environment asks for this level."""
    return settings().debug >= level


def say(level: int, text: str) -> None:
    """Logs a line if the environment asks for its level."""
    if enabled(level):
        _logger().info(text)


def value_line(name: str, value: Any) -> str:
    """One line about an array: its shape and type, and from level 4 on what is in it."""
    array = np.asarray(value)
    line = f"{name}: {array.dtype} {list(array.shape)}"
    if not enabled(VALUES) or array.size == 0:
        return line
    first = " ".join(f"{element:.4g}" for element in array.reshape(-1)[:SHOWN_VALUES])
    return f"{line} from {array.min():.4g} to {array.max():.4g}, mean {array.mean():.4g}: {first}"


class Times:
    """Seconds by kind of step; the same step of different layers counts as one kind."""

    def __init__(self, title: str) -> None:
        """Starts at zero."""
        self._title = title
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, label: str, seconds: float) -> None:
        """Adds one execution of a step."""
        kind = re.sub(r"layers\.\d+", "layers.*", label)
        self._seconds[kind] += seconds
        self._counts[kind] += 1

    def report(self) -> list[str]:
        """A line per kind, the slowest first."""
        total = sum(self._seconds.values()) or 1.0
        rows = sorted(self._seconds.items(), key=lambda row: -row[1])
        return [
            f"{self._title} {seconds * 1e3:9.2f} ms {seconds / total:6.1%} "
            f"{self._counts[kind]:7d} x {kind}"
            for kind, seconds in rows
        ]


@cache
def _logger() -> logging.Logger:
    logger = logging.getLogger("edgerun.trace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("edgerun: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger
