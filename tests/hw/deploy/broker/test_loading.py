"""Loading and going back as dfx-mgr and the kernel have it, both simulated.

dfx-mgr forgets an application whose folder is moved, and its overlay stays; of-fpga-region takes
one overlay at a time. Both rules are those of the real ones (``deploy/emulate/dfx_mgr.py``).
"""

from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.board.loader import FIRMWARE, NODE, OVERLAYS, XMUTIL, Xmutil
from edgerun_hw.deploy.broker.errors import FailureError
from edgerun_hw.deploy.emulate.board import Faults, make_root, set_faults
from edgerun_hw.deploy.emulate.dfx_mgr import RELEASES
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_package
from tests.hw.deploy import harness
from tests.hw.deploy.harness import (
    KV260,
    ROLLBACK,
    Quick,
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


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_takes_deployments_and_goes_back(
    tmp_path: Path, release: str, first, second
) -> None:
    make_root(tmp_path, release=release)
    flat = sample_package(example_bit(KV260, 3), shell=b'{"shell_type": "PL_FLAT"}')
    for files in (first, second, flat, first, second, flat):
        result = deploy(tmp_path, files)
        assert result.is_confirmed, result.error
        assert running(tmp_path) == digest_of(files)
        check_tidy(tmp_path)
    result = converse(tmp_path, ROLLBACK)
    assert result.is_confirmed and running(tmp_path) == digest_of(second)
    set_faults(tmp_path, Faults(logic="error", only=digest_of(first)))
    result = deploy(tmp_path, first)
    assert result.error and "undone" in result.answers[-1], result.answers
    assert running(tmp_path) == digest_of(second)
    check_tidy(tmp_path)


def test_emulator_forgets_a_moved_application_and_keeps_its_overlay(tmp_path: Path, first) -> None:
    """The rules themselves: without them the tests here would show nothing."""
    system = Quick(board(tmp_path, True, first))
    xmutil = Xmutil(system)
    assert xmutil.running() == NAME
    system.rename(f"{FIRMWARE}/{NAME}", f"{FIRMWARE}/elsewhere")
    assert xmutil.running() is None
    assert system.names(OVERLAYS) == [f"{NAME}_image_1"]
    with pytest.raises(FailureError, match="Load Error"):
        xmutil.load("elsewhere")
    with pytest.raises(FailureError, match="returns: -1"):
        system.run("/usr/bin/xmutil", "unloadapp", "0")


def test_emulated_kernel_takes_one_overlay_at_a_time(tmp_path: Path, first) -> None:
    system = Quick(board(tmp_path, False, first))
    other = f"{OVERLAYS}/full"
    with pytest.raises(OSError, match="Region already has overlay applied"):
        system.apply(other, first[f"{NAME}.dtbo"], [f"/{FIRMWARE}/{NAME}"])
    system.withdraw(NODE)
    system.apply(other, first[f"{NAME}.dtbo"], [f"/{FIRMWARE}/{NAME}"])


def test_what_somebody_has_moved_while_loaded_is_taken_away(tmp_path: Path, first, second) -> None:
    """A board that an earlier version of the helper has left with a forgotten overlay."""
    root = board(tmp_path, True, first)
    system = Quick(root)
    system.rename(f"{FIRMWARE}/{NAME}", f"{FIRMWARE}/x")
    system.rename(f"{FIRMWARE}/x", f"{FIRMWARE}/{NAME}")
    result = deploy(root, second)
    assert result.is_confirmed, result.error
    assert running(root) == digest_of(second)
    assert len(system.names(OVERLAYS)) == 1


def test_board_that_gets_xmutil_later_lets_go_of_our_own_overlay(
    tmp_path: Path, first, second
) -> None:
    root = board(tmp_path, False, first)
    (root / XMUTIL).write_text("simulated, dfx-mgr 2024.2\n")
    result = deploy(root, second)
    assert result.is_confirmed, result.error
    assert running(root) == digest_of(second)


def test_overlay_of_somebody_else_stays(tmp_path: Path, first) -> None:
    """Such as Kria-PYNQ's, which is not about the region."""
    root = board(tmp_path)
    (root / OVERLAYS / "pynq").mkdir()
    assert deploy(root, first).is_confirmed
    assert (root / OVERLAYS / "pynq").is_dir()


@pytest.mark.parametrize("snap", ["xlnx-config", "fpgad"])
def test_board_whose_dfx_mgr_is_a_snap_is_refused_before_anything_moves(
    tmp_path: Path, first, second, snap: str
) -> None:
    root = board(tmp_path, False, first)
    (root / "snap" / snap).mkdir(parents=True)
    result = deploy(root, second)
    assert result.error and f"has the snap {snap}" in result.error["message"]
    assert result.error["code"] == "refused" and "broken" not in result.answers[-1]
    assert running(root) == digest_of(first)
    check_tidy(root)
    (root / XMUTIL).write_text("simulated, dfx-mgr 2022.1\n")  # the system's own goes before
    assert deploy(root, second).is_confirmed


@pytest.mark.parametrize("release", [None, "2022.1", "2024.2", "2025.2", "2026.1"])
def test_overlay_that_fpgautil_left_is_named(tmp_path: Path, release: str | None, first) -> None:
    """It holds the region: nothing loads, and only its owner knows what it is for."""
    root = board(tmp_path, release is not None, release=release or "")
    system = Quick(root)
    (root / FIRMWARE / "full").mkdir(parents=True)
    (root / FIRMWARE / "full" / f"{NAME}.bit.bin").write_bytes(first[f"{NAME}.bit.bin"])
    system.apply(f"{OVERLAYS}/full", first[f"{NAME}.dtbo"], [f"/{FIRMWARE}/full"])
    result = deploy(root, first)
    assert result.error, result.answers
    message = result.error["message"]
    assert "overlays of somebody else are applied (full)" in message and "fpgautil -R" in message
    system.withdraw(f"{OVERLAYS}/full")
    ask(root, "recover", by="test")
    assert deploy(root, first).is_confirmed


def test_unloading_comes_before_any_folder_moves(tmp_path: Path, first, second) -> None:
    root = board(tmp_path, True, first)
    actions = [
        line
        for line in deploy(root, second).actions
        if line.startswith("run") or f"{FIRMWARE}/{NAME}" in line
    ]
    kinds = [line.split()[2] if line.startswith("run") else "move" for line in actions]
    assert kinds == ["unloadapp", "move", "move", "loadapp"]


@pytest.mark.parametrize("is_first", [False, True])
def test_unloading_comes_before_any_folder_moves_when_going_back_too(
    tmp_path: Path, first, second, is_first: bool
) -> None:
    """An overlay that dfx-mgr forgot would be cleared away; it must not come to that."""
    root = board(tmp_path, True, *([] if is_first else [first]))
    set_faults(root, Faults(logic="dead", only=digest_of(second)))
    result = deploy(root, second)
    assert result.error and running(root) == (None if is_first else digest_of(first))
    actions = [
        line for line in result.actions if line.startswith("run") or f"{FIRMWARE}/{NAME}" in line
    ]
    kinds = [line.split()[2] if line.startswith("run") else "move" for line in actions]
    forth, back = kinds[: kinds.index("loadapp") + 1], kinds[kinds.index("loadapp") + 1 :]
    assert forth == (["move", "loadapp"] if is_first else ["unloadapp", "move", "move", "loadapp"])
    assert back == ["unloadapp", "move"] + ([] if is_first else ["move", "loadapp"])
    assert not [line for line in result.actions if line.startswith("configfs")]


@pytest.mark.parametrize("release", ["2022.1", "2024.2", "2026.1", None])
def test_what_cannot_be_unloaded_goes_on_running(
    tmp_path: Path, release: str | None, first, second
) -> None:
    """The xmutil of 2022.1 does not even fail then."""
    root = board(tmp_path, release is not None, first, release=release or "")
    set_faults(root, Faults(logic="held"))
    result = deploy(root, second)
    assert result.error is not None and running(root) == digest_of(first)
    assert not [line for line in result.actions if line.startswith(f"rename {FIRMWARE}/{NAME}")]
    failure = result.answers[-1]
    words = "does not take the overlay away" if release is None else "unload"
    assert words in failure.get("broken", result.error["message"])
    if release:  # the kernel's manager cannot tell what runs, so that it is loaded again
        assert "undone" in failure
    without_faults(root)
    ask(root, "recover", by="test")
    assert running(root) == digest_of(first)
    assert deploy(root, second).is_confirmed
    check_tidy(root)


TITLES = "Accelerator Accel_type Base Pid Base_type #slots slot->handle\n"


class Slots(Quick):
    """A board with a design of two slots, of which each holds what ``slots`` says."""

    slots: dict[str, str]

    def run(self, *command: str) -> str:
        if command[1] == "unloadapp":
            del self.slots[command[2]]
            return "returns: 0 (Ok)"
        cells = {
            name: "".join(f"{slot}->{slot}," for slot, held in self.slots.items() if held == name)
            for name in ("AES", "FFT")
        }
        rows = (f"{name} PL_DFX base ok PL_DFX (0+2) {cells[name] or -1}\n" for name in cells)
        return TITLES + "".join(rows)


@pytest.mark.parametrize("other", ["AES", "FFT"])
def test_board_with_several_loaded_slots_is_refused_before_anything_moves(
    tmp_path: Path, first, other: str, monkeypatch
) -> None:
    """One of them could not be loaded again."""
    root = board(tmp_path)
    monkeypatch.setattr(Slots, "slots", {"0": "AES", "1": other}, raising=False)
    monkeypatch.setattr(harness, "Quick", Slots)
    result = deploy(root, first)
    assert result.error is not None and result.error["code"] == "refused"
    assert f"has loaded 2 slots (AES, {other})" in result.error["message"]
    assert Slots.slots == {"0": "AES", "1": other}
    check_tidy(root)
    Xmutil(Slots(root)).unload()
    assert Slots.slots == {}


class Scripted(Xmutil):
    """Xmutil whose program answers what a test wants."""

    def __init__(self, root: Path, answer: str, listed: bool = True) -> None:
        make_root(root)
        self.calls: list[str] = []
        outer = self

        class System(Quick):
            def run(self, *command: str) -> str:
                outer.calls.append(command[1])
                if command[1] == "loadapp":
                    return answer
                return TITLES + (f"{NAME} XRT_FLAT {NAME} id_ok XRT_FLAT (0+0+0) -1" * listed)

        super().__init__(System(root))


@pytest.mark.parametrize(
    ("answer", "listed", "message"),
    [
        (f"{NAME}: Loaded with slot_handle 0", True, "is loaded, and does not list it so"),
        (f"{NAME}: Load Error: -1", True, "has not loaded edgerun-tlmm: edgerun-tlmm: Load Error"),
        ("Accelerator loaded to slot -1", True, "has not loaded"),
        ("", True, "it says nothing"),
        ("", False, "daemon.conf"),
    ],
)
def test_loading_is_asked_for_once(tmp_path: Path, answer: str, listed: bool, message: str) -> None:
    xmutil = Scripted(tmp_path, answer, listed)
    with pytest.raises(FailureError, match=message):
        xmutil.load(NAME)
    assert xmutil.calls.count("loadapp") == listed


@pytest.mark.parametrize(("failures", "answers"), [(4, True), (5, False)])
def test_daemon_that_has_just_started_is_waited_for(
    tmp_path: Path, first, failures: int, answers: bool
) -> None:
    left = [FailureError("connect: No such file or directory")] * failures

    class Starting(Quick):
        def run(self, *command: str) -> str:
            if left:
                raise left.pop()
            return super().run(*command)

    xmutil = Xmutil(Starting(board(tmp_path, True, first)))
    if answers:
        assert xmutil.running() == NAME
    else:
        with pytest.raises(FailureError, match="connect"):
            xmutil.running()


def test_helper_that_ends_while_loading_leaves_the_next_one_to_go_back(
    tmp_path: Path, first, second
) -> None:
    root = board(tmp_path, True, first)
    converse(root, deployment(second)[:-2])  # loaded, and then the connection ends
    assert running(root) == digest_of(first)
    assert len(Quick(root).names(OVERLAYS)) == 1
