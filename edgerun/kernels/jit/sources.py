"""What compiled code is made of, and the digest that tells its versions apart.

Kernels are made of the files that declare them, of activation functions, of what compiles them,
and of the files of the same rooms that these import. All else may change without anything being
compiled again. Nothing is imported to find that out.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from edgerun.discovery import added_room, folders
from edgerun.kernels.host.processor import identity
from edgerun.kernels.jit.target import host

SOURCES = Path(__file__).parents[2]
ROOMS = ("activations/*.py", "formats/*.py", "kernels/*/*.py")  # what kernels compute with
COMPILER = "kernels/jit/compiler.py"
# Beginning with the line's end these are found ten times faster than with its start.
DECLARES = re.compile(rb'\n@(?:kernel|function)\(\s*"([\w-]+)"')
IMPORTS = re.compile(rb"\nfrom edgerun\.([\w.]+) import (\([^)]*\)|.*)")


@cache
def code_version() -> str:
    """Digest of all that compiled code depends on: sources, compiler, CPU."""
    digest = hashlib.sha256()
    for path, content in sorted(sources(SOURCES).items()):
        digest.update(b"\0".join([path.encode(), content, b""]))
    processor = identity() or "\0".join(host()).encode()
    for part in (processor, _version("numba"), _version("llvmlite")):
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


def sources(root: Path) -> dict[str, bytes]:
    """Our files that compiled code is made of, by their paths below ``root``."""
    files = _rooms(root)
    reached: dict[str, bytes] = {}
    waiting = [
        COMPILER,
        *_declaring(files),
        *(path for path in files if path.startswith("activations/")),
    ]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached[path] = files[path]
            waiting += [path for path in _imported(files[path]) if path in files]
    return reached


def declaring(root: Path) -> list[str]:
    """Our files that declare kernels or other functions to be compiled."""
    return _declaring(_rooms(root))


@cache
def added_code() -> tuple[str, frozenset[str]]:
    """Digest of what other packages add to kernels, empty if nothing; names of their kernels."""
    files = added_files("edgerun.kernels", "*/*.py") + added_files("edgerun.activations", "*.py")
    code = b"\0".join(path.read_bytes() for path in files)
    names = frozenset(name.decode() for name in DECLARES.findall(code))
    return hashlib.sha256(code).hexdigest()[:16] if files else "", names


def added_files(package: str, pattern: str) -> list[Path]:
    """Files that other packages add to one of ours."""
    room = added_room(package)
    places = folders(room) if room else []
    return [path for place in places for path in sorted(Path(place).glob(pattern))]


def _rooms(root: Path) -> dict[str, bytes]:
    paths = (path for pattern in ROOMS for path in sorted(glob(pattern, root_dir=root)))
    return {path.replace(os.sep, "/"): (root / path).read_bytes() for path in paths}


def _declaring(files: Mapping[str, bytes]) -> list[str]:
    return [path for path, content in files.items() if DECLARES.search(content)]


def _imported(content: bytes) -> Iterator[str]:
    """Files that a file may import from: modules, and those that are names in packages."""
    for module, names in IMPORTS.findall(content):
        base = module.decode().replace(".", "/")
        yield f"{base}.py"
        for name in re.findall(rb"\w+", names):
            yield f"{base}/{name.decode()}.py"


def _version(package: str) -> bytes:
    """What tells versions of a package apart, without importing it or parsing its metadata."""
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).with_name("_version.py")
        if file.is_file():
            return file.read_bytes()
    from importlib.metadata import version

    return version(package).encode()
