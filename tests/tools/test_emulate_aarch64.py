"""All of edgerun under a Python for 64-bit ARM; and how the place for that is made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.emulate_isa.aarch64 import environment as module
from tools.emulate_isa.aarch64.command import CPUS, SUITES
from tools.emulate_isa.aarch64.environment import Environment, environment

ROOT = Path(__file__).resolve().parents[2]
AARCH64 = 183  # e_machine of an ELF file


@pytest.mark.arm
@pytest.mark.timeout(7200)
@pytest.mark.skipif(bool(environment().missing), reason=environment().missing or "set up")
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("cpu", CPUS)
def test_emulated_arm_passes(cpu: str, suite: str) -> None:
    command = [sys.executable, "-m", "tools.emulate_isa", "aarch64", "--cpu", cpu]
    done = subprocess.run([*command, "--suite", suite], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_this_machine_compiles_kernels_for_the_other() -> None:
    command = [sys.executable, "-m", "tools.emulate_isa.aarch64.cross_worker", "+neon,+dotprod"]
    params = {"bits": 2, "lanes": 16, "isa": "dotprod"}
    request = json.dumps(["linear_row", params]).encode() + b"\n"
    done = subprocess.run(command, cwd=ROOT, input=request, stdout=subprocess.PIPE, check=True)
    signatures, size, code = done.stdout.split(b"\n", 2)
    assert "x_stride" in json.loads(signatures)["linear_row"]
    assert len(code) == int(size)
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == AARCH64


def fake_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """One whose emulator prints its arguments."""

    def unpack(architecture: str, packages: list[str], target: Path) -> None:
        programs = target / "usr" / "bin"
        programs.mkdir(parents=True)
        if packages == ["qemu-user-static"]:
            (programs / module.PROGRAM).write_text('#!/bin/sh\necho "$@"\n')
            (programs / module.PROGRAM).chmod(0o755)
        else:
            (programs / "python3").symlink_to("python3.11")

    monkeypatch.setattr(module, "_unpack_debian", unpack)
    monkeypatch.setattr(module, "_install_wheels", lambda version, target: None)
    monkeypatch.setattr(module, "_need", lambda programs: None)
    monkeypatch.setattr(module, "_run", lambda *command: "amd64\n")
    return Environment(folder / "aarch64")


def test_python_is_started_in_the_emulator_on_the_processor_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fake_environment(tmp_path, monkeypatch)
    assert "sets it up" in place.missing
    place.set_up(lambda text: None)
    assert not place.missing
    done = place.run(["-c", "pass"], "cortex-a53", {}, stdout=subprocess.PIPE)
    root = tmp_path / "aarch64" / "root"
    expected = f"-L {root} -cpu cortex-a53 {root}/usr/bin/python3.11 -c pass\n"
    assert done.stdout == expected


def test_a_part_that_could_not_be_had_is_got_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fake_environment(tmp_path, monkeypatch)
    install = module._install_wheels

    def refuse(version: str, target: Path) -> None:
        (target / "half").touch()
        raise RuntimeError("pip failed: no network")

    monkeypatch.setattr(module, "_install_wheels", refuse)
    with pytest.raises(RuntimeError, match="no network"):
        place.set_up(lambda text: None)
    assert "sets it up" in place.missing
    monkeypatch.setattr(module, "_install_wheels", install)
    told: list[str] = []
    place.set_up(told.append)
    assert told == ["getting Python's packages"] and not place.missing
    assert not (place.folder / "wheels" / "half").exists()


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRAMS", ("sh", "no-such-apt"))
    with pytest.raises(RuntimeError, match="^no-such-apt not found: a Debian system is needed"):
        Environment(tmp_path / "aarch64").set_up(lambda text: None)
