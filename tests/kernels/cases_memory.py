"""Cases of the kernels that rearrange and read weights."""

from __future__ import annotations

import numpy as np

from edgerun.formats.base import unpack_bits
from tests.kernels.harness import UNTOUCHED, Call, cases_of, untouched


@cases_of("stream_read", lanes=[4, 8, 16])
def stream_read(lanes: int) -> Call:
    data = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 512)).astype(np.int32)
    sums = untouched((3,), np.int32)

    def check() -> None:
        np.testing.assert_array_equal(sums, data.sum(axis=1, dtype=np.int32))

    fields = {"data": data, "bytes": data[0].nbytes, "sums": sums}
    return Call({"lanes": lanes}, fields, 0, check, 3)


@cases_of("repack", bits=[2, 4, 8], lanes=[16, 32, 64], shape=[(1, 16), (6, 64), (5, 176)])
def repack(bits: int, lanes: int, shape: tuple[int, int]) -> Call:
    rows, row_bytes = shape
    groups, tiles = -(-rows // 4), -(-row_bytes // lanes) + 1
    source = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    spare, codes = (
        np.zeros((groups * 4, lanes), np.uint8),
        untouched((groups * 4, tiles, lanes), "u1"),
    )

    def check() -> None:
        planes = 8 // bits
        padded = np.zeros((rows, tiles * planes * lanes), np.uint8)
        padded[:, : row_bytes * planes] = unpack_bits(source, bits)
        expected = np.zeros((rows, tiles, lanes), np.uint8)
        for plane in range(planes):
            of_plane = padded.reshape(rows, tiles, planes, lanes)[:, :, plane]
            expected |= of_plane << np.uint8(plane * bits)
        np.testing.assert_array_equal(codes[:rows], expected)
        assert (codes[rows:] == UNTOUCHED).all()

    fields = {"source": source, "codes": codes, "rows": rows, "row_bytes": row_bytes}
    fields |= {"tiles": tiles, "spare": spare}
    return Call({"bits": bits, "lanes": lanes}, fields, 0, check, groups)
