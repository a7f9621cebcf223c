"""Finds a codec by name."""

from __future__ import annotations

from functools import cache

from edgerun.discovery import entry_names, import_entry, modules_of
from edgerun.errors import InputError
from edgerun.state.codecs.base import Codec

ROOM = "edgerun.state.codecs"


@cache
def codec_names() -> tuple[str, ...]:
    """Names of all codecs: the files of this folder, and those that other packages add."""
    return tuple(sorted(entry_names(ROOM, "CODEC")))


@cache
def codec_named(name: str) -> Codec:
    """Returns the codec called ``name``.

    Raises:
        InputError: there is none.
    """
    path = modules_of(ROOM).get(name)
    codec: Codec | None = getattr(import_entry(path), "CODEC", None) if path else None
    if codec is None:
        raise InputError(f"unknown cache codec '{name}': there are {', '.join(codec_names())}")
    return codec
