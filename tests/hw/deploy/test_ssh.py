"""Deploying through a real sshd: one of our own, on the loopback interface."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgerun.errors import EdgerunError
from edgerun_hw.deploy import client, plan, steps
from edgerun_hw.deploy.errors import BoardError
from edgerun_hw.deploy.package import Package, read_package
from tests.hw.deploy.harness import board, digest_of, running

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
pytestmark = pytest.mark.skipif(
    not (Path(SSHD).exists() and shutil.which("ssh") and shutil.which("ssh-keygen")),
    reason="needs OpenSSH's client and server (openssh-server)",
)


@dataclass
class Server:
    """An sshd with one user, whose host and user keys were made for it."""

    folder: Path
    port: int

    def target(self, root: Path, patience_s: float = 60.0) -> client.Target:
        options = {
            "Port": self.port,
            "IdentityFile": self.folder / "user",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known",
            "StrictHostKeyChecking": "yes",
            "GlobalKnownHostsFile": self.folder / "nobody",
            "ControlMaster": "auto",
            "ControlPersist": "30",
            "ControlPath": self.folder / "m",
        }
        command = f"{sys.executable} -m edgerun_hw.deploy.emulate.board serve {root}"
        path = f"PYTHONPATH={os.pathsep.join(p for p in sys.path if p)}"
        return client.ssh_target(
            f"{getpass.getuser()}@127.0.0.1",
            f"env {path} {command} --patience {patience_s}",
            [f"{name}={value}" for name, value in options.items()],
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host_key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "allowed").write_bytes((folder / "user.pub").read_bytes())
    config = f"""
        Port {port}
        ListenAddress 127.0.0.1
        HostKey {folder}/host
        AuthorizedKeysFile {folder}/allowed
        PidFile none
        UsePAM no
        StrictModes no
        PasswordAuthentication no
        PermitRootLogin prohibit-password
    """
    (folder / "config").write_text(config)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd as root separates its privileges
    daemon = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(folder / "config")], stderr=subprocess.PIPE
    )
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield Server(folder, port)
    subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={folder}/m", "x"], capture_output=True)
    daemon.terminate()
    daemon.communicate()


def packaged(folder: Path, files: dict[str, bytes]) -> Package:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return read_package(folder)


def deploy(target: client.Target, package: Package) -> plan.Outcome:
    with client.Board(target) as there:
        outcome = plan.Outcome(there.hello())
        todo = plan.deploy_steps(package, Path("x"), there, outcome, lambda done, total: None)
        steps.run(todo, lambda step, result: None)
    return outcome


def test_deployment_over_ssh(server: Server, tmp_path: Path, first, second) -> None:
    root = board(tmp_path / "board", True, first)
    outcome = deploy(server.target(root), packaged(tmp_path / "p", second))
    assert outcome.done and running(root) == digest_of(second)


def test_wrong_host_key_is_refused(server: Server, tmp_path: Path) -> None:
    known_hosts = server.folder / "known"
    good = known_hosts.read_text()
    subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={server.folder}/m", "x"], check=False)
    known_hosts.write_text(good.split()[0] + " " + (server.folder / "user.pub").read_text())
    try:
        with (
            client.Board(server.target(tmp_path)) as there,
            pytest.raises(BoardError, match="cannot be reached: .*(Host key|verification)"),
        ):
            there.hello()
    finally:
        known_hosts.write_text(good)


def test_missing_helper_is_named_with_what_to_do(server: Server, tmp_path: Path) -> None:
    target = server.target(tmp_path)
    broken = client.Target(target.name, (*target.command[:-1], client.INSTALLED), True)
    with client.Board(broken) as there, pytest.raises(BoardError, match="edgerun fpga broker"):
        there.hello()


@pytest.mark.parametrize(
    "op",
    [
        "put",
        "load",
        *(
            pytest.param(op, marks=pytest.mark.slow)
            for op in ("begin", "seal", "install", "verify")
        ),
    ],
)
def test_cut_connection_leaves_the_old_application(
    server: Server, tmp_path: Path, monkeypatch, op: str, first, second
) -> None:
    """The ssh of this side is killed after ``op``; the board notices and takes back."""
    root = board(tmp_path / "board", True, first)
    package = packaged(tmp_path / "p", second)
    ask = client.Board.ask

    def cutting(self: client.Board, asked: str, **fields: object) -> dict[str, object]:
        answer = ask(self, asked, **fields)
        if asked == op:
            os.killpg(self._process.pid, signal.SIGKILL)
            subprocess.run(
                ["ssh", "-O", "exit", "-o", f"ControlPath={server.folder}/m", "x"],
                capture_output=True,
            )
        return answer

    monkeypatch.setattr(client.Board, "ask", cutting)
    with pytest.raises(EdgerunError, match="cut during"):
        deploy(server.target(root), package)
    deadline = time.monotonic() + 100
    while (root / "lib/firmware/edgerun/journal.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(root) == digest_of(first)
    monkeypatch.setattr(client.Board, "ask", ask)
    assert deploy(server.target(root), package).done
    assert running(root) == digest_of(second)


def test_two_deployments_at_once_do_not_meet(server: Server, tmp_path: Path, first, second) -> None:
    root = board(tmp_path / "board", True)
    packages = [packaged(tmp_path / name, files) for name, files in (("a", first), ("b", second))]
    results: list[object] = []

    def deploy_package(package: Package) -> None:
        try:
            results.append(deploy(server.target(root), package))
        except EdgerunError as error:
            results.append(str(error))

    threads = [threading.Thread(target=deploy_package, args=(package,)) for package in packages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [result for result in results if isinstance(result, plan.Outcome) and result.done]
    others = [result for result in results if isinstance(result, str)]
    assert done and all("logic is in use" in text for text in others)
    assert running(root) in (digest_of(first), digest_of(second))
