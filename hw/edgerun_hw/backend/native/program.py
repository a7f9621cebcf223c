"""Segments as native programs with the overlay in them, and their stand-in when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edgerun.backends.base import CompileOptions, Executable, Shape, Values
from edgerun.backends.cpu import CpuBackend
from edgerun.env import settings
from edgerun.graph.ir import Graph, Node
from edgerun.state import Batch, SequenceStore
from edgerun_hw.backend.executable import FULL, DeviceExecutable
from edgerun_hw.backend.native import attention as unit
from edgerun_hw.backend.native import request
from edgerun_hw.backend.native.attention import AttentionLayers
from edgerun_hw.backend.native.chain.emitter import computing, queueing
from edgerun_hw.backend.native.chain.memory import ChainMemory, chain_capable
from edgerun_hw.backend.native.chain.search import CHAIN, Chain, find_chains, with_chains
from edgerun_hw.backend.native.chain.words import K_RUNS
from edgerun_hw.backend.native.emitter import fabric_emitter
from edgerun_hw.backend.native.placement import Placed, is_packed, packed_weight, place
from edgerun_hw.backend.native.workspace import Workspace
from edgerun_hw.backend.products import WrongResultError
from edgerun_hw.backend.session import Session
from edgerun_hw.backend.tally import Tally
from edgerun_hw.overlay.attention import OutsideFormatError
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError, OverlayTimeoutError
from edgerun_hw.overlay.packing import result_words
from edgerun_hw.overlay.register_map import BEAT_BYTES, RESULT_BITS, TABLES

logger = logging.getLogger(__name__)
WORD_BYTES = RESULT_BITS // 8


class ProgramExecutable(DeviceExecutable):
    """Runs a segment in one native call; if the device fails, on the back-end that stands in.

    Where the unit cannot attend in a batch, a second program does, whose attention is the CPU's and
    whose matrices are the device's.
    """

    def __init__(
        self,
        segment: Graph,
        shape: Shape,
        session: Session,
        tally: Tally,
        options: CompileOptions,
        cpu: CpuBackend,
    ) -> None:
        """Writes the weights to the device, unless another phase has, and binds the rest."""
        super().__init__(segment, shape, session, tally, options)
        self._options, self._cpu = options, cpu
        self._placed: dict[str, Placed] = {}
        self._layers: AttentionLayers | None = None
        self._programs: dict[bool, Executable] = {}  # by whether the unit attends
        can = session.capabilities
        nodes = unit.attending(segment, options.states, can) if can else []
        try:  # before the weights, which may fill the memory
            self._workspace = session.attempt(lambda: _workspace(session, segment, nodes))
        except MemoryError:
            session.say_full()
            self._workspace = None
        self._chains: list[Chain] = []
        self._memory: ChainMemory | None = None
        self._graph = segment
        if self._workspace is not None:
            self._placed = place(segment, session)
            self._queue_whole(segment)
            self._layers = AttentionLayers.of(nodes, shape.rows) if nodes else None
            self.launches = self._program(self._workspace, self._layers).launches

    def close(self) -> None:
        """Closes the programs, and the device when nothing else uses it."""
        for program in self._programs.values():
            program.close()
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            workspace.free()
        if self._memory is not None:
            self._memory.free()
        super().close()

    def _queue_whole(self, segment: Graph) -> None:
        """Has layers of a program of one row queued whole, where the overlay can."""
        session, can = self._session, self._session.capabilities
        if can is None or not chain_capable(can) or self._shape.rows != 1 or settings().validate:
            return
        chains = find_chains(segment, self._placed)
        if not chains or session.native is None:
            return
        port = session.native[1]
        try:
            memory = session.attempt(lambda: ChainMemory(segment, chains, port, can.ports))
        except MemoryError:
            session.say_full()
            return
        if memory is None:
            return
        self._memory, self._chains, self._graph = memory, chains, with_chains(segment, chains)
        if self._fallback is not None:
            self._fallback = lambda _, shape: self._in_its_stead(memory, shape)

    def _in_its_stead(self, memory: ChainMemory, shape: Shape) -> Executable:
        """The segment on the processor, with the bits that the overlay's chains have."""
        emitters = {CHAIN: computing(self._chains, memory, self._segment)}
        return self._cpu.compile_with(self._graph, shape, self._options, emitters)

    def _program(self, workspace: Workspace, layers: AttentionLayers | None) -> Executable:
        """The segment with the overlay in it; without layers the CPU's kernels attend."""
        attends = layers is not None
        if attends not in self._programs:
            can = self._session.capabilities
            assert can is not None  # it was opened
            emitters = {"linear": fabric_emitter(self._placed, workspace, can)}
            if self._memory is not None:
                emitters[CHAIN] = queueing(self._chains, self._memory, workspace, can)
            if layers is not None:
                emitters["attention"] = unit.attention_emitter(layers, workspace, can)
            self._programs[attends] = self._cpu.compile_with(
                self._graph, self._shape, self._options, emitters
            )
        return self._programs[attends]

    def _on_device(self, batch: Batch, cache: SequenceStore, values: Values) -> Values | None:
        workspace, layers = self._workspace, self._layers
        if workspace is None:
            self._obstacle = FULL
            return None
        if layers is not None and layers.fit(batch):
            program = self._program(workspace, layers)
            try:
                return self._session.attempt(
                    lambda: layers.attend(
                        self._session,
                        batch,
                        cache,
                        lambda: self._run(workspace, batch, lambda: program(batch, cache, values)),
                    )
                )
            except OutsideFormatError as error:  # of this batch; the next may be another
                logger.debug("attention is the CPU's: %s", error)
            except MemoryError:
                self._session.say_full()
                self._layers = None
        plain = self._program(workspace, None)
        return self._session.attempt(
            lambda: self._run(workspace, batch, lambda: plain(batch, cache, values))
        )

    def _run(self, workspace: Workspace, batch: Batch, program: Callable[[], Values]) -> Values:
        """Runs a program once.

        Raises:
            OutsideFormatError: attention is beyond the unit's format.
            OverlayError: the device failed; nothing of what the program wrote is to be used.
        """
        native = self._session.native
        assert native is not None  # it was, when the program was made
        driver, state = native[0], workspace.state
        state[:] = 0
        workspace.exchange.failures.clear()
        state[request.S_SUBMITTED] = driver.hand_out()
        for head in workspace.heads:
            head.choose(batch)
        outputs = program()
        _raise_failure(driver, workspace)
        if self._memory is not None:
            self._memory.checks[K_RUNS] += 1
        self._session.count(int(state[request.S_COMMANDS]))
        self._tally.add(*self._session.spent())
        return outputs


def _raise_failure(driver: Tlmm, workspace: Workspace) -> None:
    """Gives the overlay back to the driver, and raises what went wrong.

    Raises:
        OutsideFormatError: keys, values or queries are beyond the attention unit's format.
        OverlayError: something else did.
        BaseException: what Python raised while native code asked it.
    """
    state, failures = workspace.state, workspace.exchange.failures
    status, detail = int(state[request.S_STATUS]), int(state[request.S_DETAIL])
    if failures:
        error = failures[0]
        failures.clear()
        raise error
    if status == request.STUCK:
        raise OverlayTimeoutError(f"the overlay made no progress for {detail} cycles")
    if status == request.WRONG_SUMS:
        raise WrongResultError(
            f"the device's sums of {detail} rows do not add up to what they should"
        )
    if status == request.WRONG_ATTENTION:
        raise WrongResultError("attention gave what keys and values cannot give")
    if status == request.WRONG_CHAIN:
        raise WrongResultError("a command of a layer gave what its operands cannot give")
    if status == request.UNREACHABLE:
        raise OverlayError("the kernel does not synchronise the memory of u-dma-buf")
    driver.take_back(int(state[request.S_SUBMITTED]), detail if status == request.FLAGGED else 0)
    if status == request.OUTSIDE_FORMAT:
        raise OutsideFormatError("keys, values or queries are beyond the unit's format")


def _workspace(session: Session, segment: Graph, attention: list[Node]) -> Workspace:
    """Allocates what any command of a segment may need.

    Raises:
        MemoryError: the device has no room for it.
    """
    assert session.native is not None  # else the segment would have another executable
    driver, port = session.native
    can = driver.capabilities
    packed = [packed_weight(segment, node) for node in segment.nodes if is_packed(segment, node)]
    # A tile has five activations or more, and each block may begin one.
    tiles = [weight.shape[1] // TABLES + 2 * weight.scales.shape[1] for weight in packed]
    rows = can.max_row_beats * can.rows_per_beat
    x_bytes = [max(tiles, default=1) * can.columns * BEAT_BYTES]
    y_bytes = [WORD_BYTES * result_words(rows, can.columns, can.ports)]
    x_bytes += [can.queue_depth * unit.query_bytes(node, can) for node in attention]
    y_bytes += [unit.output_bytes(node, can) for node in attention]
    return Workspace.of(port, max(x_bytes), max(y_bytes), can.queue_depth, session.screened)
