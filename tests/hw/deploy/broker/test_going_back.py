"""What going back restores beside the application: clocks, port widths, and the folders."""

import json
import shutil
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.application.manifest import MANIFEST
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.board.loader import FIRMWARE, OVERLAYS
from edgerun_hw.deploy.broker.errors import FailureError
from edgerun_hw.deploy.emulate.board import Faults, power_cycle, set_faults
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.kernel import START_WORDS
from edgerun_hw.deploy.emulate.sample import sample_package, sample_tree, write_tree
from tests.hw.deploy.harness import (
    KV260,
    LOADERS,
    ROLLBACK,
    Files,
    Quick,
    ask,
    board,
    check_tidy,
    converse,
    copies,
    deploy,
    deployment,
    digest_of,
    resealed,
    running,
    without_faults,
)

NAME = "edgerun-tlmm"
PL0 = settings.CLOCK_REGISTERS["zynqmp"][0]


def fast(seed: int, name: str = NAME) -> dict[str, bytes]:
    """An application that was built for 250 MHz."""
    return sample_package(example_bit(KV260, seed), name=name, hertz=250_000_000)


def clockless(files: Files) -> dict[str, bytes]:
    """The same application, made to run at whatever clock the board has."""
    tree = sample_tree()
    nodes = tree.children["fragment@1"].children["__overlay__"].children
    (clock,) = (name for name in nodes if name.startswith("edgerun-clock"))
    del nodes[clock], nodes[next(iter(nodes))].properties["clocks"]
    fixups = tree.children["__fixups__"].properties
    del fixups["zynqmp_clk"], tree.children["__local_fixups__"]
    manifest = json.loads(files[MANIFEST]) | {"clocks": {}}
    changed = {**files, MANIFEST: json.dumps(manifest).encode()}
    return resealed(changed, {f"{NAME}.dtbo": write_tree(tree)})


def install_vendor(root: Path, files: Files, name: str) -> None:
    """Makes the folder of an application that has no manifest and sets no clock."""
    folder = root / FIRMWARE / name
    folder.mkdir()
    tree = sample_tree(f"{name}.bit.bin")
    for key in ("fragment@1", "__symbols__", "__local_fixups__"):
        del tree.children[key]
    tree.children["__fixups__"].properties = {"fpga_full": b"/fragment@0:target:0\0"}
    (folder / f"{name}.dtbo").write_bytes(write_tree(tree))
    (folder / f"{name}.bit.bin").write_bytes(files[f"{NAME}.bit.bin"])
    (folder / "shell.json").write_text("{}")


def load_vendor(root: Path, files: Files, name: str) -> None:
    """Installs and loads such an application."""
    install_vendor(root, files, name)
    Quick(root).run("/usr/bin/xmutil", "loadapp", name)


def installed(root: Path) -> dict[str, bytes]:
    """All files in the folders of applications, by path."""
    folder = root / FIRMWARE
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def fail(root: Path, files: Files) -> None:
    """Deploys an application whose logic does not answer."""
    set_faults(root, Faults(logic="dead", only=digest_of(files)))
    result = deploy(root, files)
    assert "undone" in result.answers[-1], result.answers[-1]
    without_faults(root)


def named(seed: int, name: str) -> dict[str, bytes]:
    return sample_package(example_bit(KV260, seed), name=name)


# ---- clocks and port widths


@LOADERS
def test_application_without_clocks_gets_those_back_with_which_it_ran(
    tmp_path: Path, xmutil: bool, first
) -> None:
    old = clockless(first)
    root = board(tmp_path, xmutil, old)
    rate, start = root / settings.rate_file("zynqmp", "pl0"), START_WORDS["zynqmp"]
    for _ in range(2):
        fail(root, fast(3))
        assert running(root) == digest_of(old)
        assert Quick(root).read_word(PL0) == start and rate.read_text() == "100000000\n"
        assert deploy(root, fast(3)).is_confirmed and rate.read_text() == "250000000\n"
        assert converse(root, ROLLBACK).is_confirmed
        assert Quick(root).read_word(PL0) == start and rate.read_text() == "100000000\n"
    result = converse(root, ROLLBACK)  # forth again, and no less fast
    assert result.is_confirmed and rate.read_text() == "250000000\n"


def test_application_of_somebody_else_gets_its_clocks_back(tmp_path: Path, first) -> None:
    root = board(tmp_path)
    load_vendor(root, first, "vendor")
    system, width = Quick(root), settings.PORTS["zynqmp"]["S_AXI_HP0_FPD"]
    system.write_word(PL0, START_WORDS["zynqmp"] + (5 << 8))  # 75 MHz
    system.write_word(width, 0x70)
    before = system.read_word(PL0), system.read_word(width)
    files = fast(3)
    manifest = json.loads(files[MANIFEST]) | {"port_widths": {"S_AXI_HP0_FPD": 32}}
    files = {**files, MANIFEST: json.dumps(manifest).encode()}
    fail(root, files)
    assert (system.read_word(PL0), system.read_word(width)) == before
    assert deploy(root, files).is_confirmed
    assert deploy(root, files).is_confirmed  # again: what was before is not forgotten
    assert system.read_word(width) == 0x72
    power_cycle(root)
    ask(root, "recover", by="test")
    assert converse(root, ROLLBACK).is_confirmed
    assert ask(root, "status")["running"] == "vendor"
    assert system.read_word(PL0) == before[0]


def test_clocks_are_put_back_by_the_helper_after_a_killed_one(tmp_path: Path, first) -> None:
    old, new = clockless(first), fast(3)
    root = board(tmp_path, True, old)
    actions = deploy(board(tmp_path / "other", True, old), new).actions
    load = next(n for n, line in enumerate(actions, 1) if line.endswith(f"loadapp {NAME}"))
    set_faults(root, Faults(load, "kill"))
    deploy(root, new)
    assert Quick(root).read_word(PL0) != START_WORDS["zynqmp"]
    ask(root, "recover", by="test")
    assert running(root) == digest_of(old)
    assert Quick(root).read_word(PL0) == START_WORDS["zynqmp"]


def test_records_name_no_other_registers_than_those_of_the_table(tmp_path: Path) -> None:
    system = Quick(board(tmp_path))
    for update in ((0xFF5E_0200, 0xFFFF_FFFF, 1), (PL0, 0xFFFF_FFFF, 1), (PL0, 0x013F_3F07, 8)):
        with pytest.raises(FailureError, match="no clock or port width of this board"):
            settings.apply(system, [update], "zynqmp")
        assert system.logic()["words"] == {}


# ---- folders


@LOADERS
def test_failed_deployment_of_another_name_leaves_nothing_installed(
    tmp_path: Path, xmutil: bool, first
) -> None:
    root = board(tmp_path, xmutil, first)
    before = installed(root)
    fail(root, named(2, "two"))
    assert running(root) == digest_of(first) and installed(root) == before
    check_tidy(root)


@pytest.mark.parametrize("is_first", [False, True])
def test_failed_deployment_leaves_the_folder_of_its_name_as_it_was(
    tmp_path: Path, first, is_first: bool
) -> None:
    """An application of somebody else that is installed and not loaded."""
    root = board(tmp_path, True, *([] if is_first else [first]))
    install_vendor(root, first, "cam")
    before = installed(root)
    fail(root, named(2, "cam"))
    assert running(root) == (None if is_first else digest_of(first))
    assert installed(root) == before
    check_tidy(root)


def test_failed_rollback_leaves_the_previous_application_installed(tmp_path: Path, first) -> None:
    root = board(tmp_path)
    load_vendor(root, first, "vendor")
    assert deploy(root, first).is_confirmed
    before = installed(root)
    set_faults(root, Faults(logic="error", only=""))
    assert not converse(root, ROLLBACK).is_confirmed
    ask(root, "recover", by="test")
    assert running(root) == digest_of(first) and installed(root) == before


@pytest.mark.parametrize(
    "stride", [pytest.param(11, id="share"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["kill", "io"])
def test_folder_of_the_new_name_is_there_after_a_fault_at_every_action(
    tmp_path: Path, first, stride: int, kind: str
) -> None:
    original, new = board(tmp_path / "board", True, first), named(2, "cam")
    install_vendor(original, first, "cam")
    before, copy = installed(original), copies(original)
    for at in range(3, len(deploy(copy(Faults()), new).actions) + 1, stride):
        root = copy(Faults(at, kind))
        deploy(root, new)
        ask(root, "recover", by="test")
        status = ask(root, "status")
        if status["active"]["digest"] == digest_of(first):
            assert running(root) == digest_of(first) and installed(root) == before, at
        check_tidy(root)


def test_rejected_application_goes_where_the_board_itself_has_loaded_the_old_one(
    tmp_path: Path, first
) -> None:
    """As dfx-mgr does when it starts, with its default application."""
    root, two = board(tmp_path), named(2, "two")
    load_vendor(root, first, "vendor")
    before = installed(root)
    actions = deploy(shutil.copytree(root, tmp_path / "copy"), two).actions
    load = next(n for n, line in enumerate(actions, 1) if line.endswith("loadapp two"))
    set_faults(root, Faults(load, "kill"))
    deploy(root, two)
    assert any(name.startswith("two/") for name in installed(root))
    power_cycle(root)
    Quick(root).run("/usr/bin/xmutil", "loadapp", "vendor")
    ask(root, "recover", by="test")
    assert installed(root) == before and ask(root, "status")["running"] == "vendor"
    assert [node.name for node in (root / OVERLAYS).iterdir()] == ["vendor_image_1"]


@pytest.mark.parametrize("kind", ["kill", "io"])
def test_previous_application_that_is_sent_again_can_be_gone_back_to_at_any_time(
    tmp_path: Path, kind: str, first, second
) -> None:
    original = board(tmp_path / "board", True, first, second)
    copy, upload = copies(original), deployment(first)[:-4]  # up to its check
    actions = converse(copy(Faults()), upload).actions
    renames = [n for n, line in enumerate(actions, 1) if f"/kept/{digest_of(first)}" in line]
    assert len(renames) >= 2
    for at in range(renames[0], renames[-1] + 2):
        root = copy(Faults(at, kind))
        converse(root, upload)
        without_faults(root)
        assert running(root) == digest_of(second)
        result = converse(root, ROLLBACK[:1])
        if "done" in result.answers[-1]:  # that took back what was interrupted
            check_tidy(root)
        assert converse(root, ROLLBACK).is_confirmed, at
        assert running(root) == digest_of(first)
        check_tidy(root)
