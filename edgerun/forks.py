"""What a forked child puts right: of its parent's threads it has only the one that forked.

Locks that others held would stay taken, and what others were about to do would never be done.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_forked_child(function: Callable[[], object]) -> None:
    """Has a function called in every forked child before ``os.fork`` returns, if there are forks.

    Functions are called in the order in which they were given; none is ever taken back.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def each_in_forked_child(function: Callable[[T], object]) -> weakref.WeakSet[T]:
    """A set of objects, for each of which every forked child calls a function if it still lives."""
    objects: weakref.WeakSet[T] = weakref.WeakSet()

    def call() -> None:
        for each in list(objects):
            function(each)

    in_forked_child(call)
    return objects
