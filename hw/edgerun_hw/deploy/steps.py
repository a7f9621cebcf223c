"""Steps as data: what is done, in which order, and what takes it back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerun.errors import EdgerunError


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: one word or two, for a list that is being worked through.
        describe: a sentence, for ``--dry-run``.
        do: does it; what it returns is shown behind the name.
        undo: takes this step and all after it back; None where there is nothing to take back.
        changes_board: whether ``--dry-run`` leaves it out.
    """

    name: str
    describe: str
    do: Callable[[], str]
    undo: Callable[[], None] | None = None
    changes_board: bool = True


def run(
    steps: Sequence[Step],
    show: Callable[[Step, str | None], None],
    is_done: Callable[[], bool] = lambda: False,
) -> None:
    """Does the steps in order; when one fails, takes back those before it, last one first.

    Args:
        steps: what to do.
        show: called with a step and None before it, and with what it returned after it.
        is_done: whether the steps that are left have nothing to do.
    """
    completed: list[Step] = []
    try:
        for step in steps:
            if is_done():
                break
            show(step, None)
            result = step.do()
            completed.append(step)
            show(step, result)
    except BaseException:  # Ctrl-C included
        for step in reversed(completed):
            if step.undo is not None:
                # The board takes back on its own as well; the first error is the one to report.
                with contextlib.suppress(EdgerunError):
                    step.undo()
        raise
