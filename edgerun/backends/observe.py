"""Looks at every value that a back-end computes, to show or to check it.

The segment is compiled so that every value comes out. To be checked (``EDGERUN_VALIDATE=1``), each
node is computed again by its NumPy definition, from the inputs that the back-end itself produced:
an error is blamed on the node that makes it and not on those that pass it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgerun import trace
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
from edgerun.state import Batch, SequenceStore

# Of the range of the expected values. Rounding to int8 may turn the other way on a tie, which
# moves one activation by one step of 1/127.
TOLERANCE = 5e-3


class ObservedExecutable(Executable):
    """Runs a segment on a back-end and looks at the outputs of every node."""

    def __init__(
        self,
        backend: Backend,
        segment: Graph,
        shape: Shape,
        options: CompileOptions,
        *,
        checks: bool,
        shows: bool = False,
    ) -> None:
        """Compiles the segment.

        Args:
            backend: runs it.
            segment: see ``Backend.compile``, as for the next two.
            shape: of its batches.
            options: to compile with.
            checks: compare every node with its definition.
            shows: log a line for every value.
        """
        outputs = [output for node in segment.nodes for output in node.outputs]
        self._name = backend.name
        self._title = f"{shape.phase.value} {backend.name}"
        self._segment = segment
        self._checks = checks
        self._shows = shows
        self._inner = backend.compile(replace(segment, outputs=outputs), shape, options)

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs and looks at the batch; see ``Executable``.

        Raises:
            BackendError: a node's output differs from its definition.
        """
        before = cache.copied() if self._checks else cache
        outputs = self._inner(batch, cache, values)
        value_of: dict[str, Any] = {
            **self._segment.constants,
            **values,
            **outputs,
            IDS: batch.ids,
            POSITIONS: batch.positions,
        }
        for node in self._segment.nodes:
            if self._shows:
                self._show(node, outputs)
            if self._checks:
                self._check(node, value_of, batch, before)
        return {name: outputs[name] for name in self._segment.outputs}

    def close(self) -> None:
        """Closes the observed executable."""
        self._inner.close()

    def _show(self, node: Node, outputs: Values) -> None:
        for name in node.outputs:
            line = trace.value_line(node.name, outputs[name])
            trace.say(trace.SHAPES, f"{self._title} {node.op} {line}")

    def _check(
        self, node: Node, value_of: Mapping[str, Any], batch: Batch, before: SequenceStore
    ) -> None:
        inputs = [value_of.get(name) for name in node.inputs]
        with np.errstate(over="ignore", invalid="ignore"):
            values = OPS[node.op].evaluate(inputs, node.attrs, batch, before)
        for name, value in zip(node.outputs, values, strict=True):
            if value.size == 0:
                continue
            if not np.isfinite(value).all():
                raise BackendError(
                    f"the output of node '{node.name}' ({node.op}) is infinite or no number by its "
                    "definition, too: the weights that it reads are damaged"
                )
            spread = float(value.max() - value.min()) or 1.0
            error = float(np.abs(value_of[name] - value).max()) / spread
            if not error <= TOLERANCE:
                raise BackendError(
                    f"back-end '{self._name}' diverges first at node '{node.name}' ({node.op}): "
                    f"error {error:.2g} of the value range, allowed is {TOLERANCE}"
                )
