"""Systems that lack what Linux has: the twins of its calls, forced."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgerun.files.positioned import memory_apart, read_at
from edgerun.kernels.host import code_memory
from edgerun.kernels.host.cores import allowed_cpus
from edgerun.kernels.host.huge_pages import HUGE_PAGE, TURNS_BYTES, ReadBuffer, zeroed_memory

# What macOS and Windows lack. Taken away once the standard library and others have looked.
MISSING = {
    "os": ("sched_getaffinity", "sched_setaffinity", "preadv", "sysconf"),
    "mmap": ("MADV_HUGEPAGE", "MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_EXEC"),
}
# Without these LLVM loads the code, and all of it is compiled anew.
FOR_CODE = ("MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_EXEC")
SCRIPT = f"""
import mmap, os, subprocess, sys
import numpy, psutil
from edgerun.cli.main import main
forced = sys.argv[1:] == ["forced"]
if forced:
    for module, names in {MISSING!r}.items():
        for name in set(names) - set({FOR_CODE!r}):
            delattr(sys.modules[module], name)
code = main(["run", "--backend", "cpu", "-p", "Hello!", "-n", "12", "--temperature", "0"])
sys.exit(code)
"""


def test_a_model_says_the_same_without_what_only_linux_has() -> None:
    done = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
        )
        for arguments in ([], ["forced"])
    ]
    assert [process.returncode for process in done] == [0, 0], done[1].stderr
    assert done[0].stdout == done[1].stdout != ""


@pytest.fixture(params=["Linux's", "the twin"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "the twin":
        for module, names in ((os, MISSING["os"]), (mmap, MISSING["mmap"])):
            for name in names:
                monkeypatch.delattr(module, name, raising=False)
    return bool(request.param == "the twin")


def test_cpus_are_those_allowed_or_all(twin: bool) -> None:
    every = set(range(os.cpu_count() or 1))
    assert allowed_cpus() and (allowed_cpus() == every if twin else allowed_cpus() <= every)


@pytest.mark.usefixtures("twin")
def test_memory_is_zero_and_starts_on_a_huge_page() -> None:
    memory = zeroed_memory(HUGE_PAGE + 5)
    assert len(memory) == HUGE_PAGE + 5
    assert memory.ctypes.data % HUGE_PAGE == 0
    assert not memory.any()
    memory[:] = 7
    assert (memory == 7).all()


@pytest.mark.usefixtures("twin")
def test_memory_to_read_into_is_used_in_turns() -> None:
    buffer, size = ReadBuffer(), TURNS_BYTES // 3 - mmap.PAGESIZE
    places = [np.frombuffer(buffer.take(size), np.uint8).ctypes.data for _ in range(4)]
    assert places[0] % HUGE_PAGE == 0 and not any(place % mmap.PAGESIZE for place in places)
    assert places[1] - places[0] == places[2] - places[1] >= size
    assert places[3] == places[0]


@pytest.mark.usefixtures("twin")
def test_memory_to_read_into_grows_to_what_is_read() -> None:
    buffer = ReadBuffer()
    small, large = buffer.take(5), buffer.take(TURNS_BYTES + 1)
    assert (len(small), len(large)) == (5, TURNS_BYTES + 1)
    large[-1] = 3
    assert len(buffer.take(TURNS_BYTES)) == TURNS_BYTES


@pytest.mark.usefixtures("twin")
def test_memory_apart_can_be_written() -> None:
    memory = np.frombuffer(memory_apart(5000), np.uint8)
    memory[-1] = 3
    assert len(memory) == 5000 and memory.sum() == 3


@pytest.mark.usefixtures("twin")
def test_a_file_is_read_at_a_place_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    out = bytearray(20)
    with path.open("rb") as file:
        assert read_at(file.fileno(), memoryview(out), 30) == 20
        assert bytes(out) == bytes(range(30, 50))
        assert read_at(file.fileno(), memoryview(out), 95) == 5
        assert bytes(out[:6]) == bytes([95, 96, 97, 98, 99, 35])
        assert read_at(file.fileno(), memoryview(out), 100) == 0


def test_code_that_cannot_be_placed_is_left_to_llvm(twin: bool) -> None:
    if twin:
        with pytest.raises(OSError, match="another way"):
            code_memory.place(4, lambda address: bytes(4))
    else:
        assert code_memory.place(4, lambda address: bytes(4)) % mmap.PAGESIZE == 0
