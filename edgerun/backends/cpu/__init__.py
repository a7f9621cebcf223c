"""The CPU back-end: one native program per phase, made of Numba kernels."""

from __future__ import annotations

from functools import cache

import numpy as np

from edgerun.backends.base import CompileOptions, Executable, Phase, Support
from edgerun.env import settings, usable_cores
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.profile import known_bandwidth

NOMINAL_BANDWIDTH = 10e9  # bytes a second, where the machine profile knows none
NOMINAL_MACS = 50e9  # int8 multiply-adds a second
OVERHEAD_SECONDS = 2e-6
MIN_BLOCK, MAX_BLOCK = 16, 256
OPS = ("embedding", "rms_norm", "linear", "rotary", "attention", "gate", "add", "select_rows")


class CpuBackend:
    """Runs every op of the schema natively, with few limits on shapes."""

    name = "cpu"
    whole_graph = False

    def __init__(self) -> None:
        self._shared: _Shared | None = None

    def probe(self) -> Support:
        """Needs Numba, which is a dependency, and an instruction set it can use."""
        from edgerun.kernels.isa import selected_isa

        return Support(True, selected_isa())

    def supports(self, graph: Graph, node: Node, phase: Phase) -> Support:
        """Whether there is a kernel for the node's op, format and shape."""
        if node.op not in OPS:
            return Support(False, f"no kernel for '{node.op}'")
        if node.op == "linear":
            return _supports_linear(graph, node)
        if node.op in ("attention", "rotary") and node.attrs["head_dim"] % 2:
            return Support(False, f"head_dim {node.attrs['head_dim']} is odd")
        return Support(True)

    def cost(self, graph: Graph, node: Node, phase: Phase, rows: int) -> float:
        """The larger of the times to stream the weights and to multiply."""
        if node.op != "linear":
            return OVERHEAD_SECONDS * (1 + rows / 16)
        weight = graph.constants[node.inputs[1]]
        multiply = float(np.prod(weight.shape)) * rows / NOMINAL_MACS
        return max(weight.nbytes / _bandwidth(), multiply) + OVERHEAD_SECONDS

    def compile(self, segment: Graph, phase: Phase, options: CompileOptions) -> Executable:
        """Binds the segment to kernels."""
        from edgerun.backends.cpu.binder import ROWS, Binder
        from edgerun.backends.cpu.emit import EMITTERS
        from edgerun.backends.cpu.executable import CpuExecutable

        shared = self._shared_state(options.threads)
        binder = Binder(segment, options, shared.weights, shared.isa)
        for name in segment.inputs:
            binder.new(name, _width(segment, name), ROWS)
        for index, node in enumerate(segment.nodes):
            EMITTERS[node.op](binder, node, index)
            binder.release(index)
        return CpuExecutable(binder, shared.team)

    def close(self) -> None:
        """Ends the worker threads; the executables must not be called after it."""
        if self._shared is not None:
            self._shared.team.close()
            self._shared = None

    def _shared_state(self, threads: int) -> _Shared:
        if self._shared is None:
            self._shared = _Shared(threads)
        return self._shared


class _Shared:
    """What the programs of all phases share: prepared weights and threads."""

    def __init__(self, threads: int) -> None:
        from edgerun.backends.cpu.weights import WeightStore
        from edgerun.kernels.isa import selected_isa
        from edgerun.kernels.program import ThreadTeam

        self.isa = selected_isa()
        self.weights = WeightStore(self.isa)
        self.team = ThreadTeam(threads)


@cache
def _bandwidth() -> float:
    threads = settings().threads or usable_cores()
    return known_bandwidth(threads) or NOMINAL_BANDWIDTH


def _supports_linear(graph: Graph, node: Node) -> Support:
    weight = graph.constants[node.inputs[1]]
    if not isinstance(weight, PackedWeight):
        return Support(True)
    if weight.zeros is not None:
        return Support(False, "weights with stored zero points")
    if not MIN_BLOCK <= weight.block <= MAX_BLOCK or weight.block & (weight.block - 1):
        return Support(False, f"blocks of {weight.block} weights")
    return Support(True)


def _width(segment: Graph, name: str) -> int:
    """Width of a value that comes from outside, from the first node that says it."""
    for node in segment.nodes:
        if name in node.inputs[:1] and node.op == "linear":
            return int(segment.constants[node.inputs[1]].shape[1])
        if name in node.inputs[:1] and node.op == "rms_norm":
            return int(segment.array(node.inputs[1]).shape[0])
        if name in node.inputs[3:] and node.op == "linear":
            return int(segment.constants[node.inputs[1]].shape[0])
        if name in node.inputs and node.op == "attention":
            heads = "num_heads" if name == node.inputs[0] else "num_kv_heads"
            return int(node.attrs[heads] * node.attrs["head_dim"])
    raise KeyError(name)


def make() -> CpuBackend:
    """Makes the back-end."""
    return CpuBackend()
