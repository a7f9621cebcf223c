"""How deep JSON may be nested: what is written again is walked through by calls of calls."""

from __future__ import annotations

from typing import Any

from edgerun.errors import CheckpointError

_MAX_DEPTH = 100  # ten times what any file of a model has; Python's calls end at about 300


def check_nesting(value: Any, what: str) -> None:
    """Refuses objects and lists that are nested deeper than any model's.

    Args:
        value: as JSON is decoded.
        what: how to call it in an error, usually the file name.

    Raises:
        CheckpointError: it is.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return
    raise CheckpointError(
        f"'{what}' is nested more than {_MAX_DEPTH} levels deep, as no model's is; it is damaged"
    )


def _parts(value: Any) -> list[Any]:
    """What may be nested further in it."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]
