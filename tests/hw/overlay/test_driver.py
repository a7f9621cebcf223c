"""The driver: exact register transactions, and what it refuses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import Capabilities, Command, check_command, expected_cycles, sizes
from edgerun_hw.overlay.driver import Tlmm, read_capabilities
from edgerun_hw.overlay.errors import (
    CommandError,
    OverlayError,
    WrongOverlayError,
)
from edgerun_hw.overlay.port import Ticket

R, W, WAIT = "read", "write", "wait"
GEOMETRY = 1 | 1 << 4 | 5 << 12 | 5 << 16 | 3 << 20 | 2 << 24  # queue depth 2
LIMITS = 64 | 0 << 16 | 1 << 17 | 1 << 18 | 40 << 24
IDENTIFY = [
    (R, regs.ID, 0x544C4D4D),
    (R, regs.VERSION, regs.VERSION_VALUE),
    (R, regs.GEOMETRY, GEOMETRY),
    (R, regs.LIMITS, LIMITS),
]
RESET = [
    (W, regs.CONTROL, 1),
    (R, regs.CONTROL, 0),
    (W, regs.ERROR, 0x7F),
    (W, regs.IRQ, 0x3),
    (W, regs.CONTROL, 2),
]
COMMAND = Command(
    x=0x1_2345_6780, y=0x10, weights=(0xAB_0000_0010,), row_beats=3, tiles=7, multiples=True
)
STAGE = [
    (W, 0x040, 1),
    (W, 0x044, 3),
    (W, 0x048, 7),
    (W, 0x04C, 1),
    (W, 0x050, 0),
    (W, 0x054, 0x2345_6780),
    (W, 0x058, 0x1),
    (W, 0x064, 0x10),
    (W, 0x068, 0),
    (W, 0x070, 0x10),
    (W, 0x074, 0xAB),
    (W, 0x090, 1),
]
COLLECT_NOTHING = [(W, regs.IRQ, 3), (R, regs.COMPLETED, 0), (R, regs.ERROR, 0)]


class RecordedPort:
    """Expects exactly these transactions, in this order; ends by `done`."""

    def __init__(self, transactions: Iterable[tuple]) -> None:
        self._expected = deque(transactions)

    def read(self, offset: int) -> int:
        kind, expected, value = self._expected.popleft()
        assert (R, offset) == (kind, expected)
        return value

    def write(self, offset: int, value: int) -> None:
        assert (W, offset, value) == self._expected.popleft()

    def wait(self, cycles: int) -> None:
        assert (WAIT, cycles) == self._expected.popleft()

    def allocate(self, nbytes: int):
        raise MemoryError

    def close(self) -> None:
        assert self._expected.popleft() == "close"

    def then(self, *transactions: tuple | str) -> None:
        assert not self._expected, f"left: {self._expected}"
        self._expected.extend(transactions)

    def done(self) -> None:
        assert not self._expected, f"left: {self._expected}"


def _started() -> tuple[RecordedPort, Tlmm]:
    port = RecordedPort([*IDENTIFY, *RESET])
    return port, Tlmm(port)


def test_start_identifies_and_resets():
    port, overlay = _started()
    port.done()
    assert overlay.capabilities == Capabilities(
        ports=1,
        columns=1,
        queue_depth=2,
        max_row_beats=64,
        row_scale=False,
        ternary=True,
        multiples=True,
        addr_bits=40,
    )


def test_watchdog_is_written_when_given():
    port = RecordedPort([*IDENTIFY, *RESET, (W, regs.WATCHDOG, 1000)])
    Tlmm(port, watchdog_cycles=1000)
    port.done()


def test_submit_writes_every_register_once_then_only_what_changed():
    port, overlay = _started()
    port.then(*STAGE)
    assert overlay.submit(COMMAND) == Ticket(0, 0)
    port.then((W, 0x050, 1), (W, 0x058, 0x2), (W, 0x090, 1))
    assert overlay.submit(replace(COMMAND, x=0x2_2345_6780)) == Ticket(0, 1)
    port.done()


def test_scale_address_is_written_only_with_scales():
    scaled = LIMITS | 1 << 16
    port = RecordedPort([*IDENTIFY[:3], (R, regs.LIMITS, scaled), *RESET])
    overlay = Tlmm(port)
    port.then((W, 0x040, 3), *STAGE[1:9], (W, 0x05C, 0x5000), (W, 0x060, 1), *STAGE[9:])
    overlay.submit(replace(COMMAND, scales=0x1_0000_5000))
    port.done()


def test_wait_polls_until_the_command_is_counted():
    port, overlay = _started()
    port.then(*STAGE)
    ticket = overlay.submit(COMMAND)
    hint = expected_cycles(COMMAND, 5) // 4
    complete = [(W, regs.IRQ, 3), (R, regs.COMPLETED, 1), (R, regs.ERROR, 0)]
    port.then(*COLLECT_NOTHING, (WAIT, hint), *complete)
    overlay.wait(ticket)
    overlay.wait(ticket)  # known: no transaction
    port.done()


def test_full_queue_waits_for_room():
    port, overlay = _started()
    port.then(*STAGE, (W, 0x050, 1), (W, 0x090, 1))
    overlay.submit(COMMAND)
    overlay.submit(COMMAND)
    hint = expected_cycles(COMMAND, 5) // 4
    port.then(
        *COLLECT_NOTHING,
        (WAIT, hint),
        (W, regs.IRQ, 3),
        (R, regs.COMPLETED, 1),
        (R, regs.ERROR, 0),
        (W, 0x050, 2),
        (W, 0x090, 1),
    )
    assert overlay.submit(COMMAND) == Ticket(0, 2)
    port.done()


def test_completed_count_wraps():
    port, overlay = _started()
    overlay._completed = overlay._submitted = 2**32 - 1
    port.then(*STAGE[:4], (W, 0x050, 2**32 - 1), *STAGE[5:], (W, 0x050, 0), (W, 0x090, 1))
    overlay.submit(COMMAND)
    ticket = overlay.submit(COMMAND)
    port.then((W, regs.IRQ, 3), (R, regs.COMPLETED, 1), (R, regs.ERROR, 0))
    overlay.wait(ticket)
    port.done()


def test_error_flags_become_a_typed_error_with_the_tag_and_stay():
    port, overlay = _started()
    port.then(*STAGE)
    ticket = overlay.submit(COMMAND)
    port.then(
        (W, regs.IRQ, 3), (R, regs.COMPLETED, 0), (R, regs.ERROR, 0x12), (R, regs.ERROR_TAG, 0)
    )
    with pytest.raises(CommandError, match="underrun, write_response at command 0") as info:
        overlay.wait(ticket)
    assert (info.value.tag, info.value.flags) == (0, ("underrun", "write_response"))
    for use in (lambda: overlay.wait(ticket), lambda: overlay.submit(COMMAND)):
        with pytest.raises(CommandError):
            use()  # no transaction
    port.then(*RESET)
    overlay.reset()
    with pytest.raises(CommandError, match="dropped by a reset"):
        overlay.wait(ticket)
    port.then(*STAGE)  # nothing is taken to have survived the reset
    assert overlay.submit(COMMAND) == Ticket(1, 0)
    port.then(*RESET, "close")
    overlay.close()
    port.done()


def test_more_completions_than_commands_is_an_error():
    port, overlay = _started()
    port.then(*STAGE)
    ticket = overlay.submit(COMMAND)
    port.then((W, regs.IRQ, 3), (R, regs.COMPLETED, 5), (R, regs.ERROR, 0))
    with pytest.raises(OverlayError, match="another process"):
        overlay.wait(ticket)


def test_counters_are_read_one_by_one():
    port, overlay = _started()
    port.then(*[(R, regs.CYCLES + 4 * i, i) for i in range(8)])
    counters = overlay.counters()
    assert (counters.cycles, counters.lookups, counters.write_beats) == (0, 2, 7)


def test_unsubmitted_ticket_is_the_callers_mistake():
    _, overlay = _started()
    with pytest.raises(ValueError, match="not submitted"):
        overlay.wait(Ticket(0, 0))


# Identity.


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, 0xFFFF_FFFF, "ID register reads 0xffffffff"),
        (0, 0, "another bitstream is loaded, or none"),
        (1, 0x0002_0103, "version 2.1.3; this driver needs 1.x"),
        (2, GEOMETRY & ~0xF000, "0 tables"),
        (2, GEOMETRY ^ 0x10000, "rows per port"),
        (2, GEOMETRY ^ 0x100000, "weights per code"),
        (2, GEOMETRY & ~0xF, "ports is 0"),
        (2, GEOMETRY & ~0xFF0, "columns is 0"),
        (2, GEOMETRY & 0xFF_FFFF, "queue_depth is 0"),
        (2, GEOMETRY | 0xF, "impossibly"),
        (3, LIMITS & ~0xFFFF, "max_row_beats is 0"),
        (3, LIMITS & 0xFF_FFFF, "impossibly"),
        (3, LIMITS | 0xFF000000, "impossibly"),
    ],
)
def test_wrong_overlay_is_refused_before_anything_is_written(index, value, message):
    reads = list(IDENTIFY)
    reads[index] = (R, reads[index][1], value)
    with pytest.raises(WrongOverlayError, match=message):
        Tlmm(RecordedPort(reads))


def test_later_minor_version_is_accepted():
    reads = [IDENTIFY[0], (R, regs.VERSION, 0x0001_0203), *IDENTIFY[2:]]
    assert read_capabilities(RecordedPort(reads)).ports == 1


# Commands that cannot run.

CAN = Capabilities(2, 3, 8, 64, False, True, True, 40)
GOOD = Command(x=0, y=0x1000, weights=(0x2000, 0x3000), row_beats=64, tiles=2, columns=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_beats": 0}, "row_beats is 0"),
        ({"row_beats": 65}, "row_beats is 65; this overlay takes 1 to 64"),
        ({"tiles": 0}, "tiles is 0"),
        ({"tiles": 0x10000}, "tiles is 65536"),
        ({"columns": 4}, "columns is 4"),
        ({"weights": (0x2000,)}, "1 weight addresses"),
        ({"scales": 0}, "row scales"),
        ({"x": 8}, "address of x, 0x8"),
        ({"y": -16}, "address of y"),
        ({"weights": (0x2000, (1 << 40) - 2032)}, "address of weights"),
    ],
)
def test_impossible_command_is_refused(changes, message):
    check_command(GOOD, CAN)
    with pytest.raises(ValueError, match=message):
        check_command(replace(GOOD, **changes), CAN)


LAYER = Capabilities(4, 1, 8, 64, True, True, True, 40, attention=2, glue=True)
BESIDE = replace(GOOD, weights=(0x2000,) * 4, columns=1)
# Two heads of 32 elements and the most blocks of tokens; a gated row of 31 elements.
ATTENTION = replace(BESIDE, row_beats=68, tiles=2 * 1024 + 2, kv_heads=2, head_units=2)
GLUE = replace(BESIDE, row_beats=3, tiles=31, glue=True, gate=1, scales=0x4000)


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        (ATTENTION, {"columns": 3}, "columns is 3; this overlay takes 1 to 2"),
        (ATTENTION, {"row_beats": 67}, "pairs of 67 beats, not of 68"),
        (ATTENTION, {"scales": 0}, "pairs of 68 beats"),
        (ATTENTION, {"tiles": 2}, "no whole blocks"),
        (ATTENTION, {"tiles": 5}, "no whole blocks"),
        (ATTENTION, {"tiles": 2 * 1025 + 2}, "65600 tokens; the unit attends to 65536 at most"),
        (ATTENTION, {"kv_heads": 33}, "33 heads of 32 elements"),
        (ATTENTION, {"head_units": 17}, "2 heads of 272 elements"),
        (GLUE, {"tiles": 8193, "row_beats": 547}, "a row of 8193 elements"),
        (GLUE, {"row_beats": 2}, "2 beats of codes, not of 3"),
        (GLUE, {"columns": 2}, "beats of codes"),
        (GLUE, {"gate": 4}, "gate 4; there are 0 to 3"),
        (GLUE, {"gate": 0}, "takes none without"),
        (GLUE, {"scales": None}, "needs a second row"),
    ],
)
def test_impossible_attention_and_glue_are_refused(command, changes, message):
    check_command(command, LAYER)
    with pytest.raises(ValueError, match=message):
        check_command(replace(command, **changes), LAYER)
    with pytest.raises(ValueError, match="was built without"):
        check_command(command, replace(LAYER, attention=0, glue=False))


@pytest.mark.parametrize("mode", ["ternary", "multiples"])
def test_mode_that_was_not_built_is_refused(mode):
    can = replace(CAN, **{mode: False})
    with pytest.raises(ValueError, match=mode):
        check_command(replace(GOOD, multiples=mode == "multiples"), can)


def test_sizes_are_whole_beats():
    need = sizes(replace(GOOD, row_beats=3, scales=0), 5)
    assert (need.x, need.y, need.weights, need.scales) == (2 * 3 * 16, 192, 2 * 3 * 16, 64)
