"""Shows what flows between the nodes of any back-end (``EDGERUN_DEBUG`` 3 and 4)."""

from __future__ import annotations

from dataclasses import replace

from edgerun import trace
from edgerun.backends.base import NO_VALUES, Backend, CompileOptions, Executable, Shape, Values
from edgerun.graph.ir import Graph
from edgerun.state import Batch, KVCache


class WatchingExecutable(Executable):
    """Runs a segment with all values as outputs, and logs a line for each."""

    def __init__(
        self, backend: Backend, segment: Graph, shape: Shape, options: CompileOptions
    ) -> None:
        """Compiles the segment."""
        made = [output for node in segment.nodes for output in node.outputs]
        self._segment = segment
        self._title = f"{shape.phase.value} {backend.name}"
        self._inner = backend.compile(replace(segment, outputs=made), shape, options)

    def __call__(self, batch: Batch, cache: KVCache, values: Values = NO_VALUES) -> Values:
        """Runs and shows the batch; see ``Executable``."""
        found = self._inner(batch, cache, values)
        for node in self._segment.nodes:
            for output in node.outputs:
                line = trace.value_line(node.name, found[output])
                trace.say(trace.SHAPES, f"{self._title} {node.op} {line}")
        return {name: found[name] for name in self._segment.outputs}

    def close(self) -> None:
        """Closes the watched executable."""
        self._inner.close()
