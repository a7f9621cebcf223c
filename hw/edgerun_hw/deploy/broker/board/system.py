"""Everything that the helper does to the machine, in one place.

Paths are relative to the root of the file system, without a leading slash, and are made of
constants and of names that have been checked. ``deploy/emulate/board.py`` overrides what needs
hardware, and makes any action fail for the tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import BusyError, FailureError, RefusalError

COMMAND_S = 60.0
LOCK_ATTEMPTS, LOCK_PAUSE_S = 4, 0.05
PAGE = 4096


class NewFile:
    """A file that did not exist before; ``close`` returns once it is on the disk."""

    def __init__(self, system: System, path: str) -> None:
        self._system, self._path = system, path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(system.path(path), flags, 0o644)

    def write(self, data: bytes) -> None:
        """Appends.

        Raises:
            OSError: the disk is full.
        """
        self._system.about_to("write", self._path)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self, keep: bool = True) -> None:
        """Closes; with ``keep`` waits for the disk."""
        try:
            if keep:
                self._system.about_to("sync", self._path)
                self._system.sync(self._descriptor)
        finally:
            os.close(self._descriptor)


class System:
    """Files, kernel attributes, bus words and the one program that may be run.

    Args:
        root: of the file system; "/" except in tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._ends = math.inf

    def allow(self, seconds: float) -> None:
        """Sets how long programs and pauses may take in all, from now on."""
        self._ends = time.monotonic() + seconds

    def _left(self, seconds: float) -> float:
        remaining = self._ends - time.monotonic()
        if remaining <= 0:
            raise FailureError("it takes too long: the time for a request is over")
        return min(remaining, seconds)

    def path(self, path: str) -> Path:
        """Where ``path`` is."""
        return self._root / path

    def about_to(self, action: str, path: str) -> None:
        """Called before everything that changes something."""

    def sync(self, descriptor: int) -> None:
        """Waits until a file or folder is on the disk."""
        os.fsync(descriptor)

    def sleep(self, seconds: float) -> None:
        """Waits.

        Raises:
            FailureError: the time that ``allow`` has given is over.
        """
        time.sleep(self._left(seconds))

    # Files

    def read(self, path: str, limit: int) -> bytes:
        """Reads a regular file or attribute of at most ``limit`` bytes, following no link.

        Raises:
            FileNotFoundError: there is none.
            RefusalError: it is longer, or no file.
        """
        return self._read(path, limit, must_be_owned=False)

    def read_owned(self, path: str, limit: int) -> bytes:
        """Like ``read``, for a file that only the owner of this machine can have written.

        Raises:
            FileNotFoundError: there is none.
            RefusalError: it, or its folder, belongs to somebody else or others may write to it.
        """
        data = self._read(path, limit, must_be_owned=True)
        _check_owner(os.lstat(self.path(os.path.dirname(path))), os.path.dirname(path))
        return data

    def _read(self, path: str, limit: int, must_be_owned: bool) -> bytes:
        # Without O_NONBLOCK opening a named pipe would wait for its other end.
        descriptor = os.open(
            self.path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RefusalError(f"/{path} is not a file")
            if must_be_owned:
                _check_owner(status, path)
            data = file.read(limit + 1)
        if len(data) > limit:
            raise RefusalError(f"/{path} has more than {limit} bytes")
        return data

    def read_text(self, path: str) -> str:
        """Reads a kernel attribute; empty if there is none."""
        try:
            return self.read(path, PAGE).decode("utf-8", "replace").strip("\0\n ")
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        """Whether there is anything, be it a dangling link."""
        return os.path.lexists(self.path(path))

    def is_folder(self, path: str) -> bool:
        """Whether there is a real folder, not a link to one."""
        try:
            return stat.S_ISDIR(os.lstat(self.path(path)).st_mode)
        except OSError:
            return False

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none if there is no folder."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it.

        Raises:
            OSError: there is something else of that name, such as a link.
        """
        if self.is_folder(path):
            return
        parent = os.path.dirname(path)
        if parent:
            self.make_folder(parent)
        self.about_to("mkdir", path)
        os.mkdir(self.path(path))
        self._sync_folder(parent)

    def create(self, path: str) -> NewFile:
        """Starts a new file."""
        self.about_to("create", path)
        return NewFile(self, path)

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file's content at once: all of the old or all of the new is there."""
        temporary = f"{path}.new"
        if self.exists(temporary):
            self.remove(temporary)
        file = self.create(temporary)
        try:
            file.write(data)
        except OSError:
            file.close(keep=False)
            raise
        file.close()
        self.rename(temporary, path)

    def rename(self, old: str, new: str) -> None:
        """Renames, and waits until both folders are on the disk."""
        self.about_to("rename", f"{old} -> {new}")
        os.rename(self.path(old), self.path(new))
        for folder in {os.path.dirname(old), os.path.dirname(new)}:
            self._sync_folder(folder)

    def remove(self, path: str) -> None:
        """Removes a file or a whole folder, following no link."""
        self.about_to("remove", path)
        if self.is_folder(path):
            shutil.rmtree(self.path(path))
        elif self.exists(path):
            os.unlink(self.path(path))

    def _sync_folder(self, path: str) -> None:
        descriptor = os.open(self.path(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def locked(self, path: str, text: str) -> Iterator[None]:
        """Holds a lock that ends with this process, however it ends.

        Raises:
            BusyError: another process holds it; the message is what it passed as ``text``.
        """
        descriptor = self._open_lock(path)
        try:
            for attempt in range(LOCK_ATTEMPTS):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # `holder` of another process holds it for a moment
                    if attempt == LOCK_ATTEMPTS - 1:
                        raise BusyError(_lock_text(descriptor)) from None
                    time.sleep(LOCK_PAUSE_S)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, text.encode())
            try:
                yield
            finally:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def holder(self, path: str) -> str | None:
        """What the holder of a lock passed as ``text``; None if nobody holds it.

        A process that was killed leaves its text behind and no lock: that counts as nobody.
        """
        with self.kept_free(path) as holder:
            return holder

    @contextlib.contextmanager
    def kept_free(self, path: str) -> Iterator[str | None]:
        """Like ``holder``; if nobody holds the lock, nobody takes it meanwhile.

        Only for moments: others try for as long as ``locked`` does, then they give up.
        """
        descriptor = self._open_lock(path)
        try:
            holder = None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _lock_text(descriptor)
            yield holder
        finally:
            os.close(descriptor)

    def _open_lock(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path(path), flags, 0o600)

    # Kernel and hardware

    def write_attribute(self, path: str, data: bytes) -> None:
        """Writes a kernel attribute in one call, which is how the kernel takes it."""
        self.about_to("attribute", path)
        descriptor = os.open(self.path(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def make_node(self, path: str) -> None:
        """Makes a folder in configfs."""
        self.about_to("configfs", path)
        os.mkdir(self.path(path))

    def remove_node(self, path: str) -> None:
        """Removes a folder of configfs, whose attributes go with it."""
        self.about_to("configfs", path)
        os.rmdir(self.path(path))

    def read_word(self, address: int) -> int:
        """Reads 32 bits of the bus."""
        with self._words(address) as (words, index):
            return words[index]

    def write_word(self, address: int, value: int) -> None:
        """Writes 32 bits of the bus."""
        self.about_to("word", f"{address:#x}")
        with self._words(address) as (words, index):
            words[index] = value

    @contextlib.contextmanager
    def _words(self, address: int) -> Iterator[tuple[memoryview, int]]:
        """A page of the bus as words: a device must see one access of four bytes, not four."""
        descriptor = os.open(self.path("dev/mem"), os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
        try:
            page = mmap.mmap(descriptor, PAGE, offset=address & ~(PAGE - 1))
        finally:
            os.close(descriptor)
        with page, memoryview(page) as view, view.cast("I") as words:
            yield words, (address & (PAGE - 1)) // 4

    def run(self, *command: str) -> str:
        """Runs a program by its absolute path, without a shell or an environment.

        Raises:
            FailureError: it cannot be run, takes too long, or says that it failed.
        """
        self.about_to("run", " ".join(command))
        name = " ".join((os.path.basename(command[0]), *command[1:]))
        patience_s = self._left(COMMAND_S)
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=patience_s,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FailureError(f"{name} took more than {patience_s:.0f} s") from None
        except OSError as error:
            raise FailureError(f"{name} cannot be run: {error.strerror}") from None
        text = process.stdout.decode("utf-8", "replace").strip()
        if process.returncode:
            # xmutil is a Python program, and shows where it was when its own program failed.
            text = text.partition("Traceback (most recent")[0].strip() or text
            raise FailureError(f"{name} failed: {text[-300:] or f'exit code {process.returncode}'}")
        return text


def _check_owner(status: os.stat_result, path: str) -> None:
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusalError(
            f"/{path} belongs to somebody else or others may write to it: chown root and chmod go-w"
        )


def _lock_text(descriptor: int) -> str:
    return os.pread(descriptor, 500, 0).decode("utf-8", "replace") or "somebody"
