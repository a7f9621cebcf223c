"""The contract of a drafter: it guesses the next ids of a text, and may be wrong.

A guess that is right saves a call of the model, a wrong one costs a row of a call, and neither
changes what is chosen. To add a drafter, write a file with a ``DRAFTER``, a class without
arguments, into this folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Draft(NamedTuple):
    """A guess.

    Attributes:
        ids: the next ones, the first of them first.
        evidence: what speaks for it: what becomes of drafts is counted for each number of it.
        likelihood: of each id to be right if all before it are, before anything was counted.
    """

    ids: list[int]
    evidence: int
    likelihood: float


class Drafter(ABC):
    """Guesses for one text, whose ids it sees each time; they only ever grow at the end."""

    @abstractmethod
    def draft(self, ids: list[int], most: int) -> Draft | None:
        """Guesses up to ``most`` ids, at least one, or None.

        Whatever it raises ends all drafts, and no reply.

        Args:
            ids: of the text so far; not to be changed.
            most: at least 1.
        """
