"""The bus of an emulated board: registers of its logic, and those of its processors.

What they hold is in ``logic``, the record of what a board forgets without power (``board.py``). An
access that would hang a real board is an ``AssertionError``: no helper may make one.
"""

from __future__ import annotations

import errno
from typing import Any

from edgerun_hw.deploy.broker.board.boards import Board
from edgerun_hw.deploy.broker.board.quiesce import CONTROL, IDLE, RESETTING, SOFT_RESET, STATUS
from edgerun_hw.deploy.broker.board.settings import SLCR_UNLOCK
from edgerun_hw.deploy.broker.board.system import PAGE
from edgerun_hw.deploy.emulate.kernel import start_word

# UG585, appendix B.28: behind the lock the registers of Zynq-7000's slcr keep what they hold.
SLCR, SLCR_LOCK = range(0xF8000000, 0xF8000C00), (0xF8000004, 0x767B)
REVISION = 0x1000_0000  # of the silicon; any

Logic = dict[str, Any]


def read_word(board: Board, logic: Logic, address: int) -> int:
    """Reads a register: of the logic at any 4 KiB of its windows.

    Raises:
        OSError: no logic is loaded.
        AssertionError: the board hangs.
    """
    if address == board.silicon:
        return board.idcode | REVISION
    if not board.has_window(address, 4):
        return int(logic["words"].get(f"{address:#x}", start_word(board.family, address)))
    _check_answers(logic)
    if logic.get("dead"):
        return 0xFFFFFFFF
    registers = dict(enumerate(logic["registers"]))
    registers[STATUS // 4] = RESETTING if logic.get("busy") else IDLE
    registers[CONTROL // 4] = SOFT_RESET if logic.get("resetting") else 0
    return int(registers.get(address % PAGE // 4, 0))


def write_word(board: Board, logic: Logic, address: int, value: int, fault: str) -> Logic:
    """Writes a register.

    Args:
        board: whose it is.
        logic: before.
        address: of the register.
        value: 32 bits.
        fault: of the logic, ``Faults.logic``.

    Returns:
        ``logic`` afterwards.

    Raises:
        OSError: no logic is loaded.
        AssertionError: the board hangs.
    """
    if board.has_window(address, 4):
        _check_answers(logic)
        return _reset(logic, address % PAGE, value, fault)
    if board.family == "zynq7" and (address, value) in (SLCR_LOCK, SLCR_UNLOCK):
        return {**logic, "locked": (address, value) == SLCR_LOCK}
    if fault == "stuck" or is_locked(board, logic, address):
        return logic
    return {**logic, "words": {**logic["words"], f"{address:#x}": value}}


def is_locked(board: Board, logic: Logic, address: int) -> bool:
    """Whether writes to a register are lost; Linux leaves it unlocked when it has started."""
    return board.family == "zynq7" and bool(logic.get("locked")) and address in SLCR


def _check_answers(logic: Logic) -> None:
    if logic["loaded"] is None:
        raise OSError(errno.EIO, "the bus does not answer: no logic is loaded")
    if logic.get("gated"):
        raise AssertionError("the board hangs: the logic has no clock")


def _reset(logic: Logic, offset: int, value: int, fault: str) -> Logic:
    """A soft reset ends once memory has answered, which with "endless" it never does."""
    if offset == CONTROL and value & SOFT_RESET:
        endless = bool(logic.get("busy")) and fault == "endless"
        return {**logic, "busy": endless, "resetting": endless}
    return logic
