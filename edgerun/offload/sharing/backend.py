"""What back-ends that share layers of experts with a device have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Backend, CompileOptions, Executable, Phase, Shape, Support
from edgerun.backends.chain import Chain
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.figures import Report
from edgerun.errors import BackendError, UnsupportedError
from edgerun.graph.ir import Graph, Node

if TYPE_CHECKING:
    from pathlib import Path

    from edgerun.offload.estimates import Estimates
    from edgerun.offload.sharing.choice import Choice
    from edgerun.offload.sharing.device import Device
    from edgerun.offload.sharing.executable import SharedLayer
    from edgerun.offload.sharing.filling import History
    from edgerun.offload.sharing.layer import Layer
    from edgerun.offload.sharing.session import Session
    from edgerun.offload.sharing.tally import Tally
    from edgerun.offload.sharing.trials import Trials

REPLIES = Phase.DECODE, Phase.FEW  # whose layers are shared inside programs
REMEDY = "--share always shares all the same"
FROM_MEMORY = Support(
    False,
    "a device gets experts from memory, which has not room for all of them",
    "allow more memory for experts, or leave the limit out",
)
ASSUMED_MACS_S = 20e9  # of a core; replaced by what is seen
ASSUMED_READ_BYTES_S = 10e9


class SharingBackend(Backend):
    """Shares layers of experts with a device; see ``edgerun.backends.base.Backend``.

    Attributes:
        title: how messages call the device, "the stand-in".
        report_title: of its report.
        companions: run the other ops, and everything if the device fails.
    """

    title: str
    report_title: str
    companions = ("cpu",)
    holds_experts = True

    def __init__(self) -> None:
        """Has no device yet."""
        self._cpu, self._owns_cpu = CpuBackend(), True
        self._session: Session | None = None
        self._estimates: Estimates | None = None
        self._inside: Estimates | None = None  # of layers inside programs
        self._tallies: list[Tally] = []
        self._numbers: dict[str, int] = {}
        self._layers: dict[str, Layer] = {}  # that are shared, in order
        self._experts: dict[str, int] = {}  # of layers that may be, by the name of the node
        self._history: History | None = None
        self._is_required = False
        self._shares_always, self._keeps_costs, self._reads_experts = False, False, False
        self._trials: Trials | None = None
        self._kind = (0, 0), 0  # of the first layer: its shape, and bytes of an expert
        self._choices: dict[tuple[int, Shape], tuple[Graph, Choice]] = {}

    @abstractmethod
    def make_device(self, layer: Layer, slots: int, rows: int) -> Device:
        """Makes the device, which is not started yet.

        Args:
            layer: the first one; slots are as it needs them.
            slots: that it is to have.
            rows: that go to the device in one command, at most.

        Raises:
            BackendError: there is not so much memory.
        """

    @abstractmethod
    def slots(self, slot_bytes: int) -> int:
        """Experts that the device has room for.

        Raises:
            BackendError: there is no room for one, or the device does not answer.
        """

    @abstractmethod
    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        """Costs of an expert before anything was seen.

        Args:
            shape: width of a row, and of an expert.
            nbytes: of its weights in a slot.
        """

    def assumed_inside(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        """The same of layers that are shared inside a program."""
        return self.assumed_costs(shape, nbytes).inside()

    @abstractmethod
    def assumptions(self) -> str:
        """What ``assumed_costs`` stands on, in a line."""

    @abstractmethod
    def device_key(self) -> str:
        """Tells devices apart whose costs differ; "" for one of which none are to be kept."""

    def costs(
        self, shape: tuple[int, int], nbytes: int, phase: Phase | None = None
    ) -> tuple[Estimates, str]:
        """Costs of an expert as they were seen before, or are assumed; and which it is.

        Args:
            shape: width of a row, and of an expert.
            nbytes: of its weights in a slot.
            phase: of the calls; layers of replies are shared inside programs, which costs less.
        """
        from edgerun.offload.sharing.record import read_record

        is_inside = phase in REPLIES
        record = read_record(self._record_path(shape, nbytes, is_inside=is_inside))
        if record is None:
            assume = self.assumed_inside if is_inside else self.assumed_costs
            return assume(shape, nbytes), self.assumptions()
        return record.estimates(), record.basis

    def _record_path(self, shape: tuple[int, int], nbytes: int, *, is_inside: bool) -> Path | None:
        from edgerun.offload.sharing.record import record_path

        device = self.device_key() if self._keeps_costs else ""
        kind = {"shape": shape, "nbytes": nbytes, "threads": self._cpu.threads}
        kind |= {"inside": True} if is_inside else {}
        return record_path(f"{self.name}:{device}", kind) if device else None

    def _keep_costs(self) -> None:
        """Keeps what was learned of a device that did not fail, where that is enough."""
        from edgerun.offload.sharing.record import keep

        session, estimates = self._session, self._estimates
        if session is None or estimates is None or session.failure or session.resets:
            return
        layers = sum(tally.with_device for tally in self._tallies)
        if self._inside is not None:
            inside = sum(each.with_device for each in self._tallies if each.phase in REPLIES)
            layers -= inside
            keep(self._record_path(*self._kind, is_inside=True), self._inside, inside)
        keep(self._record_path(*self._kind, is_inside=False), estimates, layers)

    def obstacle(self, graph: Graph, node: Node) -> str:
        """Why the device cannot compute the experts of a node that the processor can; or ""."""
        del graph, node
        return ""

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes ``expert_history``, ``share_always`` and what its processor is configured with."""
        self._cpu.configure(given)
        self._history = given.get("expert_history")
        self._shares_always = bool(given.get("share_always"))
        self._reads_experts = given.get("experts") is not None
        self._keeps_costs = bool(given.get("keeps_costs"))

    def use_companions(self, companions: Sequence[Backend]) -> None:
        """Computes with the processor that the rest goes to: weights and threads are shared."""
        for companion in companions:
            if isinstance(companion, CpuBackend):
                self._cpu, self._owns_cpu = companion, False

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Layers of experts, where the processor alone is not expected to be faster."""
        support = self.can_share(graph, node, shape)
        if not support or self._shares_always:
            return support
        try:
            choice = self._choice(graph, shape)
        except BackendError:  # told when it is compiled: one that nobody named does not get there
            return support
        return support if choice.is_shared else Support(False, str(choice), REMEDY)

    def can_share(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Layers of experts that are all in memory, whatever that takes."""
        from edgerun.backends.cpu.experts.weights import stacks_of

        if node.op != "experts":
            return Support(False, f"{self.title} shares layers of experts only")
        stack = stacks_of(graph, node)[0]
        if not stack.has_choice:
            return Support(False, "an expert that all tokens go through is the processor's")
        if self._reads_experts:
            return FROM_MEMORY
        if problem := self.obstacle(graph, node):
            return Support(False, problem)
        self._experts[node.name] = stack.shape[0]
        return self._cpu.supports(graph, node, shape)

    def _choice(self, graph: Graph, shape: Shape) -> Choice:
        """What a call is expected to take, shared and not; remembered of each graph and shape.

        Raises:
            BackendError: the device has no room for an expert.
        """
        from edgerun.offload.sharing.choice import Choice

        key = id(graph), shape
        if key not in self._choices:
            nodes = [node for node in graph.nodes if self.can_share(graph, node, shape)]
            self._choices[key] = graph, Choice.of(self, self._cpu, graph, nodes, shape)
        return self._choices[key][1]

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """What the processor alone would need: nothing is claimed before it was seen."""
        return self._cpu.cost(graph, node, shape)

    def cost_basis(self) -> str:
        """Says what the estimates of ``cost`` stand on."""
        return "assumed as slow as the processor alone; costs of experts are measured as it runs"

    def outlook(self, segments: Sequence[tuple[Graph, Shape]]) -> Report | None:
        """What each layer is expected to take, and what the schedule turns down for it.

        Raises:
            BackendError: the device has no room for an expert.
        """
        from edgerun.offload.sharing.expected import expected_report

        return expected_report(self, self._cpu, segments)

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Prepares the weights, and starts the device with the first layer.

        Raises:
            UnsupportedError: there is no device.
            BackendError: the device fails, and is required.
        """
        if not (support := self.probe()):
            raise UnsupportedError(support.reason)
        parts: list[Executable] = []
        for node in segment.nodes:
            layer = self._layer(node, segment, shape, options)
            part = self._share(layer, segment, shape, options)
            if part is None:
                layer.close()
                return self._elsewhere(segment, shape, options)
            parts.append(self._faster(part, segment.with_nodes([node]), shape, options))
        return parts[0] if len(parts) == 1 else Chain(parts)

    def joins(self, shape: Shape) -> bool:
        """Replies, alone or a few at a time: in prompts experts are cut, and uploaded for it."""
        return shape.phase in REPLIES

    def compile_joined(
        self, graph: Graph, own: Sequence[Graph], shape: Shape, options: CompileOptions
    ) -> Executable:
        """The processor's program with commands for the device; see ``Backend``.

        Raises:
            UnsupportedError: there is no device.
            BackendError: the device fails, and is required.
        """
        from edgerun.offload.sharing.in_program.joined import joined_program
        from edgerun.offload.sharing.trials import Trials
        from edgerun.offload.sharing.ways import TRIAL

        if not (support := self.probe()):
            raise UnsupportedError(support.reason)
        pairs = [(node, segment) for segment in own for node in segment.nodes]
        parts: list[Executable] = []
        for node, segment in [pair for pair in pairs if pair[0].name not in self._layers]:
            layer = self._layer(node, segment, shape, options)
            parts.append(self._share(layer, segment, shape, options) or layer.places)
        layers = [self._layers[node.name] for node, _ in pairs if node.name in self._layers]
        if self._session is None or not layers:
            return self._elsewhere(graph, shape, options)
        if self._inside is None:
            assert self._estimates is not None
            estimates, _ = self.costs(*self._kind, Phase.DECODE)
            self._inside = estimates.with_uploads_of(self._estimates)
        trials = None if self._shares_always else Trials(TRIAL)
        given = self._cpu, layers, self._session, self._inside, self._tally(shape), trials, parts
        return joined_program(graph, shape, options, *given)

    def _layer(self, node: Node, segment: Graph, shape: Shape, options: CompileOptions) -> Layer:
        from edgerun.offload.sharing.layer import Layer

        number = self._numbers.setdefault(node.name, len(self._numbers))
        return Layer.of(number, node, segment, shape, self._cpu, options)

    def preload(self) -> None:
        """Fills the device with experts.

        Raises:
            BackendError: it fails, and is required.
        """
        session = self._session
        if session is None or not self._layers:
            return
        session.preload(self._fill)
        self._check(session, self._is_required)

    def _fill(self) -> None:
        """Queues the uploads of the experts that are likeliest to be needed."""
        from edgerun.offload.sharing.filling import History, fill

        assert self._session is not None and self._estimates is not None
        learn = self._estimates.observe_upload
        fill(self._session, self._layers, self._history or History(), learn)

    def report(self) -> Report | None:
        """Times by phase, and what became of the device."""
        session = self._session
        rows = [tally.row() for tally in self._tallies if tally.layers]
        if session is None or not rows:
            return None
        notes = [f"{session.device.uploaded_bytes / 1e6:.1f} MB uploaded, {session.resets} resets"]
        if session.failure:
            notes.append(f"{self.title} is not used any more: {session.failure}")
        return Report(self.report_title, rows, notes)

    def close(self) -> None:
        """Ends the device and its threads; the executables must not be called after it."""
        if self._session is not None:
            self._keep_costs()
            self._session.close()
            self._session = None
        if self._owns_cpu:
            self._cpu.close()

    def _share(
        self, layer: Layer, segment: Graph, shape: Shape, options: CompileOptions
    ) -> SharedLayer | None:
        """A layer on both; None if it is unlike the first one, or calls have more rows."""
        from edgerun.offload.sharing.executable import SharedLayer
        from edgerun.offload.sharing.session import Session

        attributes, is_first = layer.node.attrs, self._session is None
        rows = shape.rows * int(attributes["top_k"])
        if self._session is None:
            device = self.make_device(layer, self._useful_slots(layer.layout.nbytes), rows)
            self._session = Session(device, layer.layout, attributes)
            # As plans see it, which look at the first expert only.
            self._kind = layer.shape, self._cpu.expert_bytes(segment, layer.node)
            self._estimates, _ = self.costs(*self._kind)
        session = self._session
        if not session.takes(layer.layout, attributes) or session.device.sizes.rows < rows:
            return None
        assert self._estimates is not None
        tally = self._tally(shape)
        part = SharedLayer(segment, shape, layer, session, self._estimates, tally, options)
        if is_first:
            session.open(part.test)
            self._is_required = options.required
            self._check(session, options.required)
        self._layers.setdefault(layer.node.name, layer)
        return part

    def _useful_slots(self, slot_bytes: int) -> int:
        """As many as there is room for, but no more than there are experts."""
        slots = self.slots(slot_bytes)
        return min(slots, sum(self._experts.values()) or slots)

    def _faster(
        self, part: SharedLayer, graph: Graph, shape: Shape, options: CompileOptions
    ) -> Executable:
        """A layer that is shared as long as that is faster, unless it is to be always."""
        from edgerun.offload.sharing.trials import Trials
        from edgerun.offload.sharing.ways import TRIAL, FasterWay

        if self._shares_always:
            return part
        self._trials = self._trials or Trials(TRIAL)
        return FasterWay(part, self._cpu.compile(graph, shape, options), self._trials)

    def _check(self, session: Session, is_required: bool) -> None:
        if session.failure and is_required:
            raise BackendError(f"{self.title} does not run: {session.failure}")

    def _tally(self, shape: Shape) -> Tally:
        from edgerun.offload.sharing.tally import Tally

        for tally in self._tallies:
            if tally.phase is shape.phase:
                return tally
        self._tallies.append(Tally(shape.phase))
        return self._tallies[-1]

    def _elsewhere(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """The companion's program for a layer that is unlike the others.

        Raises:
            BackendError: the device is required, or there is no companion.
        """
        if options.required or options.fallback is None:
            raise BackendError(f"{self.title} has slots for layers like the first one only")
        return options.fallback(segment, shape)
