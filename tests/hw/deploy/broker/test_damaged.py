"""Applications on the board that can no longer be loaded do not stop what replaces them."""

import shutil
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.application.manifest import MANIFEST, SIGNATURE
from edgerun_hw.deploy.broker.application.store import JOURNAL, KEPT
from edgerun_hw.deploy.broker.board.loader import FIRMWARE
from edgerun_hw.deploy.emulate.board import Faults, power_cycle, set_faults
from tests.hw.deploy.harness import (
    LOADERS,
    ROLLBACK,
    Conversation,
    application,
    ask,
    board,
    check_tidy,
    converse,
    deploy,
    deployment,
    digest_of,
    running,
    without_faults,
)

NAME = "edgerun-tlmm"


def spoil(root: Path) -> None:
    """Alters one byte of the installed bitstream."""
    path = root / FIRMWARE / NAME / f"{NAME}.bit.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def start(root: Path) -> Conversation:
    """Starts the board again; the helper loads what counts."""
    power_cycle(root)
    return converse(root, [("recover", b"", {"by": "test"})])


@LOADERS
def test_same_application_replaces_what_was_altered(tmp_path: Path, xmutil: bool, first) -> None:
    root = board(tmp_path, xmutil, first)
    spoil(root)
    assert ask(root, "status")["is_intact"] is False
    assert deploy(root, first).is_confirmed
    assert running(root) == digest_of(first)
    assert ask(root, "status")["is_intact"] is True
    check_tidy(root)


@LOADERS
def test_same_application_mends_a_board_that_did_not_load_it(
    tmp_path: Path, xmutil: bool, first, second
) -> None:
    root = board(tmp_path, xmutil, first, second)
    spoil(root)
    assert start(root).error
    assert running(root) is None
    result = deploy(root, second)
    assert result.is_confirmed and result.answers[0]["old"] is None
    assert running(root) == digest_of(second)
    assert converse(root, ROLLBACK).is_confirmed  # the one before was not forgotten
    assert running(root) == digest_of(first)


def test_going_back_from_an_altered_application(tmp_path: Path, first, second) -> None:
    root = board(tmp_path, True, first, second)
    spoil(root)
    assert start(root).error
    assert converse(root, ROLLBACK).is_confirmed
    assert running(root) == digest_of(first)
    assert ask(root, "status")["previous"] is None


def locked_out(root: Path, xmutil: bool, first, second) -> Path:
    """A board whose journal names an application that cannot be loaded."""
    board(root, xmutil, first, second)
    spoil(root)
    new = application(3)
    set_faults(root, Faults(logic="dead", only=digest_of(new)))
    result = deploy(root, new)
    without_faults(root)
    assert "cannot be loaded" in result.answers[-1]["broken"] and (root / JOURNAL).exists()
    return root


@LOADERS
def test_journal_that_cannot_be_taken_back_does_not_stop_a_deployment(
    tmp_path: Path, xmutil: bool, first, second
) -> None:
    root, new = locked_out(tmp_path, xmutil, first, second), application(4)
    result = deploy(root, new)
    assert result.is_confirmed and running(root) == digest_of(new)
    assert "nothing is loaded now" in result.answers[0]["recovered"]
    assert result.answers[0]["old"] is None
    assert converse(root, ROLLBACK).is_confirmed
    assert running(root) == digest_of(first)


@LOADERS
def test_journal_that_cannot_be_taken_back_does_not_stop_a_rollback(
    tmp_path: Path, xmutil: bool, first, second
) -> None:
    root = locked_out(tmp_path, xmutil, first, second)
    result = converse(root, ROLLBACK)
    assert result.is_confirmed and running(root) == digest_of(first)
    assert "nothing is loaded now" in result.answers[0]["recovered"]


def test_rollback_without_anything_to_go_back_to_says_what_was_given_up(
    tmp_path: Path, first
) -> None:
    root = board(tmp_path, True, first)
    spoil(root)
    new = application(3)
    set_faults(root, Faults(logic="dead", only=digest_of(new)))
    deploy(root, new)
    without_faults(root)
    error = converse(root, ROLLBACK).error
    assert error and "no previous application" in error["message"]
    assert "nothing is loaded now" in error["message"]
    assert running(root) is None and not (root / JOURNAL).exists()
    assert deploy(root, first).is_confirmed and running(root) == digest_of(first)


def test_exchange_of_an_altered_folder_can_break_off_anywhere(tmp_path: Path, first) -> None:
    """The checked copy ends in the place, whatever was left of the other."""
    root = board(tmp_path / "count", True, first)
    spoil(root)
    actions = deploy(root, first).actions
    (leaving,) = (
        n
        for n, line in enumerate(actions, 1)
        if f"{KEPT}/{digest_of(first)}.bad" in line and line.startswith("rename")
    )
    for at in range(leaving, leaving + 4):
        root = board(tmp_path / str(at), True, first)
        spoil(root)
        set_faults(root, Faults(at, "kill"))
        assert not deploy(root, first).is_confirmed
        without_faults(root)
        assert start(root).error is None
        assert running(root) == digest_of(first)
        check_tidy(root)


def test_application_whose_folder_is_gone_is_not_intact(tmp_path: Path, first) -> None:
    root = board(tmp_path, True, first)
    shutil.rmtree(root / FIRMWARE / NAME)
    assert ask(root, "status")["is_intact"] is False


def test_new_signature_is_installed(tmp_path: Path, first) -> None:
    pytest.importorskip("cryptography")
    from edgerun_hw.deploy.signature import sign
    from tests.hw.deploy.test_package import keys

    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    old, new = keys(tmp_path / "old"), keys(tmp_path / "new")
    root = board(tmp_path / "board")
    trusted = root / "etc/edgerun/fpga-keys.pem"
    trusted.write_bytes(old[1].read_bytes())
    assert deploy(root, {**first, SIGNATURE: sign(first[MANIFEST], old[0])}).is_confirmed
    trusted.write_bytes(new[1].read_bytes())
    assert ask(root, "status")["is_intact"] is False
    files = {**first, SIGNATURE: sign(first[MANIFEST], new[0])}
    assert deploy(root, files).is_confirmed
    assert (root / FIRMWARE / NAME / SIGNATURE).read_bytes() == files[SIGNATURE]
    assert start(root).error is None and running(root) == digest_of(first)


def test_what_was_not_loaded_is_not_said_to_run(tmp_path: Path, first, second) -> None:
    root = board(tmp_path, True, first)
    power_cycle(root)
    (begin, *_) = steps = deployment(second)
    result = converse(root, [begin, ("seal", b"", {})])
    assert len(steps) > 2 and result.answers[0]["is_loaded"] is False
    undone = result.answers[-1]["undone"]
    assert "was not loaded, and is not now" in undone and "runs" not in undone
    assert running(root) is None


def test_start_of_the_board_says_what_it_took_back(tmp_path: Path, first, second) -> None:
    root = board(tmp_path, True, first)
    actions = deploy(board(tmp_path / "other", True, first), second).actions
    load = next(n for n, line in enumerate(actions, 1) if line.endswith(f"loadapp {NAME}"))
    set_faults(root, Faults(load, "kill"))
    deploy(root, second)
    recovered = ask(root, "recover", by="test")["recovered"]
    assert recovered == f"{NAME} ({digest_of(first)[:8]}) runs"
