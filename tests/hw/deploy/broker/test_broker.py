"""The helper: what it writes where, whom it trusts, and that it is one file by itself."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgerun_hw.deploy.broker import PROTOCOL
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.board.loader import Sysfs
from edgerun_hw.deploy.broker.board.system import System
from edgerun_hw.deploy.broker.errors import BusyError, FailureError, RefusalError
from edgerun_hw.deploy.broker.session import LOCK
from edgerun_hw.deploy.broker_file import broker_file
from edgerun_hw.deploy.emulate.board import Faults, make_root, set_faults
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.sample import sample_overlay, sample_package
from tests.hw.deploy.harness import (
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


def fast(seed: int) -> dict[str, bytes]:
    """An application that was built for 250 MHz."""
    return sample_package(example_bit(BOARDS["kv260"], seed), hertz=250_000_000)


class Recorder(System):
    """Answers from a dictionary, and writes down what is written, in order."""

    def __init__(self, root: Path, answers: dict[str, str] | None = None) -> None:
        super().__init__(root)
        self.writes: list[tuple[str, object]] = []
        self.words: dict[int, int] = {}
        self._answers = answers or {}

    def write_attribute(self, path: str, data: bytes) -> None:
        self.writes.append((path, data))

    def make_node(self, path: str) -> None:
        self.writes.append(("mkdir", path))

    def read_text(self, path: str) -> str:
        return self._answers.get(path, "")

    def read_word(self, address: int) -> int:
        return self.words.get(address, 0xFFFF_FFFF)

    def write_word(self, address: int, value: int) -> None:
        self.writes.append((hex(address), hex(value)))
        self.words[address] = value

    def run(self, *command: str) -> str:
        self.writes.append(("run", command))
        return self._answers.get(" ".join(command), "")

    def sleep(self, seconds: float) -> None:
        pass


def test_sysfs_writes_flags_then_firmware_then_overlay(tmp_path: Path) -> None:
    folder = tmp_path / "lib/firmware/xilinx/a"
    folder.mkdir(parents=True)
    (folder / "a.dtbo").write_bytes(b"overlay")
    manager, node = "sys/class/fpga_manager/fpga0", "sys/kernel/config/device-tree/overlays/edgerun"
    search = "sys/module/firmware_class/parameters/path"
    system = Recorder(tmp_path, {f"{manager}/state": "operating", f"{node}/status": "applied"})
    Sysfs(system).load("a")
    assert system.writes == [
        (search, b"/lib/firmware/xilinx/a"),
        (f"{manager}/flags", b"0"),
        (f"{manager}/firmware", b"a.bit.bin"),
        ("mkdir", node),
        (f"{node}/dtbo", b"overlay"),
        (search, b"\n"),
    ]


def test_clock_and_width_registers_of_zynq_ultrascale(tmp_path: Path) -> None:
    system = Recorder(tmp_path)
    clocks = {"pl1": settings.Clock("RPLL", (6, 2), 100_000_000)}
    settings.apply(system, settings.clock_updates("zynqmp", clocks), "zynqmp")
    widths = {"S_AXI_HP0_FPD": 128, "M_AXI_HPM1_FPD": 32}
    settings.apply(system, settings.width_updates("zynqmp", widths), "zynqmp")
    # PL1_REF_CTRL: CLKACT, DIVISOR1 = 2, DIVISOR0 = 6, SRCSEL = 2; other bits as they were.
    assert system.writes == [
        ("0xff5e00c4", hex(0xFFFF_FFFF & ~0x013F3F07 | 0x0102_0602)),
        ("0xfd615000", hex(0xFFFF_F3FF)),
        ("0xfd380000", hex(0xFFFF_FFFC)),
        ("0xfd380014", hex(0xFFFF_FFFC)),
    ]


def test_clock_registers_of_zynq_7000_are_unlocked_and_stay_so(tmp_path: Path) -> None:
    """Linux unlocks them once: behind a lock its FPGA manager and clocks would write to nothing."""
    system = Recorder(tmp_path)
    clocks = {"pl0": settings.Clock("IO", (5, 2), 100_000_000)}
    settings.apply(system, settings.clock_updates("zynq7", clocks), "zynq7")
    assert system.writes == [
        ("0xf8000008", hex(0xDF0D)),
        ("0xf8000170", hex(0xFFFF_FFFF & ~0x03F03F30 | 0x0020_0500)),
    ]


def test_emulated_zynq_7000_loses_what_is_written_behind_its_lock(tmp_path: Path) -> None:
    """Its rules themselves: without them the tests of that board would show nothing."""
    make_root(tmp_path, "pynq-z2", xmutil=False)
    files = sample_package(example_bit(BOARDS["pynq-z2"]), board="pynq-z2")
    system, clock, port = Quick(tmp_path), 0xF800_0180, 0xF800_8000
    system.write_word(clock, 5)
    system.write_word(0xF800_0004, 0x767B)
    for register in (clock, port):
        system.write_word(register, 6)
    assert (system.read_word(clock), system.read_word(port)) == (5, 6)
    (tmp_path / "lib/firmware/any").touch()
    with pytest.raises(AssertionError, match="the slcr is locked"):
        system.write_attribute("sys/class/fpga_manager/fpga0/firmware", b"any")
    system.write_word(*settings.SLCR_UNLOCK)
    system.write_word(clock, 7)
    assert system.read_word(clock) == 7
    assert deploy(tmp_path, files).is_confirmed
    system.write_word(clock, 8)
    assert system.read_word(clock) == 8


def test_rates_are_read_where_the_kernel_says_them() -> None:
    """Names as in Linux' zynqmp and zynq clock drivers; the emulated board has them from us."""
    assert settings.rate_file("zynqmp", "pl1") == "sys/kernel/debug/clk/pl1_ref/clk_rate"
    assert settings.rate_file("zynq7", "pl2") == "sys/kernel/debug/clk/fclk2/clk_rate"


def test_clock_registers_that_stay_as_they_are_fail_the_deployment(tmp_path: Path, first) -> None:
    root = board(tmp_path / "board", True, first)
    set_faults(root, Faults(logic="stuck"))
    fast_one = fast(2)
    result = deploy(root, fast_one)
    assert result.error and "does not let clocks" in result.error["message"]
    assert running(root) == digest_of(first)
    set_faults(root, Faults())
    assert deploy(root, fast_one).is_confirmed


@pytest.mark.parametrize("xmutil", [True, False])
def test_clock_that_runs_at_another_rate_is_noticed_and_taken_back(
    tmp_path: Path, xmutil: bool
) -> None:
    """The board's own 100 MHz under a design of 250: right answers, slowly, and no error."""
    old, new = (fast(seed) for seed in (1, 2))
    root = board(tmp_path / "board", xmutil, old)
    assert (root / settings.rate_file("zynqmp", "pl0")).read_text() == "250000000\n"
    set_faults(root, Faults(logic="slow"))
    result = deploy(root, new)
    message = "clock pl0 runs at 99.999999 MHz and the logic was built for 249.999998 MHz"
    assert result.error and message in result.error["message"]
    assert message in result.answers[-1]["broken"]  # the old one runs as slowly
    without_faults(root)
    ask(root, "recover", by="test")
    assert running(root) == digest_of(old)


def test_clock_whose_rate_the_kernel_does_not_say_is_not_believed(tmp_path: Path, first) -> None:
    root = board(tmp_path / "board")
    system = Quick(root)
    clocks = {"pl2": settings.Clock("IOPLL", (15, 1), 100_000_000)}
    with pytest.raises(FailureError, match="mount debugfs"):
        settings.check_rates(system, clocks, "zynqmp")
    file = root / settings.rate_file("zynqmp", "pl2")
    file.parent.mkdir(parents=True)
    for text, agrees in (("100499999", True), ("100500001", False), ("99499999", False)):
        file.write_text(text + "\n")
        if agrees:
            settings.check_rates(system, clocks, "zynqmp")
        else:
            with pytest.raises(FailureError, match="clock pl2 runs at"):
                settings.check_rates(system, clocks, "zynqmp")


def test_links_in_the_firmware_folder_lead_nowhere(tmp_path: Path, first, second) -> None:
    root = board(tmp_path / "board", True, first)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("precious")
    place = root / "lib/firmware/xilinx/edgerun-tlmm"
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    place.symlink_to(victim)
    deploy(root, second)
    incoming = root / "lib/firmware/edgerun/incoming"
    incoming.symlink_to(victim)
    deploy(root, second)
    assert [file.name for file in victim.iterdir()] == ["precious"]


def test_second_deployment_waits_outside(tmp_path: Path, first, second) -> None:
    root = board(tmp_path / "board", True, first)
    system = Quick(root)
    with system.locked(LOCK, "somebody@there, process 1, since today"):
        result = deploy(root, second)
        assert result.error == {
            "code": "busy",
            "message": "this board's logic is in use (somebody@there, process 1, since today): "
            "wait until that is done",
        }
        assert ask(root, "status")["locked_by"].startswith("somebody@there")
    assert ask(root, "status")["locked_by"] is None
    assert deploy(root, second).is_confirmed


def test_lock_of_a_killed_process_does_not_hold(tmp_path: Path) -> None:
    root = board(tmp_path / "board")
    (root / LOCK).write_text("a process that is dead")
    assert ask(root, "status")["locked_by"] is None
    with (
        Quick(root).locked(LOCK, "me"),
        pytest.raises(BusyError, match="me"),
        Quick(root).locked(LOCK, "you"),
    ):
        pass


def test_silence_ends_the_conversation_and_takes_back(tmp_path: Path, first, second) -> None:
    root = board(tmp_path / "board", True, first)
    command = [sys.executable, "-m", "edgerun_hw.deploy.emulate.board", "serve", str(root)]
    helper = subprocess.Popen(
        [*command, "--patience", "0.3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert helper.stdin and helper.stdout
    # All at once, for it must not be this process that is silent in between.
    helper.stdin.write(
        b"".join(
            json.dumps({"op": op, **fields}).encode() + b"\n" + data
            for op, data, fields in deployment(second)[:-1]
        )
    )
    helper.stdin.flush()
    helper.wait(100)
    assert len(helper.stdout.readlines()) == len(deployment(second)) - 1
    helper.stdin.close()
    helper.stdout.close()
    assert running(root) == digest_of(first)
    check_tidy(root)


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "QUIT", "USR1", "RTMIN"])
def test_signal_ends_the_conversation_and_takes_back(
    tmp_path: Path, name: str, first, second
) -> None:
    root = board(tmp_path / "board", True, first)
    command = [sys.executable, "-m", "edgerun_hw.deploy.emulate.board", "serve", str(root)]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert helper.stdin and helper.stdout
    for op, data, fields in deployment(second)[:-2]:  # the new one is loaded
        helper.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n" + data)
        helper.stdin.flush()
        helper.stdout.readline()
    assert running(root) == digest_of(second)
    helper.send_signal(signal.SIGTSTP)  # a helper that is stopped would hold the lock
    helper.send_signal(signal.Signals[f"SIG{name}"])
    assert helper.wait(100) == 0
    helper.stdin.close()
    helper.stdout.close()
    assert running(root) == digest_of(first)


def test_application_of_somebody_else_is_gone_back_to(tmp_path: Path, first) -> None:
    root = board(tmp_path / "board")
    other = root / "lib/firmware/xilinx/k26-starter-kits"
    other.mkdir()
    (other / "kits.bit.bin").write_bytes(first["edgerun-tlmm.bit.bin"])
    (other / "kits.dtbo").write_bytes(sample_overlay("kits.bit.bin"))
    (other / "shell.json").write_text("{}")
    Quick(root).run("/usr/bin/xmutil", "loadapp", other.name)
    assert ask(root, "status")["running"] == other.name
    set_faults(root, Faults(logic="dead", only=digest_of(first)))
    assert deploy(root, first).error
    assert ask(root, "status")["running"] == other.name
    assert deploy(root, first).is_confirmed
    from tests.hw.deploy.harness import ROLLBACK

    assert converse(root, ROLLBACK).is_confirmed
    assert ask(root, "status")["running"] == other.name


def test_damaged_records_are_reported_and_do_not_stop_a_deployment(
    tmp_path: Path, first, second
) -> None:
    root = board(tmp_path / "board", True, first)
    for name in ("state.json", "journal.json"):
        (root / "lib/firmware/edgerun" / name).write_text('{"active": [')
    assert ask(root, "status")["damaged"] == [
        "lib/firmware/edgerun/state.json",
        "lib/firmware/edgerun/journal.json",
    ]
    assert deploy(root, second).is_confirmed
    assert running(root) == digest_of(second)
    assert ask(root, "status")["damaged"] == []


def test_system_refuses_links_and_long_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    system = System(tmp_path)
    assert system.read("file", 5) == b"12345"
    with pytest.raises(RefusalError, match="more than 4"):
        system.read("file", 4)
    with pytest.raises(OSError):
        system.read("link", 5)
    with pytest.raises(RefusalError, match="not a file"):
        system.read("pipe", 5)


def test_replaced_file_is_all_old_or_all_new(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.replace("file", b"one")
    (tmp_path / "file.new").write_bytes(b"left over")
    system.replace("file", b"two")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"two"


def test_helper_is_one_reproducible_file_that_needs_the_standard_library_only(
    tmp_path: Path,
) -> None:
    file = tmp_path / "edgerun-fpga-broker"
    content = broker_file()
    assert content == broker_file() and content.startswith(b"#!/usr/bin/python3 -I\n")
    file.write_bytes(content)
    # -S: without site-packages there is no NumPy to import by accident.
    command = [sys.executable, "-I", "-S", str(file)]
    done = subprocess.run([*command, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"protocol {PROTOCOL}\n"
    done = subprocess.run([*command, "--sysroot", "/tmp"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("usage")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_helper_file_answers_as_root(tmp_path: Path) -> None:
    file = tmp_path / "edgerun-fpga-broker"
    file.write_bytes(broker_file())
    file.chmod(stat.S_IRWXU)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(file)],
        input=b'{"op": "hello", "protocol": %d}\nnonsense\n{"op": "status"}\n' % PROTOCOL,
        capture_output=True,
        timeout=100,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and b'"ok": true' in lines[0] and b"protocol" in lines[1]


def test_helper_reads_words_of_the_bus(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    memory = tmp_path / "dev" / "mem"
    memory.write_bytes(bytes(8192))
    system = System(tmp_path)
    system.write_word(4096 + 8, 0x1234_5678)
    assert memory.read_bytes()[4104:4108] == bytes.fromhex("78563412")
    assert system.read_word(4104) == 0x1234_5678


def test_program_runs_without_shell_environment_or_patience(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "secret")
    system = System(tmp_path)
    assert "secret" not in system.run("/usr/bin/env")
    assert system.run("/bin/echo", "$HOME;id") == "$HOME;id"
    with pytest.raises(FailureError, match="false failed: exit code 1"):
        system.run("/bin/false")
    script = tmp_path / "xmutil"
    script.write_text(f"#!{sys.executable}\nprint('Load Error: -1', flush=True)\nraise KeyError\n")
    script.chmod(0o755)
    with pytest.raises(FailureError, match="xmutil loadapp a failed: Load Error: -1$"):
        system.run(str(script), "loadapp", "a")
    monkeypatch.setattr("edgerun_hw.deploy.broker.board.system.COMMAND_S", 0.1)
    with pytest.raises(FailureError, match="took more than"):
        system.run("/bin/sleep", "1000")
