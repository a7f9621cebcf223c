"""Threads whose number decides about nothing but time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from edgerun.errors import MissingDependencyError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """Threads that compute with NumPy, whose matrix products use one core each.

    Args:
        threads: how many.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> Workers:
        self._limits = single_threaded()
        self._limits.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        self._limits.__exit__(kind, error, trace)

    def in_order(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Results in the order of the items, as many at work as there are threads."""
        waiting: deque[Future[Result]] = deque()
        for item in items:
            if len(waiting) == self.threads:
                yield waiting.popleft().result()
            waiting.append(self._pool.submit(_quietly, function, item))
        while waiting:
            yield waiting.popleft().result()

    def each(self, function: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Calls a function for its effects."""
        for _ in self.in_order(function, items):
            pass


def single_threaded() -> AbstractContextManager[Any]:
    """While it lasts, matrix products of NumPy are the same on any number of cores.

    Raises:
        MissingDependencyError: threadpoolctl is not installed.
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            "running a checkpoint's layers needs threadpoolctl: pip install 'edgerun[export]'"
        ) from error
    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits


def _quietly(function: Callable[[Item], Result], item: Item) -> Result:
    """Calls without NumPy's warnings; what is no number is looked for."""
    with np.errstate(all="ignore"):
        return function(item)
