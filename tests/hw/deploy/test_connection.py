"""Where connections to boards that several commands use have their sockets."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgerun import env
from edgerun_hw.deploy import client


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
    assert f"ControlPath={cache}/ssh/%C" in client.ssh_target("board").command
    assert stat.S_IMODE((cache / "ssh").stat().st_mode) == 0o700


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
