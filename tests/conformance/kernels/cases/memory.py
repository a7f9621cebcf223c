"""Cases of the kernels that rearrange and read weights, and of those that only measure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import unpack_bits
from edgerun.kernels.lang.dot import DOTS
from edgerun.kernels.lang.isa import isa_of
from tests.conformance.kernels.harness import ISAS, Call, cases_of, untouched

NO_GAPS = {"group": 0, "shift": 62}
CODES = 4
NARROW = {"i16": np.int16, "i32": np.int32}


@cases_of("stream_read", lanes=[16], streams=[1, 2, 4, 8], ahead=[0, 4096])
@cases_of("stream_read", lanes=[4, 8], streams=[2], ahead=[4096])
def stream_read(lanes: int, streams: int, ahead: int) -> Call:
    data = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 512)).astype(np.int32)
    sums = untouched((3,), np.int32)

    def check() -> None:
        np.testing.assert_array_equal(sums, data.sum(axis=1, dtype=np.int32))

    fields = {"data": data, "bytes": data[0].nbytes, "sums": sums}
    return Call({"lanes": lanes, "streams": streams, "ahead": ahead}, fields, 0, check, 3)


@cases_of("multiply_peak", isa=ISAS)
def multiply_peak(isa: str) -> Call:
    lanes, steps, repeats, chunks = isa_of(isa).vector_bytes, 3, 2, 2
    places = isa_of(isa).registers // isa_of(isa).partial * 3 // 16
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (CODES, lanes)).astype(np.uint8)
    x = rng.integers(-100, 101, (steps, places, lanes)).astype(np.int8)
    partial = DOTS[isa_of(isa).dots].partial(lanes)
    sums = np.zeros((chunks, places * CODES, partial.lanes), NARROW[partial.element])

    def check() -> None:
        products = codes[None, None].astype(np.int64) * x[:, :, None]
        total = repeats * products.sum(axis=(0, 3)).reshape(-1)
        np.testing.assert_array_equal(sums.sum(axis=2, dtype=np.int64), [total] * chunks)

    fields = {"codes": codes, "x": x, "steps": steps, "repeats": repeats, "out": sums}
    params: dict[str, int | str] = {"places": places, "lanes": lanes, "isa": isa}
    return Call(params, fields, 0, check, chunks)


@cases_of("lookup_peak", tokens=[16, 32])
def lookup_peak(tokens: int) -> Call:
    count, repeats, chunks = 6, 3, 2
    rng = np.random.default_rng(0)
    entries = rng.integers(0, 81, (count, 8)).astype(np.uint8)
    table = rng.integers(-100, 101, (81, 8, tokens)).astype(np.int16)
    sums = np.zeros((chunks, count, tokens), np.int16)

    def check() -> None:
        total = repeats * table[entries, np.arange(8)].sum(axis=1)
        np.testing.assert_array_equal(sums, [total] * chunks)

    fields = {"entries": entries, "sums": sums, "table": table, "count": count}
    return Call({"tokens": tokens}, fields | {"repeats": repeats}, 0, check, chunks)


@cases_of("amx_peak", isa=["amx_model", *({"amx"} & set(ISAS))])
def amx_peak(isa: str) -> Call:
    repeats, chunks = 3, 2
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (2, 16, 16, 4)).astype(np.uint8)
    x = rng.integers(-127, 128, (32, 64)).astype(np.int8)
    out = np.zeros((chunks, 32, 32), np.int32)

    def check() -> None:
        weights = codes.transpose(1, 3, 0, 2).reshape(64, 32).astype(np.int64)
        np.testing.assert_array_equal(out, [repeats * (x @ weights)] * chunks)

    fields = {"codes": codes, "x": x, "out": out, "repeats": repeats}
    return Call({"isa": isa}, fields, 0, check, chunks)


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
