"""The CPU back-end: one native program per shape of batches, made of Numba kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import (
    Backend,
    CompileOptions,
    Executable,
    ExpertMemory,
    Phase,
    Shape,
    Support,
)
from edgerun.backends.figures import ExpertReads, Report
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import input_shapes
from edgerun.kernels.host.cores import worker_threads
from edgerun.machine.profile import (
    CALIBRATE,
    FAST_TIMES,
    MachineProfile,
    absence,
    machine_profile,
)

if TYPE_CHECKING:
    from edgerun.backends.cpu.binder import Binder
    from edgerun.backends.cpu.emit.emitter import Emitter
    from edgerun.backends.cpu.experts.weights import ExpertStore
    from edgerun.machine.row_times import BlockPath


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """What the caller may choose about this back-end.

    Attributes:
        asked: worker threads; None for as many as the environment says.
        trits: whether ternary weights lie in memory at 1.6 bits where that is possible.
        machine: whose costs are estimated; None for the one that is here.
        experts: memory for those that do not all fit; None if they do.
        fast_prefill: whether prompts may be multiplied by weights that are regrouped.
        fast_attention: whether prompts may be attended to in bfloat16.
        row_paths: what multiplies blocks of rows, by kernel family; None for what this machine's
            measurements say.
    """

    asked: int | None
    trits: bool = False
    machine: MachineProfile | None = None
    experts: ExpertMemory | None = None
    fast_prefill: bool = False
    fast_attention: bool = False
    row_paths: Mapping[str, BlockPath] | None = None

    @property
    def threads(self) -> int:
        """Worker threads.

        Raises:
            InputError: the environment asks for more than there are cores.
        """
        return self.asked or worker_threads(None)

    def profile(self) -> MachineProfile:
        """What is known of the machine, measured or not."""
        return self.machine or machine_profile()


class CpuBackend(Backend):
    """Runs every op of the schema natively, with few limits on shapes."""

    name = "cpu"
    has_rows_alike = True

    def __init__(self) -> None:
        self._shared: _Shared | None = None
        self._sized: tuple[Graph, int] | None = None
        self._regrouped: tuple[Graph, Mapping[str, int]] | None = None
        self.configure({})

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes threads, packing, another machine, memory of experts, how prompts multiply.

        Calibration and benches choose ``row_paths`` besides, ``BlockPath`` by kernel family.
        """
        self._options = CpuOptions(
            given.get("threads"),
            given.get("pack") == "trits",
            given.get("machine"),
            given.get("experts"),
            given.get("prefill") == "fast",
            given.get("attention") == "fast",
            given.get("row_paths"),
        )

    def probe(self) -> Support:
        """Needs Numba, which is a dependency, and an instruction set it can use."""
        from edgerun.kernels.isa import selected_isa

        return Support(True, selected_isa().name)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Whether there is a kernel for the node's op, format and shape."""
        from edgerun.backends.cpu.emit.registry import EMITTERS

        if node.op not in EMITTERS:
            return Support(False, f"no kernel for '{node.op}'")
        return EMITTERS[node.op].supports(graph, node)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """What the op's emitter estimates.

        Speeds come from the machine profile if it is complete, and are all nominal if not.
        """
        from edgerun.backends.cpu.emit.emitter import Speeds
        from edgerun.backends.cpu.emit.registry import EMITTERS

        options = self._options
        profile = options.profile().for_planning()
        threads = options.threads if options.machine is None else profile.threads
        regrouped = self.prompt_bytes(graph) if shape.phase is Phase.PREFILL else {}
        is_cached = self._stays_cached(graph, profile)
        fast = options.fast_attention and shape.phase is Phase.PREFILL
        speeds = Speeds(profile, threads, options.trits, is_cached, regrouped, fast)
        return EMITTERS[node.op].cost(graph, node, shape, speeds)

    @property
    def is_measured(self) -> bool:
        """Whether this machine was."""
        return self._options.machine is None and machine_profile().complete

    @property
    def threads(self) -> int:
        """Worker threads."""
        return self._options.threads

    def call_seconds(self) -> float:
        """What was measured of calls without work."""
        return self._options.profile().for_planning().call_s

    def _stays_cached(self, graph: Graph, profile: MachineProfile) -> bool:
        """Whether a graph's weights take at most half of the cache; remembered of the last one."""
        if self._sized is None or self._sized[0] is not graph:
            nbytes = sum(constant.nbytes for constant in graph.constants.values())
            self._sized = graph, nbytes
        return self._sized[1] <= profile.cache_bytes // 2

    def cost_basis(self) -> str:
        """Says what the estimates of ``cost`` stand on."""
        if self._options.machine is not None:
            return "simulated, another machine's processor"
        profile = machine_profile()
        fast = f"; {_fast_basis(profile)}" if self._options.fast_attention else ""
        return basis(profile, self._options.threads) + fast

    def weight_bytes(self, graph: Graph, node: Node, name: str) -> int:
        """Bytes of a constant as kernels will stream it."""
        from edgerun.backends.cpu.families import weight_bytes

        activations = str(node.attrs.get("activations", ""))
        return weight_bytes(graph.constants[name], activations, trits=self._options.trits)

    def prompt_bytes(self, graph: Graph) -> Mapping[str, int]:
        """Bytes of weights that are regrouped for prompts, by name."""
        from edgerun.backends.cpu.regroup import regrouped_bytes
        from edgerun.kernels.isa import selected_isa

        if not (self._options.fast_prefill and selected_isa().regroups):
            return {}
        if self._regrouped is None or self._regrouped[0] is not graph:  # asked for by every node
            self._regrouped = graph, regrouped_bytes(graph)
        return self._regrouped[1]

    def prompt_attention(self, graph: Graph) -> Mapping[str, str]:
        """Nodes of attention, and why bfloat16 does not do for one."""
        from edgerun.backends.cpu.emit.attention import why_exact
        from edgerun.kernels.isa import selected_isa

        if not self._options.fast_attention:
            return {}
        nodes = [node for node in graph.nodes if node.op == "attention"]
        return {node.name: why_exact(node, selected_isa()) for node in nodes}

    def expert_bytes(self, graph: Graph, node: Node) -> int:
        """Bytes that one expert of a layer takes in memory."""
        from edgerun.backends.cpu.experts.weights import ExpertStore
        from edgerun.kernels.isa import selected_isa

        return ExpertStore(selected_isa()).slot_bytes(graph, node)

    def expert_reads(self) -> ExpertReads | None:
        """What became of experts so far; None where all of them are in memory."""
        stream = self._shared.experts.stream if self._shared else None
        return None if stream is None else stream.reads()

    def report(self) -> Report | None:
        """Experts that were needed, and those that had to be read."""
        reads = self.expert_reads()
        if reads is None or not reads.hits + reads.misses:
            return None
        row = {
            "needed": reads.hits + reads.misses,
            "in memory": f"{reads.hit_share:.1%}",
            "read": f"{reads.read_bytes / 1e9:.3f} GB",
            "waited": f"{reads.waited_s:.3f} s",
            "foreseen": "" if reads.recall is None else f"{reads.recall:.1%}",
            "read early": f"{reads.early}, {reads.wasted} in vain",
        }
        return Report("experts that are read while the model runs, measured", [row])

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Binds the segment to kernels."""
        return self.compile_with(segment, shape, options, {})

    def compile_with(
        self,
        segment: Graph,
        shape: Shape,
        options: CompileOptions,
        emitters: Mapping[str, Emitter],
    ) -> Executable:
        """Binds the segment to kernels, but ops that ``emitters`` names to what those emit."""
        from edgerun.backends.cpu.executable import CpuExecutable

        shared = self._opened()
        shared.experts.admit(segment)
        binder = _bind(segment, shape, options, shared, emitters)
        shared.weights.rest()
        shared.experts.rest()
        return CpuExecutable(binder, shared.team)

    @property
    def experts(self) -> ExpertStore:
        """The experts of all its programs, for who has to bring them elsewhere."""
        return self._opened().experts

    def use_experts(self, experts: ExpertStore) -> None:
        """Takes experts that were prepared elsewhere; before anything is compiled."""
        self._shared = _Shared(self._options, experts)

    def _opened(self) -> _Shared:
        if self._shared is None:
            self._shared = _Shared(self._options)
        return self._shared

    def close(self) -> None:
        """Ends the worker threads; the executables must not be called after it."""
        if self._shared is not None:
            try:
                self._shared.team.close()
            finally:
                self._shared.experts.close()
            self._shared = None


class _Shared:
    """What the programs of all shapes share: prepared weights and threads."""

    def __init__(self, options: CpuOptions, experts: ExpertStore | None = None) -> None:
        from edgerun.backends.cpu.experts.weights import ExpertStore
        from edgerun.backends.cpu.page_tiles import PageTiles
        from edgerun.backends.cpu.strips import StripMemory
        from edgerun.backends.cpu.weights import WeightStore
        from edgerun.kernels.isa import selected_isa
        from edgerun.kernels.run.program import ThreadTeam

        self.isa, self.threads = selected_isa(), options.threads
        self.regroups = options.fast_prefill and self.isa.regroups
        self.fast_attention = options.fast_attention
        self.weights = WeightStore(self.isa, trits=options.trits)
        self.experts = experts or ExpertStore(self.isa, options.experts)
        self.team, self.strips = ThreadTeam(options.threads), StripMemory(options.threads)
        self.page_tiles = PageTiles()
        self._row_paths = options.row_paths

    def row_paths(self, shape: Shape) -> Mapping[str, BlockPath]:
        """What multiplies blocks of rows, by family, as measured; one row needs no looking up."""
        if self._row_paths is None and shape.phase is not Phase.DECODE:
            from edgerun.backends.cpu.row_paths import measured_paths

            self._row_paths = measured_paths(self.isa, machine_profile(), self.threads)
        return self._row_paths or {}


def basis(profile: MachineProfile, threads: int) -> str:
    """What estimates with a profile stand on, in a line."""
    if not profile.complete:
        return f"nominal speeds; {absence() or f'{CALIBRATE} those of this machine'}"
    speed = f"memory measured {profile.measured}, {profile.read_speed(threads) / 1e9:.1f} GB/s"
    peak = max(max(by_rows.values()) for by_rows in profile.rates.values())
    return f"{speed}; multiplication measured, up to {peak / 1e9:.0f} G multiply-adds/s"


def _fast_basis(profile: MachineProfile) -> str:
    """What estimates of attention in bfloat16 stand on."""
    if profile.for_planning().has_fast_attention:
        return "attention in bfloat16 measured"
    again = f", {CALIBRATE} it" if profile.complete else ""
    return f"attention in bfloat16 taken for {FAST_TIMES:g} times as fast as exact{again}"


def _bind(
    segment: Graph,
    shape: Shape,
    options: CompileOptions,
    shared: _Shared,
    others: Mapping[str, Emitter],
) -> Binder:
    """Binds every node of a segment."""
    from edgerun.backends.cpu.binder import LOGIT_ROWS, ROWS, Binder
    from edgerun.backends.cpu.emit.registry import EMITTERS
    from edgerun.backends.cpu.families import AMX, paths_of
    from edgerun.backends.cpu.regroup import faster_layers

    weights, experts, isa, threads = shared.weights, shared.experts, shared.isa, shared.threads
    emitters = {**EMITTERS, **others}
    row_paths = shared.row_paths(shape)
    is_tiled = AMX in paths_of(isa) and (
        shape.phase is Phase.PREFILL
        or any(path.name == AMX and path.least <= shape.rows for path in row_paths.values())
    )
    areas = shared.strips.for_graph(segment, experts.lengths()) if is_tiled else None
    regrouped = frozenset[str]()
    if shared.regroups and shape.phase is Phase.PREFILL:
        regrouped = frozenset(node.outputs[0] for node in faster_layers(segment))
    attends_fast = shared.fast_attention and shape.phase is Phase.PREFILL
    machine = isa, threads, emitters, areas, regrouped, attends_fast, shared.page_tiles
    binder = Binder(segment, shape, options, weights, experts, *machine, row_paths=row_paths)
    for name, value in input_shapes(segment).items():
        binder.new(name, value.width, LOGIT_ROWS if value.selected else ROWS, value.dtype)
    cuts = _cuts(segment, shape, experts)
    for index, node in enumerate(segment.nodes):
        emitters[node.op].emit(binder, node, index)
        binder.release(index)
        if index in cuts:
            binder.begin_stage()
    return binder


def _cuts(segment: Graph, shape: Shape, experts: ExpertStore) -> Collection[int]:
    """Nodes behind which a program of prompts is cut into stages, if it reads experts."""
    if experts.stream is None or shape.phase is not Phase.PREFILL or segment.inputs:
        return ()
    from edgerun.backends.cpu.stages import cuts_of

    read = [index for index, node in enumerate(segment.nodes) if experts.reads(segment, node)]
    return cuts_of(segment, read)


def make() -> CpuBackend:
    """Makes the back-end."""
    return CpuBackend()
