"""Headers of GGUF files that are cut off, damaged or hostile, written by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from edgerun.errors import EdgerunError
from edgerun_export.checkpoint import open_checkpoint


def header(*, tensors: int = 0, keys: bytes = b"", count: int = 0, entries: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + keys + entries


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def key(name: bytes, kind: int, value: bytes = b"") -> bytes:
    """A header with a single key."""
    return header(keys=text(name) + struct.pack("<I", kind) + value, count=1)


def entry(name: bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    """A header with a single tensor."""
    return header(tensors=1, entries=tensor(name, dims, kind, offset))


def array(kind: int, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


MOST_TENSORS, MOST_KEYS, MOST_ELEMENTS, LONGEST_NAME = 1 << 17, 1 << 16, 1 << 22, 1 << 16
ALIGNMENT = b"general.alignment"
ARRAY = text(b"k") + struct.pack("<IIQ", 9, 4, 2**62)
BROKEN = {
    "empty": (b"GGUF", "truncated"),
    "another file": (b"PK" + bytes(40), "^'m.gguf' does not begin with 'GGUF'"),
    "version": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (header(tensors=2**63), "announces 9223372036854775808 tensors"),
    "key count": (header(count=2**63), "announces"),
    "array": (header(keys=ARRAY, count=1), "array elements"),
    "array in file": (
        header(keys=text(b"k") + struct.pack("<IIQ", 9, 4, 1000), count=1),
        "asks for 4000 bytes",
    ),
    "nested array": (
        header(keys=text(b"k") + struct.pack("<IIQ", 9, 9, 1), count=1),
        "unknown type 9",
    ),
    "string": (header(keys=text(b"k") + struct.pack("<IQ", 8, 2**60), count=1), "asks for"),
    "UTF-8": (header(keys=text(b"\xff"), count=1), "not UTF-8"),
    "twice": (header(keys=(text(b"k") + struct.pack("<IB", 7, 1)) * 2, count=2), "'k' twice"),
    "axes": (header(tensors=1, entries=tensor(b"t", [1] * 5)), "5 axes"),
    "huge": (header(tensors=1, entries=tensor(b"t", [2**62, 2**62])), "truncated"),
    "zero": (header(tensors=1, entries=tensor(b"t", [0])), "shape"),
    "offset": (header(tensors=1, entries=tensor(b"t", [4], 0, 2**60)), "truncated"),
    "rows": (header(tensors=1, entries=tensor(b"t", [31, 2], 2)) + bytes(99), "in multiples of 32"),
    "vector": (header(tensors=1, entries=tensor(b"t", [32], 2)) + bytes(99), "two or more axes"),
    "overlap": (
        header(tensors=2, entries=tensor(b"t", [8]) + tensor(b"u", [8], 0, 16)) + bytes(999),
        "'t' and 'u' overlap",
    ),
    "same name": (
        header(tensors=2, entries=tensor(b"t", [8]) + tensor(b"t", [8], 0, 32)) + bytes(999),
        "'t' twice",
    ),
    "alignment": (
        header(keys=text(b"general.alignment") + struct.pack("<II", 4, 3), count=1),
        "power of two",
    ),
    "no architecture": (header(), "does not say its architecture"),
    "gap": (
        header(tensors=2, entries=tensor(b"t", [8]) + tensor(b"u", [8], 0, 96)) + bytes(999),
        "does not say its architecture",
    ),
    "gap behind a scale": (
        header(tensors=2, entries=tensor(b"t", [128, 1], 36) + tensor(b"u", [8], 0, 96))
        + bytes(999),
        "'t' of type I2_S has 96 bytes in the file; expected 64, codes and one scale",
    ),
    "one of parts": (key(b"split.count", 2, b"\2\0"), "is one of 2 parts"),
    "all of the parts": (key(b"split.count", 2, b"\1\0"), "does not say its architecture"),
    "parts in words": (key(b"split.count", 8, text(b"2")), "does not say its architecture"),
    "one tensor too many": (header(tensors=MOST_TENSORS + 1), "announces 131073 tensors"),
    "as many tensors as may be": (header(tensors=MOST_TENSORS), "asks for 8 bytes"),
    "one key too many": (header(count=MOST_KEYS + 1), "and 65537 metadata keys"),
    "as many keys as may be": (header(count=MOST_KEYS), "asks for 8 bytes"),
    "one element too many": (key(b"k", 9, array(0, MOST_ELEMENTS + 1)), "more than 4194304"),
    "as many elements as may be": (
        key(b"k", 9, array(0, MOST_ELEMENTS)),
        "asks for 4194304 bytes",
    ),
    "elements of two arrays": (
        header(
            keys=text(b"k")
            + struct.pack("<I", 9)
            + array(7, 1)
            + b"\1"
            + text(b"l")
            + struct.pack("<I", 9)
            + array(7, MOST_ELEMENTS),
            count=2,
        ),
        "more than 4194304 metadata array elements",
    ),
    "name of a key": (key(b"k" * (LONGEST_NAME + 1), 7), "a name of 65537 bytes; at most 65536"),
    "longest name of a key": (key(b"k" * LONGEST_NAME, 99), "of unknown type 99"),
    "name of a tensor": (entry(b"t" * (LONGEST_NAME + 1), [1]), "a name of 65537 bytes"),
    "no axes": (entry(b"t", []), "'t' has 0 axes; expected 1 to 4"),
    "four axes": (entry(b"t", [1] * 4), r"tensor 't' \[1, 1, 1, 1\] ends at byte"),
    "alignment of 0": (key(ALIGNMENT, 4, bytes(4)), "general.alignment 0; expected a power of two"),
    "alignment of 2 MiB": (key(ALIGNMENT, 4, struct.pack("<I", 1 << 21)), "alignment 2097152"),
    "alignment of 1 MiB": (key(ALIGNMENT, 4, struct.pack("<I", 1 << 20)), "its architecture"),
    "alignment of 1": (key(ALIGNMENT, 4, struct.pack("<I", 1)), "its architecture"),
    "fractional alignment": (key(ALIGNMENT, 6, struct.pack("<f", 32)), "general.alignment 32.0"),
    "true alignment": (key(ALIGNMENT, 7, b"\1"), "general.alignment True"),
    "alignment in words": (key(ALIGNMENT, 8, text(b"32")), "general.alignment 32; expected"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refuses_a_broken_header(tmp_path: Path, case: str) -> None:
    data, message = BROKEN[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path))
