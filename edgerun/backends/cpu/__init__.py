"""The CPU back-end: one native program per phase, made of Numba kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgerun.backends.base import CompileOptions, Executable, Phase, Support
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.kernels.host.cores import worker_threads
from edgerun.machine.profile import CALIBRATE, MachineProfile, absence, machine_profile

if TYPE_CHECKING:
    from edgerun.backends.cpu.binder import Binder
    from edgerun.backends.cpu.weights import WeightStore
    from edgerun.kernels.isa import Isa

MIN_BLOCK, MAX_BLOCK = 16, 256
MAX_HEAD_DIM, MAX_GROUP, MAX_QUERIES = 1024, 128, 16384
OPS = ("embedding", "rms_norm", "linear", "rotary", "attention", "gate", "add", "select_rows")


class CpuBackend:
    """Runs every op of the schema natively, with few limits on shapes."""

    name = "cpu"
    whole_graph = False

    def __init__(self) -> None:
        self._shared: _Shared | None = None
        self._threads: int | None = None
        self._trits = False

    def probe(self) -> Support:
        """Needs Numba, which is a dependency, and an instruction set it can use."""
        from edgerun.kernels.isa import selected_isa

        return Support(True, selected_isa().name)

    def supports(self, graph: Graph, node: Node, phase: Phase) -> Support:
        """Whether there is a kernel for the node's op, format and shape."""
        if node.op not in OPS:
            return Support(False, f"no kernel for '{node.op}'")
        if node.op == "linear":
            return _supports_linear(graph, node)
        if node.op in ("attention", "rotary") and node.attrs["head_dim"] % 2:
            return Support(False, f"head_dim {node.attrs['head_dim']} is odd")
        if node.op == "attention":
            return _supports_attention(node)
        return Support(True)

    def expect(self, threads: int, trits: bool) -> None:
        """Lets estimates count with so many threads, and ternary weights of 1.6 bits."""
        self._threads, self._trits = threads, trits

    def cost(self, graph: Graph, node: Node, phase: Phase, rows: int) -> float:
        """The larger of the times to stream the weights and to multiply, and what starting costs.

        Bytes and speed are those of the weights as they will lie in memory. Speeds come from the
        machine profile if it is complete, and are all nominal if not.
        """
        from edgerun.backends.cpu.families import family_of, weight_bytes

        profile, threads = machine_profile().for_planning(), worker_threads(self._threads)
        start = profile.instruction_s(threads)
        if node.op != "linear":
            return start * (1 + rows / 16)
        weight, activations = graph.constants[node.inputs[1]], node.attrs["activations"]
        rate = profile.rate(family_of(weight, activations, trits=self._trits), rows)
        multiply = math.prod(weight.shape) * rows / (rate * threads / profile.threads)
        read = weight_bytes(weight, activations, trits=self._trits) / profile.read_speed(threads)
        return max(read, multiply) + start

    def cost_basis(self) -> str:
        """Says what the estimates of ``cost`` stand on."""
        return basis(machine_profile(), worker_threads(self._threads))

    def compile(self, segment: Graph, phase: Phase, options: CompileOptions) -> Executable:
        """Binds the segment to kernels."""
        from edgerun.backends.cpu.executable import CpuExecutable

        shared = self._shared_state(options)
        binder = _bind(segment, options, shared.weights, shared.isa)
        shared.weights.rest()
        return CpuExecutable(binder, shared.team)

    def close(self) -> None:
        """Ends the worker threads; the executables must not be called after it."""
        if self._shared is not None:
            self._shared.team.close()
            self._shared = None

    def _shared_state(self, options: CompileOptions) -> _Shared:
        if self._shared is None:
            self._shared = _Shared(options.threads, options.trits)
        return self._shared


class _Shared:
    """What the programs of all phases share: prepared weights and threads."""

    def __init__(self, threads: int, trits: bool) -> None:
        from edgerun.backends.cpu.weights import WeightStore
        from edgerun.kernels.isa import selected_isa
        from edgerun.kernels.run.program import ThreadTeam

        self.isa = selected_isa()
        self.weights = WeightStore(self.isa, trits=trits)
        self.team = ThreadTeam(threads)


def basis(profile: MachineProfile, threads: int) -> str:
    """What estimates with a profile stand on, in a line."""
    if not profile.complete:
        return f"nominal speeds; {absence() or f'{CALIBRATE} those of this machine'}"
    speed = f"memory measured {profile.measured}, {profile.read_speed(threads) / 1e9:.1f} GB/s"
    peak = max(max(by_rows.values()) for by_rows in profile.rates.values())
    return f"{speed}; multiplication measured, up to {peak / 1e9:.0f} G multiply-adds/s"


def _supports_attention(node: Node) -> Support:
    """The queries that share a key head lie on the stack of a thread."""
    head_dim = node.attrs["head_dim"]
    group = node.attrs["num_heads"] // node.attrs["num_kv_heads"]
    if head_dim > MAX_HEAD_DIM or group > MAX_GROUP or group * head_dim > MAX_QUERIES:
        return Support(False, f"{group} query heads of {head_dim} elements to a key head")
    return Support(True)


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
    """Width of a value that comes from outside, from the first node that says it.

    For graphs that were not cut from another one, which would know it.
    """
    for node in segment.nodes:
        if name in node.inputs[:1] and node.op == "linear":
            return int(segment.constants[node.inputs[1]].shape[1])
        if name in node.inputs[:1] and node.op == "rms_norm":
            return int(segment.array(node.inputs[1]).shape[0])
        if name in node.inputs[3:] and node.op == "linear":
            return int(segment.constants[node.inputs[1]].shape[0])
        if name in node.inputs and node.op == "select_rows":
            return _width(segment, node.outputs[0])
        if name in node.inputs and node.op == "attention":
            heads = "num_heads" if name == node.inputs[0] else "num_kv_heads"
            return int(node.attrs[heads] * node.attrs["head_dim"])
    raise KeyError(name)


def _bind(segment: Graph, options: CompileOptions, weights: WeightStore, isa: Isa) -> Binder:
    """Binds every node of a segment."""
    from edgerun.backends.cpu.binder import LOGIT_ROWS, ROWS, Binder
    from edgerun.backends.cpu.emit.ops import EMITTERS

    binder = Binder(segment, options, weights, isa)
    for name in segment.inputs:
        shape = segment.shapes.get(name) or ValueShape(_width(segment, name))
        binder.new(name, shape.width, LOGIT_ROWS if shape.selected else ROWS)
    for index, node in enumerate(segment.nodes):
        EMITTERS[node.op](binder, node, index)
        binder.release(index)
    return binder


def make() -> CpuBackend:
    """Makes the back-end."""
    return CpuBackend()
