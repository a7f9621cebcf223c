"""Finds how ops run: the files beside this one, or below, that are named after them."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.discovery import entries

_ROOM = "edgerun.backends.cpu.emit"
ROOMS = (_ROOM, f"{_ROOM}.pointwise", f"{_ROOM}.recurrent")
EMITTERS: Mapping[str, Emitter] = {
    name: emitter for room in ROOMS for name, emitter in entries(room, "EMITTER").items()
}
