"""Buffers that are free again."""

from __future__ import annotations

import pytest

from edgerun.backends.cpu.buffers import BufferPool


@pytest.mark.parametrize("width", [5, 256, 1024])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "int32", "float32"])
def test_a_buffer_that_was_given_back_is_taken_again(width: int, exact: bool, dtype: str) -> None:
    pool = BufferPool(7)
    first = pool.take(width, dtype, exact=exact)
    pool.give(first)
    second = pool.take(width, dtype, exact=exact)
    assert second is first
    assert second.stride == width if exact else second.stride >= width
    assert pool.take(width, dtype, exact=exact) is not first  # which is in use


def test_rows_with_padding_are_not_taken_for_rows_without() -> None:
    pool = BufferPool(7)
    padded = pool.take(1024, "float32")
    pool.give(padded)
    exact = pool.take(1024, "float32", exact=True)
    assert exact.stride == 1024 < padded.stride


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 33), (20, 256), (1000, 3)])
def test_room_for_more_rows_than_others_have(rows: int, width: int) -> None:
    buffer = BufferPool(7).take_rows(rows, width, "int8")
    assert buffer.array.size >= rows * width
