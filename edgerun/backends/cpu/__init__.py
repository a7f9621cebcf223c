"""The CPU back-end: one native program per shape of batches, made of Numba kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Backend, CompileOptions, Executable, Shape, Support
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.kernels.host.cores import worker_threads
from edgerun.machine.profile import CALIBRATE, MachineProfile, absence, machine_profile

if TYPE_CHECKING:
    from edgerun.backends.cpu.binder import Binder

MIN_BLOCK, MAX_BLOCK = 16, 256
HALF_BYTES = 2  # of an element of the cache in half precision, the usual storage
ATTENTION_FAMILY = "float/float32"  # attention multiplies float32 with float32
MAX_HEAD_DIM, MAX_GROUP, MAX_QUERIES = 1024, 128, 16384
OPS = ("embedding", "rms_norm", "linear", "rotary", "attention", "gate", "add", "select_rows")


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """What the caller may choose about this back-end.

    Attributes:
        threads: worker threads.
        trits: whether ternary weights lie in memory at 1.6 bits where that is possible.
    """

    threads: int
    trits: bool = False


class CpuBackend(Backend):
    """Runs every op of the schema natively, with few limits on shapes."""

    name = "cpu"

    def __init__(self) -> None:
        self._shared: _Shared | None = None
        self.configure({})

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes the number of threads and how ternary weights are packed."""
        threads = given.get("threads") or worker_threads(None)
        self._options = CpuOptions(threads, given.get("pack") == "trits")

    def probe(self) -> Support:
        """Needs Numba, which is a dependency, and an instruction set it can use."""
        from edgerun.kernels.isa import selected_isa

        return Support(True, selected_isa().name)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
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

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """The larger of the times to stream the weights and to multiply, and what starting costs.

        Bytes and speed are those of the weights as they will lie in memory. Speeds come from the
        machine profile if it is complete, and are all nominal if not.
        """
        from edgerun.backends.cpu.families import family_of

        profile, threads = machine_profile().for_planning(), self._options.threads
        start, rows = profile.instruction_s(threads), shape.rows
        if node.op == "attention":
            return start + _attention_seconds(node, shape, profile, threads)
        if node.op != "linear":
            return start * (1 + rows / 16)
        weight, activations = graph.constants[node.inputs[1]], node.attrs["activations"]
        rate = profile.rate(family_of(weight, activations, trits=self._options.trits), rows)
        multiply = math.prod(weight.shape) * rows / (rate * threads / profile.threads)
        read = self.weight_bytes(graph, node, node.inputs[1]) / profile.read_speed(threads)
        return max(read, multiply) + start

    def cost_basis(self) -> str:
        """Says what the estimates of ``cost`` stand on."""
        return basis(machine_profile(), self._options.threads)

    def weight_bytes(self, graph: Graph, node: Node, name: str) -> int:
        """Bytes of a constant as kernels will stream it."""
        from edgerun.backends.cpu.families import weight_bytes

        activations = str(node.attrs.get("activations", ""))
        return weight_bytes(graph.constants[name], activations, trits=self._options.trits)

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Binds the segment to kernels."""
        from edgerun.backends.cpu.executable import CpuExecutable

        if self._shared is None:
            self._shared = _Shared(self._options)
        shared = self._shared
        binder = _bind(segment, shape, options, shared)
        shared.weights.rest()
        return CpuExecutable(binder, shared.team)

    def close(self) -> None:
        """Ends the worker threads; the executables must not be called after it."""
        if self._shared is not None:
            self._shared.team.close()
            self._shared = None


class _Shared:
    """What the programs of all shapes share: prepared weights and threads."""

    def __init__(self, options: CpuOptions) -> None:
        from edgerun.backends.cpu.weights import WeightStore
        from edgerun.kernels.isa import selected_isa
        from edgerun.kernels.run.program import ThreadTeam

        self.isa, self.threads = selected_isa(), options.threads
        self.weights = WeightStore(self.isa, trits=options.trits)
        self.team = ThreadTeam(options.threads)


def basis(profile: MachineProfile, threads: int) -> str:
    """What estimates with a profile stand on, in a line."""
    if not profile.complete:
        return f"nominal speeds; {absence() or f'{CALIBRATE} those of this machine'}"
    speed = f"memory measured {profile.measured}, {profile.read_speed(threads) / 1e9:.1f} GB/s"
    peak = max(max(by_rows.values()) for by_rows in profile.rates.values())
    return f"{speed}; multiplication measured, up to {peak / 1e9:.0f} G multiply-adds/s"


def _attention_seconds(node: Node, shape: Shape, profile: MachineProfile, threads: int) -> float:
    """The larger of the times to read keys and values and to multiply with them."""
    head_dim, seen = node.attrs["head_dim"], shape.cached + shape.rows
    if window := node.attrs["window"]:
        seen = min(seen, window)
    read = 2 * HALF_BYTES * head_dim * node.attrs["num_kv_heads"] * seen
    rate = profile.rate(ATTENTION_FAMILY, shape.rows) * threads / profile.threads
    multiply = 2 * head_dim * node.attrs["num_heads"] * seen * shape.rows
    return float(max(read / profile.read_speed(threads), multiply / rate))


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


def _bind(segment: Graph, shape: Shape, options: CompileOptions, shared: _Shared) -> Binder:
    """Binds every node of a segment."""
    from edgerun.backends.cpu.binder import LOGIT_ROWS, ROWS, Binder
    from edgerun.backends.cpu.emit.ops import EMITTERS

    binder = Binder(segment, shape, options, shared.weights, shared.isa, shared.threads)
    for name in segment.inputs:
        value = segment.shapes.get(name) or ValueShape(_width(segment, name))
        binder.new(name, value.width, LOGIT_ROWS if value.selected else ROWS)
    for index, node in enumerate(segment.nodes):
        EMITTERS[node.op](binder, node, index)
        binder.release(index)
    return binder


def make() -> CpuBackend:
    """Makes the back-end."""
    return CpuBackend()
