"""Registers are read of logic that is certainly there and has a clock; others can stop a board.

The emulated board has no clock from when an overlay is taken away until the next is applied, and
an access then is an AssertionError, which no helper survives.
"""

import json
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.application.store import JOURNAL, STATE
from edgerun_hw.deploy.broker.board.loader import FIRMWARE, NODE
from edgerun_hw.deploy.broker.errors import BusyError
from edgerun_hw.deploy.broker.session import LOCK, Session
from edgerun_hw.deploy.emulate.board import Faults, boot, set_faults
from edgerun_hw.deploy.emulate.fuzz import Script
from tests.hw.deploy.harness import (
    LOADERS,
    Quick,
    ask,
    board,
    check_tidy,
    converse,
    deploy,
    deployment,
    digest_of,
    running,
)

BASE = 0xA000_0000
STATUS = b'{"op": "status"}\n'


def unload(root: Path, xmutil: bool) -> None:
    """As somebody else would."""
    if xmutil:
        Quick(root).run("/usr/bin/xmutil", "unloadapp", "0")
    else:
        Quick(root).remove_node(NODE)


@LOADERS
def test_logic_without_its_overlay_is_not_read(tmp_path: Path, xmutil: bool, first, second) -> None:
    root = board(tmp_path, xmutil, first)
    assert ask(root, "status")["registers"]["as_expected"]
    unload(root, xmutil)
    with pytest.raises(AssertionError, match="has no clock"):
        Quick(root).read_word(BASE)
    status = ask(root, "status")
    assert (status["is_loaded"], status["registers"]) == (False, None)
    assert "edgerun-tlmm" in boot(Quick(root))
    assert running(root) == digest_of(first)
    assert ask(root, "status")["registers"]["as_expected"]
    unload(root, xmutil)
    assert deploy(root, second).is_confirmed  # what has no clock is not stilled either


@LOADERS
def test_logic_that_somebody_holds_is_not_read(tmp_path: Path, xmutil: bool, first) -> None:
    root = board(tmp_path, xmutil, first)
    with Quick(root).locked(LOCK, "somebody@there"):
        assert ask(root, "status")["registers"] is None
    assert ask(root, "status")["registers"]["as_expected"]


@LOADERS
def test_logic_of_a_change_that_has_not_ended_is_not_read(
    tmp_path: Path, xmutil: bool, first, second
) -> None:
    """Neither by the helper that makes it, nor by one that comes after it was killed."""
    root = board(tmp_path / "asked", xmutil, first)
    for steps in range(-4, 0):
        result = converse(root, [*deployment(second)[:steps], ("status", b"", {})])
        assert (result.answers[-1]["registers"], result.error) == (None, None)
    actions = deploy(board(tmp_path / "rehearsed", xmutil, first), second).actions
    placed = max(n for n, line in enumerate(actions, 1) if f"-> {FIRMWARE}/" in line)
    root = board(tmp_path / "killed", xmutil, first)
    set_faults(root, Faults(at=placed, kind="kill"))
    deploy(root, second)
    status = ask(root, "status")
    assert status["interrupted"] and status["registers"] is None


def test_nobody_takes_the_lock_while_registers_are_read(tmp_path: Path, first) -> None:
    root, tried = board(tmp_path, False, first), []

    class Watched(Quick):
        def read_word(self, address: int) -> int:
            with pytest.raises(BusyError), Quick(root).locked(LOCK, "somebody"):
                pass
            tried.append(address)
            return super().read_word(address)

    channel = Script(STATUS)
    Session(Watched(root), channel).serve()
    assert channel.answers[0]["registers"]["as_expected"] and tried == [BASE, BASE + 4]


@pytest.mark.parametrize("record", [STATE, JOURNAL])
def test_what_changes_before_the_lock_is_taken_is_noticed(
    tmp_path: Path, first, record: str
) -> None:
    """Another helper has come and gone between two looks."""
    root = board(tmp_path, False, first)
    state = json.loads((root / STATE).read_text())
    journal = {"kind": "deploy", "phase": "placing", "new": state["active"], "old": state["active"]}

    class Overtaken(Quick):
        def holder(self, path: str) -> str | None:
            found = super().holder(path)
            changed = {STATE: {**state, "since": 1}, JOURNAL: journal}[record]
            (root / record).write_text(json.dumps(changed))
            return found

    channel = Script(STATUS)
    Session(Overtaken(root), channel).serve()
    answer = channel.answers[0]
    assert (answer["is_loaded"], answer["registers"]) == (True, None)


def test_overlay_that_is_not_applied_is_not_loaded(tmp_path: Path, first, second) -> None:
    """The kernel refuses it: its folder is there, and logic without a clock behind it."""
    root = board(tmp_path, False, first)
    set_faults(root, Faults(logic="refused", only=digest_of(second)))
    result = deploy(root, second)
    assert result.error and "undone" in result.answers[-1]
    assert running(root) == digest_of(first)
    check_tidy(root)
    (root / NODE / "status").write_text("unapplied\n")
    assert ask(root, "status")["is_loaded"] is False
