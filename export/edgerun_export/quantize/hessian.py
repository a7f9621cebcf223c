"""How the inputs of a matrix hang together, in the memory of one square matrix."""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from edgerun_export.quantize.factor import (
    inverse_factor,
    multiply_upper,
    multiply_upper_transposed,
    put_upper,
)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
DAMPING = 0.01  # of the mean of the diagonal, as GPTQ has it
_GROWTH = 10.0  # of the damping where that was too little
_STRIP = 512  # rows that are multiplied at a time
_PANEL = 128  # rows that are put in order at a time


class Hessian:
    """The mean products H of any two inputs, with a little on the diagonal.

    H lies below the diagonal of a matrix. Above it is what GPTQ rounds by, as soon as somebody
    asks for it: the triangle U with ``UᵀU = H⁻¹``, columns and rows in ``order``. So both take
    the memory of one.

    Args:
        products: float64 ``[K, K]``, of which what is below the diagonal and on it is read; it is
            taken over.
        damping: what is added to the diagonal, relative to its mean.

    Attributes:
        diagonal: of H with what is added, float64 ``[K]``.
        added: to the diagonal.
        was_singular: whether more was added than ``damping`` says, because H had no U.
    """

    def __init__(self, products: F64, damping: float = DAMPING) -> None:
        self._matrix = products
        self.diagonal: F64 = products.diagonal().copy()
        mean = float(self.diagonal.mean())
        self.added = damping * mean if mean > 0 else 1.0
        self.diagonal += self.added
        self.was_singular = False
        self._lock = Lock()
        self._is_factored = False

    def __len__(self) -> int:
        return len(self.diagonal)

    @property
    def importance(self) -> F64:
        """The diagonal, relative to its mean."""
        relative: F64 = self.diagonal / self.diagonal.mean()
        return relative

    @property
    def order(self) -> NDArray[np.int64]:
        """Columns in descending order of the diagonal."""
        return np.argsort(-self.diagonal, kind="stable")

    def factor(self) -> F64:
        """U in the upper triangle of ``[K, K]``, in ``order``; what is below is something else.

        Made when it is first asked for. A Hessian that is not positive definite, in spite of what
        is on its diagonal, gets ten times as much there until it is.

        Raises:
            numpy.linalg.LinAlgError: it holds an infinity or no number.
        """
        if not np.isfinite(self.diagonal).all():
            raise np.linalg.LinAlgError("products of inputs are infinite or no number")
        with self._lock:
            while not self._is_factored:
                self._fill_upper()
                try:
                    inverse_factor(self._matrix)
                    self._is_factored = True
                except np.linalg.LinAlgError:
                    self.was_singular = True
                    more = max(self.added, np.finfo(float).eps * self.diagonal.mean()) * _GROWTH
                    self.diagonal += more - self.added
                    self.added = more
        return self._matrix

    def product(self, values: F64) -> F64:
        """``H values`` of ``[K, n]``."""
        out = np.empty_like(values)
        for start in range(0, len(self), _STRIP):
            stop = min(start + _STRIP, len(self))
            left = self._matrix[start:stop, :start]
            out[start:stop] = self.corner(start, stop) @ values[start:stop]
            out[start:stop] += left @ values[:start]
            out[:start] += left.T @ values[start:stop]
        return out

    def corner(self, start: int, stop: int) -> F64:
        """Rows and columns from ``start`` to ``stop``."""
        below: F64 = np.tril(self._matrix[start:stop, start:stop], -1)
        below += below.T
        below[np.diag_indices_from(below)] = self.diagonal[start:stop]
        return below

    def spread(self, start: int, changes: F64, out: F64) -> None:
        """Adds ``H[:, start : start + n] changes`` of ``[n, m]`` to ``[K, m]``."""
        stop = start + len(changes)
        out[:start] += self._matrix[start:stop, :start].T @ changes
        out[start:stop] += self.corner(start, stop) @ changes
        out[stop:] += self._matrix[stop:, start:stop] @ changes

    def reach(self, start: int, values: F64) -> F64:
        """``values H[start : start + n, : start + n]`` of ``[m, n]``."""
        stop = start + values.shape[1]
        out = np.empty((len(values), stop))
        np.matmul(values, self._matrix[start:stop, :start], out=out[:, :start])
        np.matmul(values, self.corner(start, stop), out=out[:, start:])
        return out

    def solve(self, values: F64) -> F64:
        """``values H⁻¹`` of ``[n, K]``."""
        factor, order = self.factor(), self.order
        turned = np.ascontiguousarray(values.T[order])
        multiply_upper(factor, turned)
        multiply_upper_transposed(factor, turned)
        out = np.empty_like(values)
        out[:, order] = turned.T
        return out

    def error(self, difference: F32 | F64) -> float:
        """Mean squared error of outputs if weights ``[n, K]`` differ so; nothing is added to H."""
        total = 0.0
        step = max(1, (1 << 21) // len(self))
        for start in range(0, len(difference), step):
            part = difference[start : start + step].T.astype(np.float64)
            total += float(np.einsum("kn,kn->", part, self.product(part) - self.added * part))
        return total

    def whole(self) -> F64:
        """H with what is added, symmetric ``[K, K]``; a copy."""
        return self.corner(0, len(self))

    def _fill_upper(self) -> None:
        """Puts H above the diagonal, in ``order``."""
        order = self.order
        for start in range(0, len(self), _PANEL):
            stop = min(start + _PANEL, len(self))
            rows, columns = order[start:stop, None], order[start:]
            block = self._matrix[np.maximum(rows, columns), np.minimum(rows, columns)]
            block[np.diag_indices(stop - start)] = self.diagonal[order[start:stop]]
            put_upper(self._matrix[start:stop, start:stop], block[:, : stop - start])
            self._matrix[start:stop, stop:] = block[:, stop - start :]
