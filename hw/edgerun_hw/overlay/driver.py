"""The driver: checks what is loaded, queues commands, waits for them, and says what went wrong.

It knows registers and nothing of boards: a ``DevicePort`` serves them. It runs on the board in
pynq's own environment, so it imports numpy, the standard library and this package's board files.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import Capabilities, Command, check_command, expected_cycles
from edgerun_hw.overlay.errors import (
    CommandError,
    OverlayError,
    OverlayTimeoutError,
    WrongOverlayError,
)
from edgerun_hw.overlay.port import Buffer, Counters, DevicePort, Ticket

logger = logging.getLogger(__name__)

MODULUS = 1 << 32
WORD = MODULUS - 1
ERROR_FIELDS = {
    "bad_length": regs.ERROR_BAD_LENGTH,
    "underrun": regs.ERROR_UNDERRUN,
    "overrun": regs.ERROR_OVERRUN,
    "read_response": regs.ERROR_READ_RESPONSE,
    "write_response": regs.ERROR_WRITE_RESPONSE,
    "watchdog": regs.ERROR_WATCHDOG,
    "queue_overflow": regs.ERROR_QUEUE_OVERFLOW,
}
ALL_ERRORS = sum(field.mask for field in ERROR_FIELDS.values())
ALL_IRQS = regs.IRQ_COMPLETED.mask | regs.IRQ_ERROR.mask
# The overlay's own watchdog counts 2^20 cycles; it should speak first, because it knows more.
TIMEOUT_CYCLES = 1 << 22
# A command may take this many times what it would if memory kept up.
PATIENCE = 16
MIN_POLL_CYCLES = 64
MAX_POLL_CYCLES = 1 << 16


def read_capabilities(port: DevicePort) -> Capabilities:
    """Reads and checks identity, version and geometry.

    Raises:
        WrongOverlayError: this is not an overlay that the driver can drive.
    """
    identity = port.read(regs.ID)
    if identity != regs.ID_VALUE:
        raise WrongOverlayError(
            f"the ID register reads {identity:#010x} instead of {regs.ID_VALUE:#010x}: "
            "another bitstream is loaded, or none; load the overlay first"
        )
    version = port.read(regs.VERSION)
    if regs.VERSION_MAJOR.of(version) != regs.VERSION_MAJOR_VALUE:
        raise WrongOverlayError(
            f"the overlay's register map is version {_dotted(version)}; this driver needs "
            f"{regs.VERSION_MAJOR_VALUE}.x: load an overlay built for this version of edgerun"
        )
    geometry, limits = port.read(regs.GEOMETRY), port.read(regs.LIMITS)
    _check_layout(geometry)
    capabilities = Capabilities(
        ports=regs.GEOMETRY_PORTS.of(geometry),
        columns=regs.GEOMETRY_COLUMNS.of(geometry),
        queue_depth=regs.GEOMETRY_QUEUE_DEPTH.of(geometry),
        max_row_beats=regs.LIMITS_MAX_ROW_BEATS.of(limits),
        row_scale=bool(regs.LIMITS_ROW_SCALE.of(limits)),
        ternary=bool(regs.LIMITS_TERNARY.of(limits)),
        multiples=bool(regs.LIMITS_MULTIPLES.of(limits)),
        addr_bits=regs.LIMITS_ADDR_BITS.of(limits),
        attention=regs.LIMITS_QUERIES.of(limits),
        glue=bool(regs.LIMITS_GLUE.of(limits)),
    )
    for name in ("ports", "columns", "queue_depth", "max_row_beats"):
        if getattr(capabilities, name) < 1:
            raise WrongOverlayError(f"the overlay says that its {name} is 0, which cannot be")
    if capabilities.ports > regs.MAX_PORTS or not 5 <= capabilities.addr_bits <= 64:
        raise WrongOverlayError(f"the overlay describes itself impossibly: {capabilities}")
    return capabilities


def _check_layout(geometry: int) -> None:
    for field, expected, name in (
        (regs.GEOMETRY_TABLES, regs.TABLES, "tables"),
        (regs.GEOMETRY_PORT_ROWS, regs.PORT_ROWS, "rows per port"),
        (regs.GEOMETRY_GROUP, regs.GROUP, "weights per code"),
    ):
        if field.of(geometry) != expected:
            raise WrongOverlayError(
                f"the overlay has {field.of(geometry)} {name}; packed weights are for {expected}"
            )


def _dotted(version: int) -> str:
    parts = (regs.VERSION_MAJOR, regs.VERSION_MINOR, regs.VERSION_PATCH)
    return ".".join(str(part.of(version)) for part in parts)


@dataclass
class _Pending:
    """A command that is not known to be complete, and the cycles it should take."""

    number: int
    cycles: int


class Tlmm:
    """Drives one overlay through ``port``; satisfies ``port.Overlay``.

    Not for use by several threads at once. Starts with a soft reset, because a process that died
    may have left commands in the queue.

    Args:
        port: the device; it stays the caller's to close, unless ``close`` is called here.
        timeout_cycles: cycles without progress, besides what the work itself takes, after which
            the overlay counts as wedged.
        watchdog_cycles: a value for the overlay's watchdog (0 switches it off), or None to leave
            it as it is.

    Raises:
        WrongOverlayError: this is not an overlay that the driver can drive.
        OverlayTimeoutError: it does not come out of reset.
    """

    def __init__(
        self,
        port: DevicePort,
        *,
        timeout_cycles: int = TIMEOUT_CYCLES,
        watchdog_cycles: int | None = None,
    ) -> None:
        self.port = port
        self.timeout_cycles = timeout_cycles
        self._capabilities = read_capabilities(port)
        self._watchdog = watchdog_cycles
        self._epoch = -1
        self.reset()

    @property
    def capabilities(self) -> Capabilities:
        """What the overlay can do."""
        return self._capabilities

    def allocate(self, nbytes: int) -> Buffer:
        """Allocates memory that the overlay can reach.

        Raises:
            MemoryError: there is not that much.
        """
        return self.port.allocate(nbytes)

    def submit(self, command: Command) -> Ticket:
        """Queues ``command``; waits for room first when the queue is full.

        Raises:
            ValueError: the overlay cannot run it; nothing was submitted.
            OverlayError: an earlier command failed, or there is no progress.
        """
        check_command(command, self._capabilities)
        self._raise_failure()
        while len(self._pending) >= self._capabilities.queue_depth:
            self._collect()
            if len(self._pending) >= self._capabilities.queue_depth:
                self._let_pass(self._pending[0].number)
        self._stage(command)
        self.port.write(regs.CMD_PUSH, 1)
        number = self._submitted
        self._submitted += 1
        cycles = expected_cycles(command, self._capabilities.rows_per_beat)
        self._pending.append(_Pending(number, cycles))
        return Ticket(self._epoch, number)

    def has_room(self) -> bool:
        """Whether ``submit`` would not have to wait.

        Raises:
            OverlayError: an earlier command failed.
        """
        self._raise_failure()
        if len(self._pending) >= self._capabilities.queue_depth:
            self._collect()
        return len(self._pending) < self._capabilities.queue_depth

    def submit_all(self, commands: Sequence[Command]) -> Ticket:
        """Queues ``commands`` in order; returns the last one's ticket.

        Raises:
            ValueError: there are none, or the overlay cannot run one of them.
            OverlayError: an earlier command failed, or there is no progress.
        """
        if not commands:
            raise ValueError("there are no commands to submit")
        for command in commands:
            check_command(command, self._capabilities)
        return [self.submit(command) for command in commands][-1]

    def wait(self, ticket: Ticket) -> None:
        """Returns when the command of ``ticket``, and so all before it, is complete.

        Raises:
            CommandError: it failed, an earlier one did, or a reset dropped it.
            OverlayTimeoutError: no progress.
        """
        while not self.poll(ticket):
            pass

    def poll(self, ticket: Ticket) -> bool:
        """Like ``wait``, but returns False after a while when the command is not complete yet."""
        if self._is_complete(ticket):
            return True
        self._raise_failure()
        self._collect()
        if self._is_complete(ticket):
            return True
        self._let_pass(ticket.number)
        return False

    def reset(self) -> None:
        """Drops all commands and brings the overlay into its first state.

        Raises:
            OverlayTimeoutError: it does not come out of reset.
        """
        self._epoch += 1
        self._pending: deque[_Pending] = deque()
        self._submitted = self._completed = 0
        self._stalled_cycles = 0
        self._staged: dict[int, int] = {}
        self._failure: OverlayError | None = None
        self.port.write(regs.CONTROL, regs.CONTROL_SOFT_RESET.mask)
        waited = 0
        while regs.CONTROL_SOFT_RESET.of(self.port.read(regs.CONTROL)):
            if waited > self.timeout_cycles:
                message = "the overlay does not come out of its reset: load the bitstream again"
                self._failure = OverlayTimeoutError(message)
                raise self._failure
            self.port.wait(MIN_POLL_CYCLES + waited // 4)
            waited += MIN_POLL_CYCLES + waited // 4
        self.port.write(regs.ERROR, ALL_ERRORS)
        self.port.write(regs.IRQ, ALL_IRQS)
        self.port.write(regs.CONTROL, regs.CONTROL_IRQ_ENABLE.mask)
        if self._watchdog is not None:
            self.port.write(regs.WATCHDOG, self._watchdog)

    def hand_out(self) -> int:
        """Lets others submit commands past the driver; returns the number of the next one.

        Raises:
            OverlayError: an earlier command failed, or there is no progress.
        """
        self._raise_failure()
        if self._pending:
            self.wait(Ticket(self._epoch, self._pending[-1].number))
        self._staged = {}
        return self._submitted

    def take_back(self, submitted: int, flags: int = 0) -> None:
        """Goes on after others have submitted commands, all of which are complete.

        Args:
            submitted: number of the next command.
            flags: of the error register, if one of them failed.

        Raises:
            CommandError: one failed.
        """
        self._submitted = self._completed = submitted
        if flags:
            self._fail(self._command_error(flags))

    def counters(self) -> Counters:
        """Reads the counters."""
        offsets = {field.name: getattr(regs, field.name.upper()) for field in fields(Counters)}
        return Counters(**{name: self.port.read(offset) for name, offset in offsets.items()})

    def close(self) -> None:
        """Drops all commands, so that none writes to memory that is somebody else's by then."""
        with contextlib.suppress(Exception):  # it may be what is to be got rid of
            self.reset()
        self.port.close()

    def _is_complete(self, ticket: Ticket) -> bool:
        if ticket.epoch != self._epoch:
            raise CommandError(f"command {ticket.number} was dropped by a reset", tag=ticket.number)
        if ticket.number >= self._submitted:
            raise ValueError(f"command {ticket.number} was not submitted to this overlay")
        return ticket.number < self._completed

    def _stage(self, command: Command) -> None:
        """Writes the command registers whose values differ from the last command's."""
        words = {
            regs.CMD_MODE: command.mode_word,
            regs.CMD_ROW_BEATS: command.row_beats,
            regs.CMD_TILES: command.tiles,
            regs.CMD_COLUMNS: command.columns,
            regs.CMD_TAG: self._submitted % MODULUS,
        }
        addresses = {regs.CMD_X: command.x, regs.CMD_Y: command.y}
        if command.scales is not None:
            addresses[regs.CMD_S] = command.scales
        addresses.update(zip(regs.CMD_W, command.weights, strict=False))
        for offset, address in addresses.items():
            words[offset] = address & WORD
            words[offset + 4] = address >> 32
        for offset, value in words.items():
            if self._staged.get(offset) != value:
                self.port.write(offset, value)
                self._staged[offset] = value

    def _collect(self) -> None:
        """Learns which commands are complete; raises when one failed."""
        # Cleared before COMPLETED is read: what completes after that raises the line again.
        self.port.write(regs.IRQ, ALL_IRQS)
        newly = (self.port.read(regs.COMPLETED) - self._completed) % MODULUS
        # Read after COMPLETED: a command counted there has set its flag before.
        flags = self.port.read(regs.ERROR) & ALL_ERRORS
        if flags:
            self._fail(self._command_error(flags))
        if newly > len(self._pending):
            self._fail(
                OverlayError(
                    f"the overlay counts {newly} commands complete where {len(self._pending)} were "
                    "pending: is another process using it?"
                )
            )
        for _ in range(newly):
            self._pending.popleft()
        self._completed += newly
        if newly:
            self._stalled_cycles = 0

    def _let_pass(self, number: int) -> None:
        """Waits for a part of what the commands up to ``number`` should take."""
        ahead = sum(pending.cycles for pending in self._pending if pending.number <= number)
        cycles = min(max(ahead // 4, MIN_POLL_CYCLES), MAX_POLL_CYCLES)
        self.port.wait(cycles)
        self._stalled_cycles += cycles
        if self._stalled_cycles > self.timeout_cycles + PATIENCE * self._pending[0].cycles:
            status = self.port.read(regs.STATUS)
            self._fail(
                OverlayTimeoutError(
                    f"the overlay made no progress for {self._stalled_cycles} cycles with "
                    f"{len(self._pending)} commands pending (STATUS {status:#x})"
                )
            )

    def _command_error(self, flags: int) -> CommandError:
        tag = self.port.read(regs.ERROR_TAG)
        names = tuple(name for name, field in ERROR_FIELDS.items() if field.of(flags))
        return CommandError(
            f"the overlay reports {', '.join(names)} at command {tag}", tag=tag, flags=names
        )

    def _fail(self, error: OverlayError) -> None:
        self._failure = error
        logger.debug("%s", error)
        raise error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
