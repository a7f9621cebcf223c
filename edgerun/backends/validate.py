"""Checks a back-end while it runs (``EDGERUN_VALIDATE=1``): names the first node that diverges.

The segment is compiled so that every value comes out. Each node is then computed again by its
NumPy definition, from the inputs that the back-end itself produced, so that an error is blamed
on the node that makes it and not on those that pass it on.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Shape,
    Values,
)
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.ops.base import IDS, POSITIONS
from edgerun.ops.registry import OPS
from edgerun.state import Batch, KVCache

# Of the range of the expected values. Rounding to int8 may turn the other way on a tie, which
# moves one activation by one step of 1/127.
TOLERANCE = 5e-3


class ValidatingExecutable(Executable):
    """Runs a segment on a back-end and checks every node against its definition."""

    def __init__(
        self, backend: Backend, segment: Graph, shape: Shape, options: CompileOptions
    ) -> None:
        """Compiles the segment with all values as outputs."""
        made = [output for node in segment.nodes for output in node.outputs]
        self._name = backend.name
        self._segment = segment
        self._inner = backend.compile(replace(segment, outputs=made), shape, options)

    def __call__(self, batch: Batch, cache: KVCache, values: Values = NO_VALUES) -> Values:
        """Runs and checks the batch; see ``Executable``.

        Raises:
            BackendError: a node's output differs from its definition.
        """
        before = copy.copy(cache)
        for pool in ("keys", "values", "key_scales", "value_scales"):
            setattr(before, pool, getattr(cache, pool).copy())
        found = self._inner(batch, cache, values)
        known: dict[str, Any] = {
            **self._segment.constants,
            **values,
            **found,
            IDS: batch.ids,
            POSITIONS: batch.positions,
        }
        for node in self._segment.nodes:
            inputs = [known.get(name) for name in node.inputs]
            expected = OPS[node.op].evaluate(inputs, node.attrs, batch, before)
            for name, value in zip(node.outputs, expected, strict=True):
                self._compare(node, found[name], value)
        return {name: found[name] for name in self._segment.outputs}

    def close(self) -> None:
        """Closes the checked executable."""
        self._inner.close()

    def _compare(self, node: Node, found: Any, expected: Any) -> None:
        if expected.size == 0:
            return
        spread = float(expected.max() - expected.min()) or 1.0
        error = float(np.abs(found - expected).max()) / spread
        if not error <= TOLERANCE:
            raise BackendError(
                f"back-end '{self._name}' diverges first at node '{node.name}' ({node.op}): "
                f"error {error:.2g} of the value range, allowed is {TOLERANCE}"
            )
