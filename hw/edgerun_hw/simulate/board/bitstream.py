"""Stand-ins for bitstreams: files that look like one to pynq and name the geometry to simulate.

The .bit format is a header of tagged strings and the data (pynq's ``parse_bit_header`` describes
it). Here the data is a line of JSON, and the part is called ``simulation``: no tool that checks
the part would load it onto a board.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict

from edgerun_hw.overlay.geometry import Geometry

PART = "simulation"
MAGIC = struct.pack(">H9sH", 9, bytes.fromhex("0ff00ff00ff00ff000"), 1)
MARK = "edgerun-tlmm"
MAX_BYTES = 4096


class StandInError(ValueError):
    """The data is no stand-in for a bitstream."""


def write_bitstream(geometry: Geometry) -> bytes:
    """Returns the stand-in for a bitstream of ``geometry``."""
    data = json.dumps({"overlay": MARK, **asdict(geometry)}, sort_keys=True).encode()
    data += b" " * (-len(data) % 4)
    fields = (("a", f"{MARK};Version=simulation"), ("b", PART), ("c", "-"), ("d", "-"))
    header = b"".join(_field(tag, text) for tag, text in fields)
    return MAGIC + header + b"e" + struct.pack(">I", len(data)) + data


def _field(tag: str, text: str) -> bytes:
    value = text.encode() + b"\0"
    return tag.encode() + struct.pack(">H", len(value)) + value


def read_bitstream(data: bytes) -> Geometry:
    """Returns the geometry that a stand-in names; takes the .bit and what `bit2bin` makes of it.

    Raises:
        StandInError: it is something else.
    """
    if len(data) > MAX_BYTES:
        raise StandInError("this is a real bitstream; a simulated board cannot load it")
    # The data comes last in the file, and nothing before it has a brace.
    payload = data[data.find(b"{") :] if data.startswith(MAGIC) else data
    for candidate in (payload, _swapped(payload)):
        try:
            values = json.loads(candidate)
            if values.pop("overlay") == MARK:
                return Geometry(**values)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    raise StandInError("this is no stand-in for a bitstream of the overlay")


def _swapped(data: bytes) -> bytes:
    """Reverses the bytes of every word of 32 bits, as the configuration port wants them."""
    whole = data[: len(data) // 4 * 4]
    return b"".join(whole[i : i + 4][::-1] for i in range(0, len(whole), 4))


def bitstream_name(data: bytes) -> str:
    """A file name that is never used for other contents."""
    return f"{MARK}-{hashlib.sha256(data).hexdigest()[:16]}.bit"
