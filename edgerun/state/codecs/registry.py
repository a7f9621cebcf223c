"""Finds a codec by name."""

from __future__ import annotations

from edgerun.discovery import entry_named
from edgerun.state.codecs.base import Codec

ROOM = "edgerun.state.codecs"


def codec_named(name: str) -> Codec:
    """Returns the codec called ``name``.

    Raises:
        InputError: there is none.
    """
    codec: Codec = entry_named(ROOM, "CODEC", "kv_cache", name)
    return codec
