"""Code is compiled anew when something that it is made of has changed, and for no other reason."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgerun.kernels.jit import service, sources
from edgerun.kernels.jit.object_cache import Entry

# Loaded with what kernels are made of, and nothing that they compute with.
LOADED_BESIDE = {
    "_version.py",
    "collector.py",
    "discovery.py",
    "errors.py",
    "formats/base.py",
    "formats/registry.py",
    "values.py",
}
MADE_OF = [
    "activations/silu.py",
    "formats/trits.py",
    "kernels/attention/units.py",
    "kernels/host/arm.py",
    "kernels/jit/compiler.py",
    "kernels/jit/declare.py",
    "kernels/jit/target.py",
    "kernels/lang/isa.py",
    "kernels/lang/simd.py",
    "kernels/lang/vectormath.py",
    "kernels/layouts/repack.py",
    "kernels/linear/row_tiles.py",
    "kernels/pointwise/elementwise.py",
    "kernels/probes/read.py",
    "kernels/run/runner.py",
    "kernels/run/table.py",
]
NOT_MADE_OF = [
    "backends/cpu/binder.py",
    "errors.py",
    "formats/int4.py",
    "kernels/attention/planner.py",
    "kernels/host/cores.py",
    "kernels/isa.py",
    "kernels/jit/elf.py",
    "kernels/jit/loader.py",
    "kernels/jit/service.py",
    "kernels/jit/sources.py",
    "kernels/layouts/stream.py",
    "kernels/run/instructions.py",
    "kernels/run/program.py",
    "ops/linear.py",
]
KERNEL = '\n@kernel("new", "rows:i64[1]")\ndef new(): ...\n'


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runtime's sources, of which the digest is taken."""
    root = tmp_path / "edgerun"
    shutil.copytree(sources.SOURCES, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "SOURCES", root)
    return root


def version() -> str:
    return sources.code_version.__wrapped__()


def test_the_digest_is_that_of_the_files(copy: Path) -> None:
    assert version() == sources.code_version()


@pytest.mark.parametrize("path", MADE_OF)
def test_a_change_of_what_code_is_made_of(copy: Path, path: str) -> None:
    before = version()
    with (copy / path).open("a") as file:
        file.write("\n")
    assert version() != before


@pytest.mark.parametrize("path", NOT_MADE_OF)
def test_a_change_of_anything_else(copy: Path, path: str) -> None:
    before = version()
    with (copy / path).open("a") as file:
        file.write("\n")
    assert version() == before


@pytest.mark.parametrize(
    ("path", "text", "counts"),
    [
        ("activations/curve.py", "", True),
        ("kernels/pointwise/new.py", KERNEL, True),
        ("kernels/pointwise/new.py", "", False),
        ("ops/new.py", KERNEL, False),
    ],
)
def test_a_new_file(copy: Path, path: str, text: str, counts: bool) -> None:
    before = version()
    (copy / path).write_text(text)
    assert (version() != before) == counts


LOADED = """
import importlib, json, sys
for path in sys.argv[1:]:
    importlib.import_module("edgerun." + path.removesuffix(".py").replace("/", "."))
names = [name for name in sys.modules if name.partition(".")[0] == "edgerun"]
print(json.dumps([sys.modules[name].__file__ for name in names]))
"""


def test_the_digest_covers_what_the_interpreter_loads() -> None:
    roots = [sources.COMPILER, *sources.declaring(sources.SOURCES)]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *roots], capture_output=True, text=True, check=True
    )
    files = [Path(file).relative_to(sources.SOURCES) for file in json.loads(done.stdout)]
    loaded = {file.as_posix() for file in files if file.name != "__init__.py"}
    covered = {path for path in sources.sources(sources.SOURCES) if "__init__" not in path}
    assert loaded - covered == LOADED_BESIDE
    assert covered <= loaded


def test_added_functions_are_part_of_what_applies_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Cache:
        def load(self, key: str) -> Entry:
            asked.append(key)
            return Entry(b"", "")

    monkeypatch.setattr(service, "_cache", Cache)
    monkeypatch.setattr(service, "_COMPILED", {})
    monkeypatch.setattr(service, "added_code", lambda: ("digest", frozenset()))
    service.compiled("gate", activation="curve", lanes=8)
    service.compiled("add", lanes=8)
    assert asked == ["gate-activation=curve-lanes=8-added=digest", "add-lanes=8"]
