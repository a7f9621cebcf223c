"""Lays out the emulated machine's memory, and takes the results back out of it.

Arrays keep their contents but get new addresses: each ends where a page ends and has an unmapped
page on either side, so that a kernel that reads or writes behind its data faults. What lies
before an array in its first page is filled with a pattern that must stay as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from .build import IMAGE, PAGE, RESET
from .processors import Processor

DATA = 1 << 38  # virtual address of the kernels' data; everything else lies at its physical one
FILLER = 0xA5
STACK_BYTES = 1 << 18
ENTRIES = 512  # of a page table
BIG_PAGE = 1 << 21
# Bits of a page table's entry. The processor sets ACCESSED and DIRTY; where they are set already
# it changes nothing, and the image's checksum holds.
WRITABLE, ACCESSED, DIRTY, BIG = 0x03, 0x20, 0x40, 0x80


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of this process's memory and where the kernels find it."""

    start: int
    end: int
    guest: int

    @property
    def first_page(self) -> int:
        return self.guest // PAGE * PAGE

    @property
    def guest_end(self) -> int:
        return self.guest + self.end - self.start


class Memory:
    """The arrays of all calls."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.end = DATA + PAGE

    def add(self, arrays: Iterable[NDArray[np.generic]]) -> list[Region]:
        """Gives the arrays of one call their places; those that overlap stay together."""
        bounds = sorted(byte_bounds(array) for array in arrays if array.nbytes)
        merged: list[tuple[int, int]] = []
        for start, end in bounds:
            if merged and start < merged[-1][1]:
                start, end = merged[-1][0], max(end, merged.pop()[1])
            merged.append((start, end))
        added = [self._place(start, end) for start, end in merged]
        self.regions += added
        return added

    def _place(self, start: int, end: int) -> Region:
        last = self.end + -(-(end - start) // PAGE) * PAGE
        self.end = last + PAGE
        return Region(start, end, last - (end - start))

    def accept(self, pages: Mapping[int, bytes]) -> list[Region]:
        """Copies changed pages into the arrays; returns regions whose surroundings changed."""
        damaged = []
        for region in self.regions:
            for page in range(region.first_page, region.guest_end, PAGE):
                if page in pages:
                    offset = max(region.guest - page, 0)
                    if pages[page][:offset].strip(bytes([FILLER])):
                        damaged.append(region)
                    target = region.start + page + offset - region.guest
                    ctypes.memmove(target, pages[page][offset:], PAGE - offset)
        return damaged


def translate(words: NDArray[np.int64], regions: Sequence[Region]) -> NDArray[np.int64]:
    """Replaces addresses in this process by those in the emulated machine."""
    result = words.copy()
    for index, word in enumerate(words.tolist()):
        for region in regions:
            if region.start <= word < region.end:
                result[index] = region.guest + word - region.start
    return result


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel call: address of the code, its arguments, and the number of chunks."""

    function: int
    arguments: NDArray[np.int64]
    chunks: int


class Image:
    """Physical memory from ``IMAGE`` on, filled from the bottom to the top."""

    def __init__(self, code: bytes) -> None:
        self.content = bytearray(PAGE) + code

    def append(self, data: bytes) -> int:
        """Adds whole pages; returns their address."""
        self.content += bytes(-len(self.content) % PAGE)
        address = IMAGE + len(self.content)
        self.content += data + bytes(-len(data) % PAGE)
        return address

    def words(self, values: Sequence[int] | NDArray[np.int64]) -> int:
        """Adds 64-bit words; returns their address."""
        return self.append(np.array(values, np.int64).tobytes())


def make_image(processor: Processor, code: bytes, jobs: Sequence[Job], memory: Memory) -> bytes:
    """The image that Bochs loads at ``IMAGE``."""
    image = Image(code)
    stack = image.append(bytes(STACK_BYTES)) + STACK_BYTES
    calls = [(job.function, image.words(job.arguments), job.chunks, 0) for job in jobs]
    table = image.words([word for call in calls for word in call])
    reports = image.words([0] * 4 * len(jobs))
    leaves, leaf_tables = _data_tables(image, memory)
    root = _upper_tables(image, leaves, leaf_tables)
    end = IMAGE + len(image.content)
    body = np.frombuffer(image.content, np.uint64)[PAGE // 8 :]
    checksum = int(body.sum(dtype=np.uint64).astype(np.int64))
    header = [0, root, end, checksum, table, table + 32 * len(jobs), reports]
    header += [DATA, memory.end, leaves, stack, processor.cr4, processor.state]
    return np.array(header, np.int64).tobytes().ljust(PAGE, b"\0") + body.tobytes()


def _data_tables(image: Image, memory: Memory) -> tuple[int, int]:
    """Adds the arrays and the page tables that map them; where these lie, and their number."""
    pages = (memory.end - DATA) // PAGE
    entries = np.zeros(-(-pages // ENTRIES) * ENTRIES, np.int64)
    for region in memory.regions:
        content = ctypes.string_at(region.start, region.end - region.start)
        filler = bytes([FILLER]) * (region.guest - region.first_page)
        place = image.append(filler + content)
        for page in range(region.first_page, region.guest_end, PAGE):
            entries[(page - DATA) // PAGE] = place + page - region.first_page | WRITABLE
    return image.words(entries), len(entries) // ENTRIES


def _upper_tables(image: Image, leaves: int, leaf_tables: int) -> int:
    """Tables above those of the data, and for memory at its physical address; the root."""
    upper = WRITABLE | ACCESSED
    identity = upper | DIRTY | BIG

    def table(entries: Mapping[int, int]) -> int:
        return image.words([entries.get(index, 0) for index in range(ENTRIES)])

    low = table({n: n * BIG_PAGE | identity for n in range(IMAGE // BIG_PAGE, ENTRIES)})
    top = table({RESET // BIG_PAGE % ENTRIES: RESET // BIG_PAGE * BIG_PAGE | identity})
    data = table({n: leaves + n * PAGE | upper for n in range(leaf_tables)})
    thirds = {0: low, RESET >> 30: top, DATA >> 30 & (ENTRIES - 1): data}
    third = table({index: place | upper for index, place in thirds.items()})
    return table({0: third | upper})
