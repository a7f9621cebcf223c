"""Segments as native programs with the overlay in them, and their stand-in when it fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgerun.backends.base import CompileOptions, Executable, Shape, Values
from edgerun.backends.cpu import CpuBackend
from edgerun.graph.ir import Graph
from edgerun.state import Batch, SequenceStore
from edgerun_hw.backend.executable import DeviceExecutable
from edgerun_hw.backend.native import multiply as code
from edgerun_hw.backend.native.emitter import Workspace, fabric_emitter
from edgerun_hw.backend.native.placement import is_packed, packed_weight, place
from edgerun_hw.backend.products import WrongResultError
from edgerun_hw.backend.session import Session
from edgerun_hw.backend.tally import Tally
from edgerun_hw.devices.native.memory import ContiguousBuffer
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import OverlayError, OverlayTimeoutError
from edgerun_hw.overlay.packing import result_words
from edgerun_hw.overlay.register_map import BEAT_BYTES, RESULT_BITS, TABLES

WORD_BYTES = RESULT_BITS // 8


class ProgramExecutable(DeviceExecutable):
    """Runs a segment in one native call; if the device fails, on the back-end that stands in."""

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
        self._program: Executable | None = None
        try:  # before the weights, which may fill the memory
            self._workspace = session.attempt(lambda: _workspace(session, segment))
        except MemoryError:
            session.say_full()
            self._workspace = None
        if self._workspace is not None:
            placed, can = place(segment, session), session.capabilities
            assert can is not None  # it was opened
            emitters = {"linear": fabric_emitter(placed, self._workspace, can)}
            self._program = cpu.compile_with(segment, shape, options, emitters)
            self.launches = self._program.launches

    def close(self) -> None:
        """Closes the program, and the device when nothing else uses it."""
        if self._program is not None:
            self._program.close()
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            workspace.free()
        super().close()

    def _on_device(self, batch: Batch, cache: SequenceStore, values: Values) -> Values | None:
        program, workspace = self._program, self._workspace
        if program is None or workspace is None:
            return None
        return self._session.attempt(
            lambda: self._run(workspace, batch, lambda: program(batch, cache, values))
        )

    def _run(self, workspace: Workspace, batch: Batch, program: Callable[[], Values]) -> Values:
        """Runs the program once.

        Raises:
            OverlayError: the device failed; nothing of what the program wrote is to be used.
        """
        native = self._session.native
        assert native is not None  # it was, when the program was made
        driver, state = native[0], workspace.state
        state[:] = 0
        state[code.S_SUBMITTED] = driver.hand_out()
        for head in workspace.heads:
            head.choose(len(batch.logit_rows) > 0, batch.largest_only)
        outputs = program()
        _raise_failure(driver, workspace)
        self._session.count(int(state[code.S_COMMANDS]))
        self._tally.add(*self._session.spent())
        return outputs


def _raise_failure(driver: Tlmm, workspace: Workspace) -> None:
    """Gives the overlay back to the driver, and raises what went wrong.

    Raises:
        OverlayError: something did.
    """
    state, failures = workspace.state, workspace.exchange.failures
    status, detail = int(state[code.S_STATUS]), int(state[code.S_DETAIL])
    if failures:
        error = failures[0]
        failures.clear()
        raise error
    if status == code.STUCK:
        raise OverlayTimeoutError(f"the overlay made no progress for {detail} cycles")
    if status == code.WRONG_SUMS:
        raise WrongResultError(
            f"the device's sums of {detail} rows do not add up to what they should"
        )
    if status == code.UNREACHABLE:
        raise OverlayError("the kernel does not synchronise the memory of u-dma-buf")
    driver.take_back(int(state[code.S_SUBMITTED]), detail if status == code.FLAGGED else 0)


def _workspace(session: Session, segment: Graph) -> Workspace:
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
    x_bytes = max(tiles, default=1) * can.columns * BEAT_BYTES
    rows = can.max_row_beats * can.rows_per_beat
    y_bytes = WORD_BYTES * result_words(rows, can.columns, can.ports)
    buffers: list[ContiguousBuffer] = []
    try:
        for nbytes in (x_bytes, *[y_bytes] * can.queue_depth):
            buffers.append(port.allocate(nbytes))
    except BaseException:
        for buffer in buffers:
            buffer.free()
        raise
    state = np.zeros(code.STATE_WORDS, np.int64)
    exchange = port.exchange(buffers)
    return Workspace(buffers[0], tuple(buffers[1:]), state, exchange, session.screened)
