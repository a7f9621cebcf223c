"""Conversations with boards: where sockets of shared connections lie, and how one breaks off."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgerun import env
from edgerun_hw.deploy import client
from edgerun_hw.deploy.errors import BoardError
from tests.hw.deploy.harness import board, check_tidy, digest_of, running


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="e", dir="/tmp"))  # a socket's path is short
    chosen = env.read_settings({"EDGERUN_CACHE": str(folder)})
    monkeypatch.setattr(env, "settings", lambda: chosen)
    yield folder
    shutil.rmtree(folder)


def test_sockets_lie_in_a_folder_of_ours(cache: Path) -> None:
    (cache / "ssh").mkdir()
    (cache / "ssh").chmod(0o777)
    assert f'ControlPath="{cache}/ssh/%C"' in client.ssh_target("board").command
    assert stat.S_IMODE((cache / "ssh").stat().st_mode) == 0o700


@pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is not installed")
@pytest.mark.parametrize("name", ["c d", "50%", "a%Cb", "it's", 'a"b', "a\\b", "#x"])
def test_a_folder_of_any_name_can_hold_sockets(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    chosen = env.read_settings({"EDGERUN_CACHE": str(cache / name)})
    monkeypatch.setattr(env, "settings", lambda: chosen)
    command = client.ssh_target("board").command
    options = subprocess.run(["ssh", "-G", *command[1:]], capture_output=True, text=True)
    assert options.returncode == 0, options.stderr
    (line,) = (line for line in options.stdout.splitlines() if line.startswith("controlpath "))
    path = line.removeprefix("controlpath ")
    assert path.startswith(f"{cache / name}/ssh/") and "%" not in path.removeprefix(
        f"{cache / name}"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_somebody_else_is_not_used_and_this_is_said(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner could put a socket of their own there and read what is sent to the board."""
    (cache / "ssh").mkdir(mode=0o700)
    os.chown(cache / "ssh", 65534, 0)
    assert "Control" not in " ".join(client.ssh_target("board").command)
    assert "belongs to user 65534" in caplog.text


def test_a_link_to_a_folder_is_not_used(cache: Path) -> None:
    (cache / "elsewhere").mkdir()
    (cache / "ssh").symlink_to(cache / "elsewhere")
    assert "Control" not in " ".join(client.ssh_target("board").command)


def test_upload_that_is_interrupted_in_the_middle_of_a_chunk_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: dict[str, bytes]
) -> None:
    """The helper waits for the other half, and would take another request for it."""
    root, send = board(tmp_path, True, first), client.Board._send

    def interrupted(self: client.Board, data: bytes) -> None:
        is_chunk = data.startswith(b'{"op": "chunk"')
        send(self, data[: len(data) // 2] if is_chunk else data)
        if is_chunk:
            raise KeyboardInterrupt

    monkeypatch.setattr(client.Board, "_send", interrupted)
    with client.Board(client.sysroot_target(root), patience_s=5) as there:
        there.ask("begin", application="edgerun-tlmm", manifest="0" * 64, by="test")
        with pytest.raises(KeyboardInterrupt):
            there.upload("edgerun-tlmm.bit.bin", bytes(4096), lambda size: None)
        with pytest.raises(BoardError, match="was left during chunk, and takes back"):
            there.ask("abort")
    assert running(root) == digest_of(first)
    check_tidy(root)
