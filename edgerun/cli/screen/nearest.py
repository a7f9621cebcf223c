"""What somebody may have meant who wrote a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable

BEGINNING = 3  # letters that a name is recognised by


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that a slip of the fingers or a shortening makes ``name`` of; None if none is near.

    One letter in four may be wrong, and one in any case. Dashes in front count for nothing.

    Example:
        >>> nearest("--modle", ["--model", "--system"])
        '--model'
        >>> nearest("--verbose", ["--dry-base"]) is None
        True
    """
    typed = name.lstrip("-")
    by_letters = {each.lstrip("-"): each for each in names}
    for letters, each in by_letters.items():
        if len(typed) >= BEGINNING and letters.startswith(typed):
            return each
    slips = {each: _slips(typed, letters) for letters, each in by_letters.items()}
    best = min(slips, key=slips.__getitem__, default=None)
    if best is None or slips[best] > max(1, len(typed) // 4) or slips[best] >= len(typed):
        return None
    return best


def _slips(here: str, there: str) -> int:
    """Letters left out, added, replaced or in each other's place: optimal string alignment."""
    before: list[int] = []
    last = list(range(len(there) + 1))
    for row, letter in enumerate(here, 1):
        line = [row]
        for column, other in enumerate(there, 1):
            cost = min(last[column] + 1, line[column - 1] + 1, last[column - 1] + (letter != other))
            if row > 1 and column > 1 and here[row - 2 : row] == other + there[column - 2]:
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        before, last = last, line
    return last[-1]
