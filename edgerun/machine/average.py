"""A moving average of what is measured while something runs."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 64  # values that it goes back


@dataclass(slots=True)
class Average:
    """A moving average.

    Attributes:
        value: 0 without values.
        count: of values so far.
    """

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Takes a value; the first ones count alike."""
        self.count += 1
        self.value += (value - self.value) / min(self.count, MEMORY)
