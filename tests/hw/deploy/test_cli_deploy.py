"""The commands as a person types them, on an emulated board."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.board.loader import OVERLAYS
from edgerun_hw.deploy.broker.session import LOCK
from edgerun_hw.deploy.emulate import sample
from edgerun_hw.deploy.emulate.board import (
    EmulatedSystem,
    Faults,
    make_root,
    power_cycle,
    set_faults,
)
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay
from edgerun_hw.deploy.screen import Screen
from edgerun_hw.overlay.register_map import VERSION_VALUE
from tests.hw.deploy.harness import package, running, without_faults


def test_from_bitstream_to_board_and_back(run, place: Path) -> None:
    first, second = package(run, "one"), package(run, "two")
    assert first != second
    code, out, err = run("deploy", "one", "--sysroot", "board")
    assert (code, out) == (0, "")
    assert f"✓ verify    ID 0x544c4d4d, version {VERSION_VALUE:#010x}" in err
    code, out, _ = run("deploy", "two", "--sysroot", "board", "--json")
    assert code == 0 and json.loads(out)["old"]["digest"] == first
    assert running(place / "board") == second
    code, out, _ = run("status", "--sysroot", "board")
    assert code == 0 and f"edgerun-tlmm ({second[:8]}), loaded, since 20" in out
    code, out, _ = run("rollback", "--sysroot", "board", "--json")
    assert code == 0 and json.loads(out)["done"] and running(place / "board") == first
    code, out, _ = run("status", "--sysroot", "board", "--json")
    status = json.loads(out)
    assert status["active"]["digest"] == first and status["previous"]["digest"] == second
    code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 0 and "runs on emulated board board already" in err
    with EmulatedSystem(place / "board").locked(LOCK, "somebody@there"):
        code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 2 and "in use (somebody@there)" in err  # who may be about to replace it
    code, _, err = run("deploy", "one", "--sysroot", "board", "--force")
    assert code == 0 and "confirm" in err


def test_dry_run_prints_every_step_and_changes_nothing(run, place: Path) -> None:
    package(run, "one")
    code, out, err = run("deploy", "one", "--sysroot", "board", "--dry-run")
    assert (code, out) == (0, "")
    steps = ["package", "board", "lock", "upload", "check", "install", "load", "verify", "confirm"]
    assert [f"{i:>2} {step:<9}" in err for i, step in enumerate(steps, 1)] == [True] * len(steps)
    assert "Nothing was changed." in err and running(place / "board") is None
    assert not (place / "board/lib/firmware/edgerun").exists()
    code, _, err = run("rollback", "--sysroot", "board", "--dry-run")
    assert code == 0 and "Nothing was changed." in err
    for command in (("deploy", "one"), ("rollback",)):
        code, out, _ = run(*command, "--sysroot", "board", "--dry-run", "--json")
        assert code == 0 and json.loads(out)["done"] is False


def test_failure_on_the_board_is_one_sentence_and_exit_code_1(run, place: Path) -> None:
    first, second = package(run, "one"), package(run, "two")
    assert run("deploy", "one", "--sysroot", "board")[0] == 0
    for logic, words in {
        "error": "xmutil loadapp edgerun-tlmm failed: edgerun-tlmm: Load Error: -1",
        "dead": "the overlay's id register is 0xffffffff and not 0x544c4d4d",
    }.items():
        set_faults(place / "board", Faults(logic=logic, only=second))
        code, _, err = run("deploy", "two", "--sysroot", "board")
        last = err.splitlines()[-1]
        assert code == 1
        assert last == f"edgerun: {words}; taken back: edgerun-tlmm ({first[:8]}) runs"
        assert running(place / "board") == first


def test_refusals_are_one_sentence_and_exit_code_2(run, place: Path) -> None:
    package(run, "one")
    make_root(place / "other", "ultra96v2")
    for arguments, words in {
        ("deploy", "one", "--sysroot", "other"): "is for AMD Kria KV260, and the board is Avnet",
        ("deploy", "none", "--sysroot", "board"): "none is no package",
        ("deploy", "one", "--sysroot", "nowhere"): "nowhere is no emulated board: make one with",
        ("deploy", "one", "--host", "-oProxyCommand=id"): "is no host",
        ("deploy", "one", "--host", "a", "--sysroot", "b"): "exclude each other",
        ("deploy", "one", "--host", ""): "'' is no host",
        ("deploy", "one", "--sysroot", "board", "--trust", "no.pem"): "is not signed",
        ("rollback", "--sysroot", "board"): "no previous application on this board",
        ("package", "one.bit", "-b", "kv260", "-o", "x"): "pass the .hwh of the same build",
        ("package", "one.bit", "-b", "pynq-z2"): "TUL PYNQ-Z2 has xc7z020clg400",
        ("package", "two.dtbo", "-b", "kv260"): "has no .bit header",
        ("package", "one.bit", "-b", "kv260", "--base", "here"): "is no address",
    }.items():
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert words in err.splitlines()[-1] and len(err.splitlines()) <= 2, err


def test_board_that_names_only_its_module_is_refused_with_what_to_do(run, place: Path) -> None:
    package(run, "one")
    names = place / "board/proc/device-tree/compatible"
    names.write_bytes(b"xlnx,zynqmp-smk-k26-revB\0xlnx,zynqmp\0")
    code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 2 and '{"board": "kv260"} in /etc/edgerun/fpga.json there' in err
    names.write_bytes(b"xlnx,zynqmp-sk-kr260-revB\0xlnx,zynqmp\0")
    assert run("deploy", "one", "--sysroot", "board")[0] == 2


def test_board_without_keys_is_refused_with_what_to_do(run, place: Path) -> None:
    package(run, "one")
    (place / "board/etc/edgerun/fpga.json").unlink()
    code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 2 and "/etc/edgerun/fpga-keys.pem there" in err
    code, out, _ = run("status", "--sysroot", "board")
    assert code == 0 and "required, and no key is trusted yet" in out


def test_a_bitstream_that_is_not_there_is_what_the_message_is_about(run, place: Path) -> None:
    code, out, err = run("package", "three.bit", "-b", "kv260", "-o", "three")
    assert (code, out) == (2, "")
    assert "three.bit is no file" in err
    assert not (place / "three").exists()


def test_altered_package_does_not_reach_the_board(run, place: Path) -> None:
    package(run, "one")
    file = place / "one" / "edgerun-tlmm.bit.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 2 and "is not what the manifest says" in err
    assert not (place / "board/lib/firmware/edgerun").exists()


def test_status_tells_of_an_interrupted_deployment_and_rollback_mends_it(run, place: Path) -> None:
    first = package(run, "one")
    package(run, "two")
    assert run("deploy", "one", "--sysroot", "board")[0] == 0
    set_faults(place / "board", Faults(at=26))
    code, _, err = run("deploy", "two", "--sysroot", "board")
    assert code == 1 and "was cut during" in err and len(err.splitlines()[-1]) < 250
    without_faults(place / "board")
    code, out, _ = run("status", "--sysroot", "board")
    assert code == 0 and "was interrupted while" in out and "edgerun fpga rollback" in out
    code, _, err = run("rollback", "--sysroot", "board")
    assert code == 0 and "took back an interrupted deployment" in err
    assert running(place / "board") == first
    assert "interrupted" not in run("status", "--sysroot", "board")[1]


def test_status_names_overlays_of_others_and_who_uses_the_logic(run, place: Path) -> None:
    (place / "board" / OVERLAYS / "pynq").mkdir()
    assert "overlays" not in run("status", "--sysroot", "board")[1]
    (place / "board" / OVERLAYS / "full").mkdir()
    with EmulatedSystem(place / "board").locked(LOCK, "edgerun run, process 7"):
        code, out, _ = run("status", "--sysroot", "board")
    assert code == 0 and "full, of somebody else: the logic takes one (fpgautil -R)" in out
    assert "edgerun run, process 7" in out


def test_status_after_a_start_without_the_service(run, place: Path) -> None:
    package(run, "one")
    assert run("deploy", "one", "--sysroot", "board")[0] == 0
    power_cycle(place / "board")
    code, out, _ = run("status", "--sysroot", "board")
    assert code == 0 and "The active application is not loaded" in out
    assert run("deploy", "one", "--sysroot", "board")[0] == 0


def test_signed_package_is_checked_before_and_on_the_board(run, place: Path) -> None:
    pytest.importorskip("cryptography")
    from tests.hw.deploy.test_package import keys

    private, public = keys(place)
    package(run, "one", "--sign", private)
    package(run, "two")
    (place / "board/etc/edgerun/fpga-keys.pem").write_bytes(public.read_bytes())
    code, _, err = run("deploy", "one", "--sysroot", "board", "--trust", public)
    assert code == 0 and "a trusted signature" in err
    code, _, err = run("deploy", "two", "--sysroot", "board")
    assert code == 2 and "package it with --sign" in err


def test_helper_is_written_and_named(run, place: Path) -> None:
    code, _, err = run("broker", "-o", "helper")
    assert code == 0 and "sha256" in err
    assert (place / "helper").stat().st_mode & 0o777 == 0o755
    (place / "helper").chmod(0o600)
    (place / "helper").write_bytes((place / "helper").read_bytes() + b"of another edition")
    assert run("broker", "-o", "helper")[0] == 0
    assert (place / "helper").stat().st_mode & 0o777 == 0o755


def test_a_helper_takes_the_place_of_helpers_alone(run, place: Path) -> None:
    file, pipe = place / "notes.txt", place / "pipe"
    file.write_text("#!/usr/bin/python3 -I\nprecious")
    file.chmod(0o640)
    code, _, err = run("broker", "-o", file)
    assert code == 2 and "exists: choose another output, or add --force" in err
    assert file.read_text().endswith("precious") and file.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe, 0o600)
    code, _, err = run("broker", "-o", pipe, "--force")
    assert code == 2 and "it is a pipe" in err
    assert pipe.is_fifo() and pipe.stat().st_mode & 0o777 == 0o600
    assert run("broker", "-o", file, "--force")[0] == 0
    assert file.stat().st_mode & 0o777 == 0o755


def test_a_full_disk_leaves_no_helper(run, place: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, _, err = run("broker", "-o", "helper")
    assert code == 1 and "cannot write helper: No space left on device" in err
    assert not [path for path in place.iterdir() if "helper" in path.name]


def test_missing_ssh_and_missing_helper_are_said_plainly(run, place: Path, monkeypatch) -> None:
    code, _, err = run("status", "--broker", "/nowhere/edgerun-fpga-broker")
    assert code == 2 and "is not installed" in err
    code, _, err = run("status", "--broker", f"{sys.executable} -c print('Welcome')")
    assert code == 1 and "a login script there may print something" in err


def test_ctrl_c_takes_back(run, place: Path) -> None:
    first = package(run, "one")
    package(run, "two")
    assert run("deploy", "one", "--sysroot", "board")[0] == 0
    script = (
        "import signal, sys, time, edgerun.cli.main as m\n"
        # A shell starts background jobs with SIGINT ignored, and that is inherited.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from importlib.metadata import EntryPoint\n"
        "from edgerun_hw.deploy import client\n"
        "import edgerun.cli.commands as c\n"
        "c.added_commands = lambda: [EntryPoint('fpga', 'edgerun_hw.cli:register', 'x')]\n"
        "ask = client.Board.ask\n"
        "def slow(board, op, **fields):\n"
        "    answer = ask(board, op, **fields)\n"
        "    if op == 'load':\n"
        "        print('loaded', flush=True)\n"
        "        time.sleep(600)\n"
        "    return answer\n"
        "client.Board.ask = slow\n"
        "sys.exit(m.main(['fpga', 'deploy', 'two', '--sysroot', 'board']))\n"
    )
    tool = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert tool.stdout is not None and tool.stdout.readline() == "loaded\n"
    time.sleep(0.1)
    tool.send_signal(signal.SIGINT)
    _, err = tool.communicate(timeout=100)
    assert tool.returncode == 130 and err.endswith("edgerun: interrupted\n")
    assert running(place / "board") == first


def test_text_of_a_board_is_shown_and_not_obeyed(capsys) -> None:
    Screen().say("[bold]\x1b]52;c;eA==\x07")
    assert capsys.readouterr().err == "[bold]␛]52;c;eA==␇\n"


def test_deployment_can_be_tried_as_the_docs_say(run, tmp_path: Path, capsys) -> None:
    board, app, newer = (tmp_path / name for name in ("board", "app", "newer"))
    make_root(board, release="2025.2")
    assert sample.main([str(app)]) == sample.main([str(newer), "--release", "1"]) == 0
    for folder in (app, newer):
        assert run("deploy", folder, "--sysroot", board)[0] == 0
    _, out, _ = run("status", "--sysroot", board, "--json")
    assert json.loads(out)["previous"]
    assert run("rollback", "--sysroot", board)[0] == 0
    assert sample.main([str(app)]) == 1
    assert "File exists" in capsys.readouterr().err


def test_altered_copy_on_the_board_does_not_count_as_running(run, place: Path) -> None:
    package(run, "one")
    assert run("deploy", "one", "--sysroot", "board")[0] == 0
    assert "already" in run("deploy", "one", "--sysroot", "board")[2]
    (bitstream,) = (place / "board").rglob("xilinx/*/*.bit.bin")
    bitstream.write_bytes(bitstream.read_bytes()[:-1] + b"?")
    code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 0 and "✓ confirm" in err


def test_other_signature_does_not_count_as_running(run, place: Path) -> None:
    pytest.importorskip("cryptography")
    from tests.hw.deploy.test_package import keys

    package(run, "one")
    assert run("deploy", "one", "--sysroot", "board")[0] == 0
    private, _ = keys(place)
    package(run, "one", "--sign", private, "--force")
    code, _, err = run("deploy", "one", "--sysroot", "board")
    assert code == 0 and "✓ confirm" in err
    (signature,) = (place / "board").rglob("xilinx/*/manifest.json.sig")
    assert signature.read_bytes() == (place / "one/manifest.json.sig").read_bytes()


def test_rollback_says_what_could_not_be_loaded_again(run, place: Path) -> None:
    first, _ = package(run, "one"), package(run, "two")
    for name in ("one", "two"):
        assert run("deploy", name, "--sysroot", "board")[0] == 0
    (bitstream,) = (place / "board").rglob("xilinx/*/*.bit.bin")
    bitstream.write_bytes(bitstream.read_bytes()[:-1] + b"?")
    (place / "three.bit").write_bytes(example_bit(BOARDS["kv260"], 7, 80_000))
    (place / "three.dtbo").write_bytes(sample_overlay())
    third = package(run, "three")
    set_faults(place / "board", Faults(logic="dead", only=third))
    code, _, err = run("deploy", "three", "--sysroot", "board")
    without_faults(place / "board")
    assert code == 1 and "going back failed too" in err
    code, _, err = run("rollback", "--sysroot", "board")
    assert code == 0 and f"from nothing to edgerun-tlmm ({first[:8]})" in err
    assert "cannot be loaded" in err and "nothing is loaded now" in err
    assert running(place / "board") == first
