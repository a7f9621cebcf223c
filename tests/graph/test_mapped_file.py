import os
from pathlib import Path

import numpy as np
import pytest

from edgerun.graph.mapped_file import MappedFile, find_file, forget_array

PAGES = 4 << 20


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFile:
    path = tmp_path / "weights"
    path.write_bytes(np.arange(PAGES, dtype=np.uint8).tobytes())
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return MappedFile(descriptor)
    finally:
        os.close(descriptor)


def resident_kb(name: str) -> int:
    """Resident memory of a mapped file, from the system's own account."""
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            inside = line.endswith(name)
        elif inside and first == "Rss:":
            resident += int(line.split()[1])
    return resident


def test_a_view_knows_its_place_in_the_file(mapped: MappedFile) -> None:
    whole = np.frombuffer(mapped, np.uint8)
    found = find_file(whole[1000:][24:].reshape(-1, 4))
    assert found is not None
    assert found[0] is mapped
    assert found[1] == 1024


def test_other_memory_is_no_mapped_file() -> None:
    assert find_file(np.zeros(4)) is None
    forget_array(np.zeros(4))  # nothing to do, and nothing lost


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux' /proc")
def test_forgotten_pages_are_not_resident_and_read_the_same(
    mapped: MappedFile, tmp_path: Path
) -> None:
    whole = np.frombuffer(mapped, np.uint8)
    total = int(whole.sum())
    name = str(tmp_path / "weights")
    assert resident_kb(name) == PAGES >> 10
    forget_array(whole)
    assert resident_kb(name) == 0
    assert int(whole.sum()) == total


def test_the_descriptor_is_closed_with_the_mapping(mapped: MappedFile) -> None:
    other = MappedFile(mapped.descriptor)
    descriptor = other.descriptor
    os.fstat(descriptor)
    del other
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    os.fstat(mapped.descriptor)
