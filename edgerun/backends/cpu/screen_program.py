"""The native side of a screen: scores of all rows, exact values of chosen ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import Head
from edgerun.backends.cpu.executable import CpuExecutable
from edgerun.backends.cpu.screen_weights import Bound, Screen
from edgerun.graph.ir import Constant, Graph, Node
from edgerun.kernels.program import Program, ThreadTeam
from edgerun.kernels.registry import instruction
from edgerun.state import Batch, KVCache

F32 = NDArray[np.float32]

SCORES = "scores"
STEP = 16  # chosen rows a chunk
CHECKED = 256  # rows compared when a screen is made


def screen_graph(screen: Screen) -> Graph:
    """The scores as a graph: ``scores = coarse @ x + detail @ z``."""
    rounded = {"activations": "int8_block"}
    constants: dict[str, Constant] = {"coarse": screen.coarse}
    nodes = [Node("linear", "screen/coarse", ("x", "coarse"), (SCORES,), rounded)]
    if screen.detail is not None:
        constants["detail"] = screen.detail
        nodes = [
            Node("linear", "screen/coarse", ("x", "coarse"), ("rough",), rounded),
            Node("linear", "screen/detail", ("z", "detail", "", "rough"), (SCORES,), rounded),
        ]
    return Graph(nodes, ["x", "z"][: len(nodes)], [SCORES], constants)


class ScreenProgram:
    """A screen bound to kernels.

    Attributes:
        bound: of the scores.
        rows: of the head.
        chosen: rows that the last call of ``make_exact`` computed.
    """

    def __init__(
        self, bound: Bound, head: Head, scan: CpuExecutable, team: ThreadTeam, isa: str
    ) -> None:
        """Takes the program of ``screen_graph``."""
        self.bound = bound
        self.rows = head.weight.shape[0]
        self.chosen = 0
        self._scan, self._team = scan, team
        self._batch = Batch.of([0], 0, 0, logits="none")
        self._scores: F32 = scan.output(SCORES)
        self._reach = np.empty(self.rows, np.float32)
        self._index = np.zeros(self.rows, np.int32)
        self._count = np.zeros(1, np.int64)
        stream = head.stream
        fields = dict(zip(head.instruction.fields, head.instruction.arguments, strict=True))
        shared = ("codes", "scales", "tiles", "x", "x_scale", "x_sum", "blocks")
        step = instruction(
            "linear_chosen",
            params={"bits": 8, "lanes": stream.lanes, "block": stream.block, "isa": isa},
            fields={
                **{name: int(fields[name]) for name in shared},
                "count": self._count.ctypes.data,
                "index": self._index.ctypes.data,
                "out": self._scores.ctypes.data,
                "step": STEP,
            },
            chunks=(0, 1, STEP),
            reads=set(),
            writes=set(),
        )
        self._exact = Program([step], [head, scan, self._index, self._count])

    def scores(self, x: F32, z: F32, cache: KVCache) -> F32:
        """Scores of a state ``[K]`` and its projections ``[m]``, float32 ``[N]``, reused later."""
        values = {"x": x[None], "z": z[None]}
        self._scan(self._batch, cache, values)
        return self._scores

    def possible(self, reach: float, threshold: float) -> NDArray[np.int64]:
        """Rows whose score and bound reach a threshold."""
        np.multiply(self.bound.spread, np.float32(reach), out=self._reach)
        self._reach += self._scores
        return np.flatnonzero(self._reach >= threshold)

    def make_exact(self, rows: NDArray[np.int64]) -> None:
        """Replaces the scores of some rows by the head's values for the current state."""
        self.chosen = self._count[0] = self._exact.frame[0] = len(rows)
        self._index[: len(rows)] = rows
        self._team.run(self._exact)

    def agrees(self, exact: F32) -> bool:
        """Whether ``make_exact`` gives the bits of the full head for the current state."""
        rows = np.linspace(0, self.rows - 1, min(CHECKED, self.rows)).astype(np.int64)
        self.make_exact(rows)
        return bool((self._scores[rows].view(np.int32) == exact[rows].view(np.int32)).all())
