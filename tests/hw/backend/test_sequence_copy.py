"""The native host's copy of a sequence: what of it is valid, and what it takes of the memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun_hw.backend.native.sequence_copy import C_STOP, C_VALID, SequenceCopy
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.attention_layout import PORTS, KvLayout
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate.board.dev import CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice

BASE, MEMORY_BYTES = 0xA000_0000, 1 << 20
LAYOUT = KvLayout(8, 64)
TOKENS = 256  # of which each port's part takes 18 pages a layer
PAGES = 18


class Pages:
    """Counts the pages that a memory gives away."""

    def __init__(self, root: Path) -> None:
        logic = FakeDevice(PRESETS["attention-300"], memory_bytes=2 * MEMORY_BYTES, coherent=True)
        kernel = EmulatedKernel(root, logic, BASE, MEMORY_BYTES)
        self.port = NativePort(kernel, BASE, CLOCK_HZ, "udmabuf0")

    @property
    def given(self) -> int:
        free = sum(nbytes for _, nbytes in self.port._memory._free)
        return (MEMORY_BYTES - free) // 4096


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages(tmp_path)


def store(version: int = 1, length: int = 0) -> Any:
    """As much of a cache as a copy asks for."""
    return SimpleNamespace(context=TOKENS, version=lambda slot: version, length=lambda slot: length)


# Whole layers, and layers and some of the next one's ports.
@pytest.mark.parametrize("layers", [4, 5, 9])
def test_what_finds_no_room_gives_back_all_that_it_took(pages: Pages, layers: int) -> None:
    copy = SequenceCopy([LAYOUT] * layers, 0)
    for _ in range(2):
        with pytest.raises(MemoryError):
            copy.begin(pages.port, store(), TOKENS)
        assert (pages.given, copy.capacity) == (0, 0)
    small = SequenceCopy([LAYOUT] * 3, 1)
    small.begin(pages.port, store(), TOKENS)
    assert pages.given == 3 * PORTS * PAGES
    small.free()
    assert pages.given == 0


def test_only_tokens_of_a_complete_batch_that_the_cache_still_has_are_valid(pages: Pages) -> None:
    copy = SequenceCopy([LAYOUT], 0)
    valid = []
    for version, length, stop, complete in (
        (1, 0, 9, False),  # cut off
        (1, 0, 10, True),
        (1, 10, 11, True),
        (1, 7, 8, True),  # taken back to the seventh
        (2, 8, 9, True),  # another sequence in its place
    ):
        copy.begin(pages.port, store(version, length), stop)
        assert copy.words[0, C_STOP] == stop
        valid.append(int(copy.words[0, C_VALID]))
        if complete:
            copy.complete()
    assert valid == [0, 0, 10, 7, 0]
