"""Cases of the kernels that rearrange and read weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import unpack_bits
from tests.conformance.kernels.harness import Call, cases_of, untouched

NO_GAPS = {"group": 0, "shift": 62}


@cases_of("stream_read", lanes=[4, 8, 16], streams=[1, 2, 4, 8], ahead=[0, 4096])
def stream_read(lanes: int, streams: int, ahead: int) -> Call:
    data = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 512)).astype(np.int32)
    sums = untouched((3,), np.int32)

    def check() -> None:
        np.testing.assert_array_equal(sums, data.sum(axis=1, dtype=np.int32))

    fields = {"data": data, "bytes": data[0].nbytes, "sums": sums}
    return Call({"lanes": lanes, "streams": streams, "ahead": ahead}, fields, 0, check, 3)


@cases_of("repack", bits=[2, 4, 8], lanes=[16, 32, 64], shape=[(1, 16), (6, 64), (21, 176)])
def repack(bits: int, lanes: int, shape: tuple[int, int]) -> Call:
    rows, row_bytes = shape
    panel, tiles = lanes // 4, row_bytes // 4 + 1
    panels = -(-rows // panel)
    source = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    source[:panel] |= 0x55  # the first chunk has no 2-bit code 0 but one in its last byte
    source[0, -1] = 0x15
    codes = _untouched_vectors((panels, tiles, lanes))

    def check() -> None:
        planes = 8 // bits
        padded = np.zeros((panels * panel, tiles, planes, 4), np.uint8)
        padded[:rows, :-1] = unpack_bits(source, bits).reshape(rows, -1, planes, 4)
        padded[rows:] = padded[rows - 1]
        expected = np.zeros((panels * panel, tiles, 4), np.uint8)
        for plane in range(planes):
            expected |= padded[:, :, plane] << np.uint8(plane * bits)
        by_panel = expected.reshape(panels, panel, tiles, 4).swapaxes(1, 2)
        np.testing.assert_array_equal(codes, by_panel.reshape(codes.shape))
        pieces = [source[i : i + panel] for i in range(0, rows, panel)]
        without = [(unpack_bits(piece, 2) == 0).any() for piece in pieces]
        assert list(flags.any(axis=1)) == [bits == 2 and has_zero for has_zero in without]

    flags = untouched((panels, lanes), "u1")
    fields = {"source": source, "codes": codes, "rows": rows, "row_bytes": row_bytes}
    fields |= {"tiles": tiles, "vectors": tiles, **NO_GAPS, "step": 1, "flags": flags}
    return Call({"bits": bits, "lanes": lanes}, fields, 0, check, panels)


SCALES = {"lanes": [16, 32, 64], "shape": [(1, 4), (6, 16), (21, 19), (40, 48)], "group": [0, 4, 8]}


@cases_of("repack", bits=[32], **SCALES)
def repack_scales(bits: int, lanes: int, shape: tuple[int, int], group: int) -> Call:
    """With vectors of zero points among them, which stay as they are, or without."""
    rows, blocks = shape
    panel = lanes // 4
    panels, words = -(-rows // panel), -(-blocks // group) if group else 0
    source = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source[0, 0], source[-1, -1] = np.finfo(np.float32).max, (np.nan, -np.inf)[blocks % 2]
    scales = _untouched_vectors((panels, blocks + words, lanes))
    before = scales.copy()

    def check() -> None:
        padded = np.zeros((panels * panel, blocks), np.float32)
        padded[:rows] = source
        by_panel = padded.reshape(panels, panel, blocks).swapaxes(1, 2)
        expected = np.ascontiguousarray(by_panel).view(np.uint32)
        gaps = [word * (group + 1) for word in range(words)]
        computed = np.delete(scales, gaps, axis=1).view(np.uint32)
        np.testing.assert_array_equal(computed, expected)
        np.testing.assert_array_equal(scales[:, gaps], before[:, gaps])
        assert list(flags.any(axis=1)) == [False] * (panels - 1) + [True]

    flags = untouched((panels, lanes), "u1")
    fields = {"source": source, "codes": scales, "rows": rows, "row_bytes": 4 * blocks}
    gaps = {"group": group, "shift": group.bit_length() - 1} if group else NO_GAPS
    fields |= {"tiles": blocks, "vectors": blocks + words, **gaps, "step": 1, "flags": flags}
    return Call({"bits": bits, "lanes": lanes}, fields, 0, check, panels)


@cases_of("repack_zeros", lanes=[16, 32, 64], shape=[(1, 1), (6, 3), (21, 10)], group=[2, 8])
def repack_zeros(lanes: int, shape: tuple[int, int], group: int) -> Call:
    """Rows of any number of bytes; the last panel is short, and no scale is touched."""
    rows, row_bytes = shape
    panel, words = lanes // 4, -(-row_bytes // 4)
    panels, vectors = -(-rows // panel), 1 + (words - 1) * (group + 1) + 1
    source = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    scales = _untouched_vectors((panels, vectors, lanes))
    before = scales.copy()

    def check() -> None:
        padded = np.zeros((panels * panel, words * 4), np.uint8)
        padded[:rows, :row_bytes] = source
        by_panel = padded.reshape(panels, panel, words, 4).swapaxes(1, 2)
        gaps = [word * (group + 1) for word in range(words)]
        np.testing.assert_array_equal(scales[:, gaps], by_panel.reshape(panels, words, lanes))
        others = [np.delete(each, gaps, axis=1) for each in (scales, before)]
        np.testing.assert_array_equal(*others)
        assert not flags.any()

    flags = untouched((panels, lanes), "u1")
    fields = {"source": source, "codes": scales, "rows": rows, "row_bytes": row_bytes}
    fields |= {"tiles": words, "vectors": vectors, "group": group, "shift": 0, "step": 1}
    return Call({"lanes": lanes}, fields | {"flags": flags}, 0, check, panels)


def _untouched_vectors(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """An output of vectors, which begins at a multiple of their size."""
    lanes, size = shape[-1], int(np.prod(shape))
    memory = untouched((size + lanes,), "u1")
    start = -memory.ctypes.data % lanes
    array: NDArray[np.uint8] = memory[start : start + size].reshape(shape)
    return array
