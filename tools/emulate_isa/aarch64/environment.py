"""A Python for 64-bit ARM Linux and an emulator to run it, made of Debian's packages and wheels.

Nothing is installed on this machine: packages are unpacked into a folder of their own, which apt
fills for an architecture that is not this machine's, from the machine's own package sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgerun.env import settings

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "qemu-aarch64-static"
PROGRAMS = ("apt-get", "dpkg", "dpkg-deb")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
TEST_TOOLS = ("pytest", "hypothesis")
# An apt that knows of no installed package: everything that is needed comes along.
APT = """
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Debug::NoLocking "true";
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}";
"""
LAUNCHER = """#!/bin/sh
exec "{qemu}" -L "{root}" -cpu "${{EMULATED_CPU:-max}}" "{python}" "$@"
"""
# Programs that Python starts anew, as pytest-xdist and compilers do, must start the emulator.
SITE = "import sys\n\nsys.executable = {launcher!r}\n"


@dataclass(frozen=True)
class Environment:
    """A folder with the emulator, a root file system with Python, and packages for that.

    Attributes:
        folder: may not exist yet.
    """

    folder: Path

    @property
    def launcher(self) -> Path:
        """The script that starts Python in the emulator."""
        return self.folder / "python"

    @property
    def missing(self) -> str:
        """What keeps the environment from being used; empty if nothing does."""
        parts = (self._qemu, self._root, self._wheels, self.launcher)
        if all(part.exists() for part in parts):
            return ""
        return "no emulator: `python -m tools.emulate_isa aarch64 --suite none` sets it up"

    def set_up(self, say: Callable[[str], None]) -> None:
        """Makes what is missing; each part appears as a whole.

        Raises:
            RuntimeError: a program is missing, or cannot get what is needed.
        """
        if not self._qemu.exists() or not self._root.exists():
            _need(PROGRAMS)
        with _part(self._qemu, "the emulator", say) as target:
            if target:
                here = _run("dpkg", "--print-architecture").strip()
                everything = target.with_name("everything")
                _unpack_debian(here, ["qemu-user-static"], everything)
                (everything / "usr/bin" / PROGRAM).rename(target / PROGRAM)
        with _part(self._root, "Python for 64-bit ARM", say) as target:
            if target:
                _unpack_debian("arm64", ["python3", "libgcc-s1", "libstdc++6"], target)
        with _part(self._wheels, "Python's packages", say) as target:
            if target:
                _install_wheels(self._version, target)
        site = self.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SITE.format(launcher=str(self.launcher)))
        python = self._root / "usr/bin" / f"python{self._version}"
        text = LAUNCHER.format(qemu=self._qemu / PROGRAM, root=self._root, python=python)
        self.launcher.write_text(text)
        self.launcher.chmod(0o755)

    def run(
        self, arguments: Sequence[str], cpu: str, variables: Mapping[str, str], **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Runs Python on an emulated processor, in the repository's root.

        Args:
            arguments: of Python.
            cpu: QEMU's name of the processor.
            variables: of the environment, besides the ordinary ones.
            options: of ``subprocess.run``.
        """
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EDGERUN_"))
        }
        path = [self.folder / "site", self._wheels, ROOT, ROOT / "export", ROOT / "hw"]
        inherited |= {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "EMULATED_CPU": cpu,
            **variables,
        }
        command = [str(self.launcher), *arguments]
        return subprocess.run(command, cwd=ROOT, env=inherited, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]

    @property
    def _qemu(self) -> Path:
        return self.folder / "qemu"

    @property
    def _root(self) -> Path:
        return self.folder / "root"

    @property
    def _wheels(self) -> Path:
        return self.folder / "wheels"

    @cached_property
    def _version(self) -> str:
        """Version of the root's Python, such as 3.11."""
        return (self._root / "usr/bin/python3").readlink().name.removeprefix("python")


def environment() -> Environment:
    """The environment in this user's cache."""
    return Environment(settings().cache_dir / "emulate_isa" / "aarch64")


@contextmanager
def _part(target: Path, name: str, say: Callable[[str], None]) -> Iterator[Path | None]:
    """A folder to fill, which becomes ``target`` at the end; None if that is there already."""
    if target.exists():
        yield None
        return
    say(f"getting {name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as parent:
        folder = Path(parent) / "part"
        folder.mkdir()
        yield folder
        folder.rename(target)


def _unpack_debian(architecture: str, packages: Sequence[str], target: Path) -> None:
    """Unpacks packages and all that they depend on."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        for folder in ("lists/partial", "archives/partial"):
            (state / folder).mkdir(parents=True)
        (state / "status").touch()
        configuration = state / "apt.conf"
        configuration.write_text(APT.format(architecture=architecture, state=state))
        variables = {**os.environ, "APT_CONFIG": str(configuration)}
        _run("apt-get", "update", "--quiet", env=variables)
        _run("apt-get", "install", "--yes", "--download-only", *packages, env=variables)
        for package in sorted((state / "archives").glob("*.deb")):
            _run("dpkg-deb", "--extract", str(package), str(target))


def _install_wheels(version: str, target: Path) -> None:
    """Installs what edgerun and its tests need, as wheels for 64-bit ARM."""
    import tomllib  # new in Python 3.11, which what is only read here need not know

    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    tools = [tool for tool in extras["dev"] if tool.startswith(TEST_TOOLS)]
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"),
        *(f"--target={target}", f"--python-version={version}", *platforms),
        *project["dependencies"],
        *extras["export"],
        *tools,
    )


def _need(programs: Sequence[str]) -> None:
    if missing := [program for program in programs if shutil.which(program) is None]:
        raise RuntimeError(f"{', '.join(missing)} not found: a Debian system is needed")


def _run(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {done.stderr.strip()}")
    return done.stdout
