"""No logic is replaced in the middle of a burst, nor while somebody uses it."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from edgerun_hw.board_side import lock
from edgerun_hw.deploy.broker.board import quiesce as rules
from edgerun_hw.deploy.broker.board.quiesce import quiesce
from edgerun_hw.deploy.broker.errors import RefusalError
from edgerun_hw.deploy.broker.session import LOCK
from edgerun_hw.deploy.emulate.board import LOGIC, Faults, boot, power_cycle, set_faults
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.errors import OverlayError
from tests.hw.deploy.harness import (
    LOADERS,
    ROLLBACK,
    Quick,
    ask,
    board,
    check_tidy,
    converse,
    deploy,
    digest_of,
    running,
    without_faults,
)

BASE = 0xA000_0000


def make_busy(root: Path) -> None:
    """What a model leaves behind that was killed while the overlay worked."""
    logic = json.loads((root / LOGIC).read_text())
    (root / LOGIC).write_text(json.dumps({**logic, "busy": True}))


def test_registers_are_those_of_the_overlay() -> None:
    assert (rules.ID, rules.CONTROL, rules.STATUS) == (regs.ID, regs.CONTROL, regs.STATUS)
    assert regs.CONTROL_SOFT_RESET.mask == rules.SOFT_RESET
    assert regs.STATUS_IDLE.mask == rules.IDLE and regs.STATUS_RESETTING.mask == rules.RESETTING


class Bus:
    """An overlay that drains for some reads of its status."""

    def __init__(self, reads: int, identity: int = regs.ID_VALUE) -> None:
        self.writes: list[tuple[int, int]] = []
        self.pauses = 0
        self._left, self._identity = reads, identity

    def read_word(self, address: int) -> int:
        if address == BASE:
            return self._identity
        if address == BASE + regs.CONTROL:
            self._left -= 1
            return int(self._left >= 0)
        assert address == BASE + regs.STATUS
        return regs.STATUS_IDLE.mask if self._left < -3 else regs.STATUS_RESETTING.mask

    def write_word(self, address: int, value: int) -> None:
        self.writes.append((address, value))

    def sleep(self, seconds: float) -> None:
        self.pauses += 1


def test_soft_reset_and_then_idle_is_waited_for() -> None:
    bus = Bus(5)
    assert quiesce(bus, BASE, regs.ID_VALUE)
    assert bus.writes == [(BASE + regs.CONTROL, 1)]
    assert bus.pauses == 8  # five that it drains, three that it clears


def test_other_logic_is_not_written_to() -> None:
    for identity in (0xFFFF_FFFF, 0, regs.ID_VALUE ^ 1):
        bus = Bus(0, identity)
        assert not quiesce(bus, BASE, regs.ID_VALUE)
        assert bus.writes == []


def test_what_never_ends_is_refused() -> None:
    with pytest.raises(RefusalError, match="could hang the board: nothing was changed"):
        quiesce(Bus(10_000), BASE, regs.ID_VALUE)


@LOADERS
def test_busy_logic_is_stilled_before_it_is_replaced(
    tmp_path: Path, xmutil: bool, first, second
) -> None:
    root = board(tmp_path, xmutil, first)
    make_busy(root)
    result = deploy(root, second)
    assert result.is_confirmed, result.error
    assert running(root) == digest_of(second)
    reset = result.actions.index(f"word {BASE + regs.CONTROL:#x}")
    unloading = next(
        number
        for number, action in enumerate(result.actions)
        if "unloadapp" in action or action.startswith("configfs")
    )
    assert reset < unloading
    make_busy(root)
    assert converse(root, ROLLBACK).is_confirmed and running(root) == digest_of(first)
    check_tidy(root)


@LOADERS
def test_busy_logic_that_does_not_end_goes_on_running(
    tmp_path: Path, xmutil: bool, first, second
) -> None:
    root = board(tmp_path, xmutil, first)
    make_busy(root)
    set_faults(root, Faults(logic="endless"))
    result = deploy(root, second)
    assert result.error and result.error["code"] == "refused"
    assert "could hang the board" in result.error["message"]
    assert running(root) == digest_of(first)
    assert not [line for line in result.actions if "unloadapp" in line or "configfs" in line]
    check_tidy(root)
    without_faults(root)
    assert deploy(root, second).is_confirmed


@pytest.mark.parametrize("is_first", [False, True])
@LOADERS
def test_logic_that_was_never_confirmed_is_stilled_as_well(
    tmp_path: Path, xmutil: bool, is_first: bool, first, second
) -> None:
    """The helper was killed before it counted; somebody has used it until the next helper came."""
    before = [] if is_first else [first]
    rehearsal = deploy(board(tmp_path / "rehearsal", xmutil, *before), second)
    confirming = [n for n, line in enumerate(rehearsal.actions, 1) if line.endswith("state.json")]
    root = board(tmp_path / "board", xmutil, *before)
    set_faults(root, Faults(at=confirming[-1], kind="kill"))
    assert not deploy(root, second).is_confirmed
    make_busy(root)
    ask(root, "recover", by="test")
    assert (running(root) == digest_of(first)) is not is_first
    assert not json.loads((root / LOGIC).read_text())["busy"]


@LOADERS
def test_nothing_is_asked_of_logic_that_power_has_emptied(
    tmp_path: Path, xmutil: bool, first
) -> None:
    root = board(tmp_path, xmutil, first)
    power_cycle(root)
    assert "edgerun-tlmm" in boot(Quick(root))
    assert running(root) == digest_of(first)


# ---- one lock


@pytest.fixture
def lock_of_the_board(tmp_path: Path, monkeypatch, first) -> Path:
    root = board(tmp_path, True, first)
    assert f"/{LOCK}" == lock.PATH
    monkeypatch.setattr(lock, "PATH", str(root / LOCK))
    return root


def test_logic_that_a_model_uses_is_not_replaced(lock_of_the_board: Path, second) -> None:
    root = lock_of_the_board
    held = lock.BoardLock()
    result = deploy(root, second)
    assert result.error and result.error["code"] == "busy"
    assert "in use (edgerun run, process" in result.error["message"]
    assert ask(root, "status")["locked_by"].startswith("edgerun run")
    held.release()
    held.release()
    assert deploy(root, second).is_confirmed


def test_no_model_starts_on_logic_that_is_being_replaced(lock_of_the_board: Path) -> None:
    with (
        Quick(lock_of_the_board).locked(LOCK, "me@here, process 1"),
        pytest.raises(OverlayError, match=r"in use \(me@here, process 1\): wait until"),
    ):
        lock.BoardLock()
    lock.BoardLock().release()


def test_who_only_asks_for_the_holder_keeps_no_model_from_starting(
    lock_of_the_board: Path, monkeypatch
) -> None:
    asking = os.open(lock_of_the_board / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda pause: fcntl.flock(asking, fcntl.LOCK_UN))
    lock.BoardLock().release()
    os.close(asking)


def test_two_models_do_not_share_the_logic(lock_of_the_board: Path) -> None:
    held = lock.BoardLock()
    with pytest.raises(OverlayError, match="in use"):
        lock.BoardLock()
    held.release()


def test_lock_that_may_not_be_opened_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lock, "PATH", str(tmp_path / "missing" / "x.lock"))
    with pytest.raises(OverlayError, match="cannot be opened: No such file.*run as root"):
        lock.BoardLock()
