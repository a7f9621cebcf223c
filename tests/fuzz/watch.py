"""Sees what a process opens, starts and connects to, and says what it must not.

Python's audit events tell of every file that Python opens; what native code opens by itself shows
among the process's mappings and descriptors, which ``check_mappings`` looks through.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgerun.env import settings

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = (
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/sys/devices/system/",
    "/sys/fs/cgroup/",
    "/dev/null",
    "/dev/urandom",
)
LIMITS = "/proc/self/cgroup"  # a link to the process that asks
# Python's own modules make classes by executing text.
CLASS_MAKERS = ("dataclasses.py", "collections/__init__.py", "enum.py", "functools.py")
PATH_EVENTS = {
    "os.remove": 1,
    "os.rename": 2,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.chmod": 1,
    "shutil.rmtree": 1,
}
FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.forkpty", "pty.spawn", "pickle.find_class")


class Watch:
    """What one process may do.

    Attributes:
        violations: what it did besides, one sentence each.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._on = False
        self._folder = ""
        self._before: set[str] = set()
        self._code = tuple(sorted({os.path.realpath(path) + "/" for path in _code_folders()}))
        self._files = (*self._code, os.path.realpath(settings().cache_dir) + "/", *SYSTEM)

    def install(self) -> None:
        """Begins to listen; Python has no way to stop."""
        sys.addaudithook(self._event)

    def start(self, folder: Path) -> None:
        """From here on only ``folder``, code and the kernel cache may be touched."""
        self._folder = os.path.realpath(folder)
        self._before = _in_use()
        self.violations = []
        self._on = True

    def stop(self) -> None:
        """Everything may be touched again."""
        self._on = False

    def check_mappings(self) -> None:
        """Looks at what is mapped and open now."""
        if not self._on:
            return
        self._on = False
        in_use = _in_use()
        self._on = True
        for path in sorted(in_use - self._before):
            if not self._may_touch(path):
                self.violations.append(f"has {path} open")

    def _event(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        self._on = False  # looking at an event makes events
        try:
            self._judge(name, arguments)
        finally:
            self._on = True

    def _judge(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open" and not isinstance(arguments[0], int):
            self._touch("opens", arguments[0], follow=not (arguments[2] or 0) & os.O_NOFOLLOW)
        elif name in PATH_EVENTS:
            for path in arguments[: PATH_EVENTS[name]]:
                self._touch(name, path, follow=False)
        elif name in ("subprocess.Popen", "os.posix_spawn"):
            if arguments[0] != sys.executable:
                self.violations.append(f"starts {arguments[0]!r}")
        elif name == "exec":
            self._execute(arguments[0].co_filename)
        elif name in FORBIDDEN or name.startswith("socket."):
            self.violations.append(f"{name} {arguments!r}"[:300])

    def _execute(self, source: str) -> None:
        if source == "<string>" and sys._getframe(3).f_code.co_filename.endswith(CLASS_MAKERS):
            return
        if not source.startswith("<frozen ") and not os.path.realpath(source).startswith(
            self._code
        ):
            self.violations.append(f"executes code of {source}")

    def _touch(self, verb: str, path: Any, *, follow: bool) -> None:
        if isinstance(path, int) or path is None:
            return
        name = os.fsdecode(path)
        if not self._may_touch(name, follow=follow):
            self.violations.append(f"{verb} {name}"[:300])

    def _may_touch(self, name: str, *, follow: bool = True) -> bool:
        """Whether a file may be opened, where a link at the end of its name is followed or not."""
        if "\0" in name:
            return True  # no file has such a name
        if name == LIMITS:
            return True
        folder, last = os.path.split(os.path.abspath(name))
        path = os.path.realpath(name) if follow else os.path.join(os.path.realpath(folder), last)
        if path == self._folder or path.startswith(self._folder + os.sep):
            return True
        # A link in the bundle may not lead to what is free to everybody else either.
        return path.startswith(self._files) and not os.path.abspath(name).startswith(self._folder)


def _in_use() -> set[str]:
    """Files that are mapped or open."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        names = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    names |= {_link(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    return {name for name in names if name.startswith("/")}


def _code_folders() -> set[str]:
    paths = sysconfig.get_paths()
    names = {sys.prefix, sys.base_prefix, str(ROOT), *site.getsitepackages()}
    names |= {
        paths["stdlib"],
        paths["platstdlib"],
        paths["purelib"],
        "/usr/lib",
        "/lib",
        "/etc/ld.so.cache",
    }
    return {name for name in names if not tempfile.gettempdir().startswith(name)}


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


WATCH = Watch()
check_mappings: Callable[[], None] = WATCH.check_mappings
