"""The FPGA back-end: linear layers on the table-lookup overlay, everything else on the CPU.

Through the native host the rest is in the same native program (``native/``), so that the back-end
takes all of a model; else its companion, the CPU's back-end, runs what is between linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.backends.base import Backend, CompileOptions, Executable, Shape, Support
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu import make as make_cpu
from edgerun.backends.figures import Report
from edgerun.errors import UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun_hw.backend.attention import obstacle
from edgerun_hw.backend.executable import FabricExecutable
from edgerun_hw.backend.matrix import has_row_scales, largest_integer
from edgerun_hw.backend.native.placement import is_packed
from edgerun_hw.backend.session import Session
from edgerun_hw.backend.tally import Tally, cycles_report, part_of
from edgerun_hw.devices.registry import DEVICES, Device, find_device
from edgerun_hw.model.attention import attention_commands, layer_cycles
from edgerun_hw.model.cycles import PYTHON_HOST_US, Assumptions, matrix_seconds
from edgerun_hw.overlay.command import MAX_COUNT, TERNARY_TILE, Capabilities
from edgerun_hw.overlay.cut import cut_matrix

ROUNDED = ("int8_row", "int8_block")
TERNARY_BITS = 2
# What is assumed before a device has said anything: the decode configuration for a KV260.
NOMINAL = Capabilities(
    ports=4,
    columns=1,
    queue_depth=8,
    max_row_beats=512,
    row_scale=False,
    ternary=True,
    multiples=True,
    addr_bits=40,
)


class FpgaBackend(Backend):
    """Multiplies by lookup on the overlay; see ``edgerun.backends.base.Backend``.

    Attributes:
        companions: run the other ops, and everything if the device fails.
    """

    name = "fpga"
    companions = ("cpu",)

    def __init__(self) -> None:
        """Knows no device yet."""
        self._device: Device | None = None
        self._session: Session | None = None
        self._tallies: list[Tally] = []
        self._assumptions = Assumptions(host_us=PYTHON_HOST_US)
        self._cpu: CpuBackend | None = None
        self._given: Mapping[str, Any] = {}

    def use_device(self, name: str) -> None:
        """Chooses a device by its name in ``devices.py``.

        Raises:
            InputError: there is none of that name.
        """
        self._device = find_device(name)

    def probe(self) -> Support:
        """Whether a device was named and what it needs is here; opens nothing."""
        if self._device is None:
            return Support(False, f"no device was named: --device {', '.join(DEVICES)}")
        obstacle = self._device.obstacle()
        return Support(not obstacle, obstacle or self._device.kind.summary)

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes what the CPU's kernels are told, for the native host."""
        self._given = given

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Linear layers of packed weights and quantised activations; natively, any node."""
        if not is_packed(graph, node) and self._opened().native:
            return self._processor().supports(graph, node, shape)
        if node.op == "attention":
            reason = self._cannot_attend(node)
            return Support(not reason, reason)
        if node.op != "linear":
            return Support(False, "the fabric runs linear layers and attention only")
        weight = graph.constants[node.inputs[1]]
        if not isinstance(weight, PackedWeight):
            return Support(False, "the weights are not packed to few bits")
        if not weight.is_centred:
            return Support(False, "the weights have zero points or offsets of their own")
        if node.attrs["activations"] not in ROUNDED:
            return Support(False, "the activations are not quantised to int8")
        if weight.shape[1] > MAX_COUNT * TERNARY_TILE // 3:
            return Support(False, f"rows of {weight.shape[1]} weights")
        can = self._opened().capabilities or NOMINAL
        if not can.multiples and not (can.ternary and weight.bits == TERNARY_BITS):
            return Support(False, f"this overlay has no mode for weights of {weight.bits} bits")
        return Support(True)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """Cycles at an assumed clock, from what the device says it can do."""
        if node.op == "attention" and not self._cannot_attend(node):
            return self._attention_seconds(node, shape)
        if not is_packed(graph, node):
            return self._processor().cost(graph, node, shape)
        weight = graph.constants[node.inputs[1]]
        assert isinstance(weight, PackedWeight)
        capabilities = self._opened().capabilities or NOMINAL
        by_row = node.attrs["activations"] == "int8_row" and has_row_scales(weight)
        block = weight.shape[1] if by_row else weight.block
        largest = 1 if weight.format == "ternary" else largest_integer(weight)
        cut = cut_matrix(weight.shape, largest, block, capabilities)
        return matrix_seconds(cut, capabilities, shape.rows, self._assumptions)

    def _cannot_attend(self, node: Node) -> str:
        """Why the overlay cannot run an attention layer; empty if it can."""
        queries = (self._opened().capabilities or NOMINAL).attention
        return obstacle(node, str(self._given.get("kv_cache", "")), queries)

    def _attention_seconds(self, node: Node, shape: Shape) -> float:
        can, attrs = self._opened().capabilities or NOMINAL, node.attrs
        group = attrs["num_heads"] // attrs["num_kv_heads"]
        queries, rows = max(1, can.attention), range(shape.cached, shape.cached + shape.rows)
        heads = attrs["num_kv_heads"], attrs["head_dim"], group
        seconds = layer_cycles(*heads, rows, queries, attrs["window"]) / (
            self._assumptions.clock_mhz * 1e6
        )
        commands = attention_commands(group, shape.rows, queries)
        return float(seconds + commands * self._assumptions.host_us * 1e-6)

    def cost_basis(self) -> str:
        """Says what the estimates of ``cost`` stand on."""
        can = self._opened().capabilities or NOMINAL
        return (
            f"{can.macs_per_cycle} multiply-adds a cycle by its registers, {self._assumptions}, "
            f"{PYTHON_HOST_US:g} us a command in Python; modelled, not measured on a board"
        )

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Writes the weights to the device."""
        session = self._opened()
        tally = Tally(shape.phase, part_of(segment))
        self._tallies.append(tally)
        if session.native is None:
            return FabricExecutable(segment, shape, session, tally, options)
        from edgerun_hw.backend.native.program import ProgramExecutable

        return ProgramExecutable(segment, shape, session, tally, options, self._processor())

    def _processor(self) -> CpuBackend:
        """What compiles programs that the overlay's instructions are put into."""
        if self._cpu is None:
            self._cpu = make_cpu()
            self._cpu.configure(self._given)
        return self._cpu

    def report(self) -> Report | None:
        """Cycles per token by part, and what became of the device."""
        if self._session is None:
            return None
        session = self._session
        notes = [
            f"{session.commands} commands in {session.round_trips} round trips of the host, "
            f"{session.resets} resets"
        ]
        tokens, rows = (int(count) for count in session.screened)
        if tokens:
            notes.insert(
                0,
                f"of the output head {rows / tokens:.1f} rows a token were multiplied exactly: "
                "its screen excluded the others",
            )
        if session.failure:
            notes.append(f"the device is not used any more: {session.failure}")
        cycles = cycles_report(session.device.name, session.device.kind.counted, self._tallies)
        if cycles is None:
            return Report(f"FPGA device '{session.device.name}'", (), notes)
        return Report(cycles.title, cycles.rows, [*cycles.notes, *notes])

    def close(self) -> None:
        """Gives the device back; the executables must not be called after it."""
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._cpu is not None:
            self._cpu.close()
            self._cpu = None

    def _opened(self) -> Session:
        """The session, opened when it is first needed.

        Raises:
            UnsupportedError: no device was named.
        """
        if self._session is None:
            if self._device is None:
                raise UnsupportedError(self.probe().reason)
            self._session = Session(self._device)
        return self._session


def make() -> FpgaBackend:
    """Makes the back-end."""
    return FpgaBackend()
