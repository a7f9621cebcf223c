import os
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import BackendError
from edgerun.formats.base import PackedWeight
from edgerun.graph.mapped_file import ArrayReader, MappedFile, find_file, read_array
from edgerun.model.bundle import open_bundle
from tests.support.bundles import bundle_of

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


def test_a_view_knows_its_place_in_the_file(mapped: MappedFile) -> None:
    whole = np.frombuffer(mapped, np.uint8)
    location = find_file(whole[1000:][24:].reshape(-1, 4))
    assert location is not None
    assert location[0] is mapped
    assert location[1] == 1024


def test_other_memory_is_no_mapped_file() -> None:
    assert find_file(np.zeros(4)) is None
    np.testing.assert_array_equal(read_array(np.arange(4)), np.arange(4))
    array = np.arange(4)
    assert ArrayReader().read(array) is array


def test_arrays_are_read_as_they_are_mapped(mapped: MappedFile) -> None:
    whole = np.frombuffer(mapped, np.uint8)
    for view in (whole[1000:1024], whole[4096:8192].view(np.float32).reshape(4, -1), whole[:0]):
        copy = read_array(view)
        assert find_file(copy) is None
        np.testing.assert_array_equal(copy.view(np.uint8), view.view(np.uint8))


def test_a_turned_matrix_is_read_as_well(mapped: MappedFile) -> None:
    turned = np.frombuffer(mapped, np.uint8)[:4096].reshape(32, 128).T
    copy = read_array(turned)
    assert find_file(copy) is None
    np.testing.assert_array_equal(copy, turned)


def test_a_view_with_gaps_is_no_range_of_the_file(mapped: MappedFile) -> None:
    view = np.frombuffer(mapped, np.uint8)[:4096].reshape(32, 128)[::2, ::3]
    np.testing.assert_array_equal(read_array(view), view.tolist())
    np.testing.assert_array_equal(ArrayReader().read(view), view.tolist())


def test_a_reader_uses_its_memory_again(mapped: MappedFile) -> None:
    whole, reader = np.frombuffer(mapped, np.uint8), ArrayReader()
    first = reader.read(whole[:100])
    address = first.ctypes.data
    np.testing.assert_array_equal(first, whole[:100])
    second = reader.read(whole[7:57].view(np.uint16))
    assert second.ctypes.data == address
    np.testing.assert_array_equal(second, whole[7:57].view(np.uint16))
    np.testing.assert_array_equal(reader.read(whole), whole)  # more than before
    reader.clear()
    np.testing.assert_array_equal(reader.read(whole[3:9]), whole[3:9])


def test_reading_what_was_cut_off_is_an_error(mapped: MappedFile, tmp_path: Path) -> None:
    """Touching it instead would end the process."""
    whole = np.frombuffer(mapped, np.uint8)
    mapped.check()
    os.truncate(tmp_path / "weights", PAGES // 2)
    turned = whole.reshape(-1, 1024).T
    with pytest.raises(BackendError, match="cut off"):
        read_array(turned)
    for read in (read_array, ArrayReader().read):
        with pytest.raises(BackendError, match="cut off"):
            read(whole[PAGES // 2 - 1 :])
    with pytest.raises(BackendError, match="cut off"):
        mapped.check()


@pytest.mark.parametrize("changed_ns", [1, 1 << 62])
def test_a_change_of_the_same_size_is_noticed(
    mapped: MappedFile, tmp_path: Path, changed_ns: int
) -> None:
    with (tmp_path / "weights").open("r+b") as file:
        file.write(b"x")
    os.utime(tmp_path / "weights", ns=(0, changed_ns))
    with pytest.raises(BackendError, match="changed"):
        mapped.check()


def test_the_descriptor_is_closed_with_the_mapping(mapped: MappedFile) -> None:
    other = MappedFile(mapped.descriptor)
    descriptor = other.descriptor
    os.fstat(descriptor)
    del other
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    os.fstat(mapped.descriptor)


def test_scales_in_half_precision_are_read_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at in a mapping counts as memory of the process, as do copies of it."""
    sizes, read_into = [], MappedFile.read_into

    def noted(file: MappedFile, offset: int, out: memoryview) -> None:
        sizes.append(len(out))
        read_into(file, offset, out)

    monkeypatch.setattr(MappedFile, "read_into", noted)
    graph = open_bundle(bundle_of("llama", weights="int4", scales="fp16")).graph
    packed = [each for each in graph.constants.values() if isinstance(each, PackedWeight)]
    assert {each.scales.dtype for each in packed} == {np.dtype(np.float16)}
    assert all(find_file(each.scales) for each in packed)
    assert all(each.scales.nbytes in sizes for each in packed)
