"""The files of a model's folder: those that are listed, of the kind, size and content listed.

A folder may come from anybody. So a name must be a plain one, a file is opened without following
links or waiting for anybody, and its size is bounded before it is read or hashed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgerun.errors import BundleError
from edgerun.files.plain import (
    NotPlainError,
    TooLargeError,
    is_plain_name,
    open_plain,
    read_open,
)
from edgerun.graph.external_data import OpenFile
from edgerun.graph.onnx_reader import MAX_MODEL_BYTES
from edgerun.model.manifest import FileEntry
from edgerun.model.verification import Verification, check_content, check_digest, is_remembered

MANIFEST = "manifest.json"
GENAI_CONFIG = "genai_config.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
# By the end of a name: what is read as a whole, parsed, and then takes many times its size. The
# largest seen have 35 MB (tokenizer.json, a vocabulary of 256,000), 1 MB (tokenizer_config.json)
# and 30 kB (template).
MAX_BYTES = {
    TOKENIZER: 64 << 20,  # the largest we know has 33; reading takes three times as much
    ".json": 16 << 20,
    ".jinja": 1 << 20,
    ".onnx": MAX_MODEL_BYTES,
}
MAX_TEXT_BYTES = 16 << 20  # of any other file that is read
MAX_FILES = 256
# Files up to this size are hashed whenever a model is opened.
ALWAYS_HASHED_BYTES = 32 << 20
AGAIN = "copy or export the model again"


@dataclass(slots=True)
class BundleFiles:
    """The files of one folder.

    Attributes:
        folder: that they lie in.
        entries: size and digest by name.
        opened: the files that were checked, by name, until ``release``: who reads from these
            cannot be given others.
        unhashed: those whose content was not looked at.
    """

    folder: Path
    entries: Mapping[str, FileEntry]
    opened: dict[str, OpenFile] = field(default_factory=dict)
    unhashed: dict[str, OpenFile] = field(default_factory=dict)

    def check(self, *, verify: bool = False, later: str = "") -> None:
        """Checks names, kinds and sizes of all files, and digests of all but large ones.

        A large file with several names is hashed too, since it may be somebody else's;
        installers link files so.

        Args:
            verify: hash large files as well.
            later: a file that the caller is going to ``read``, which checks its digest.

        Raises:
            BundleError: a file is missing, is none, or is not what the entries say.
        """
        if len(self.entries) > MAX_FILES:
            raise BundleError(
                f"the manifest of {self.folder} lists {len(self.entries)} files; "
                f"at most {MAX_FILES} are accepted"
            )
        for name, entry in self.entries.items():
            file = self.opened[name] = self._open(name)
            small = entry.size <= ALWAYS_HASHED_BYTES
            if name == later:
                continue
            if not small and not verify and is_remembered(file, entry):
                continue
            if small or verify or os.fstat(file.descriptor).st_nlink > 1:
                check_digest(self.folder / name, file, entry, remember=not small)
            else:
                self.unhashed[name] = file

    def release(self) -> None:
        """Closes the files, but for those that are still to be hashed."""
        self.opened.clear()

    def read(self, name: str) -> bytes:
        """Reads a file, checked against its digest.

        Raises:
            BundleError: it is not listed, too large for its purpose, or altered.
        """
        if name not in self.entries:
            is_there = os.path.lexists(self.folder / name)
            reason = "lists no file in its manifest called" if is_there else "has no file"
            raise BundleError(f"{self.folder} {reason} '{name}'")
        path, file = self.folder / name, self.opened.get(name) or self._open(name)
        try:
            data = read_open(file.descriptor, path, max_bytes(name) or MAX_TEXT_BYTES)
        except OSError as error:
            raise BundleError(_refusal(path, error)) from error
        check_content(path, data, self.entries[name])
        self.unhashed.pop(name, None)
        return data

    def _open(self, name: str) -> OpenFile:
        """Opens a file whose name and size are as listed."""
        path, entry = self.folder / name, self.entries[name]
        if not is_plain_name(name) or name == MANIFEST:
            raise BundleError(
                f"the manifest of {self.folder} lists '{name}', which is no plain file name"
            )
        try:
            file = OpenFile(open_plain(path))
        except OSError as error:
            raise BundleError(_refusal(path, error)) from error
        fault = _size_fault(name, os.fstat(file.descriptor).st_size, entry.size)
        if fault:
            raise BundleError(f"{path} {fault}")
        return file

    def verification(self) -> Verification:
        """What hashes, in the background, the files that were not hashed yet."""
        files, self.unhashed = self.unhashed, {}
        return Verification(self.folder, files, self.entries)


def read_unlisted(path: Path, *, alone: bool = False) -> bytes:
    """Reads a file that no manifest vouches for.

    Args:
        path: of the file.
        alone: refuse one that has other names (hard links): it may be somebody else's.

    Raises:
        BundleError: it is missing, no plain file, or too large.
    """
    try:
        descriptor = open_plain(path)
        try:
            names = os.fstat(descriptor).st_nlink
            if alone and names > 1:
                raise BundleError(f"{path} has {names} names (hard links): copy it")
            return read_open(descriptor, path, max_bytes(path.name) or MAX_TEXT_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BundleError(_refusal(path, error)) from error


def max_bytes(name: str) -> int | None:
    """Size that a file may have; None if it is no kind that is read as a whole."""
    return next((limit for end, limit in MAX_BYTES.items() if name.endswith(end)), None)


def _size_fault(name: str, size: int, listed: int) -> str:
    """What is wrong with a file's size; empty if nothing is."""
    limit = max_bytes(name)
    if size != listed:
        return (
            f"has {size} bytes and the manifest says {listed}: the file is truncated or altered; "
            f"{AGAIN}"
        )
    if limit is not None and size > limit:
        return f"is too large: it has {size} bytes; at most {limit} are accepted"
    return ""


def _refusal(path: Path, error: OSError) -> str:
    if isinstance(error, NotPlainError):
        links = "; `cp -rL` copies a folder with what its links lead to" * path.is_symlink()
        return f"{path} is not a plain file: {error.strerror}{links}"
    if isinstance(error, TooLargeError):
        return f"{path} is too large: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing, but it belongs to the model; {AGAIN}"
    return f"cannot read {path}: {error.strerror}"
