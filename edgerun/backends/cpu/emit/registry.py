"""Finds how ops run: the files beside this one, or below, that are named after them."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.discovery import entries

ROOMS = ("edgerun.backends.cpu.emit", "edgerun.backends.cpu.emit.pointwise")
EMITTERS: Mapping[str, Emitter] = {
    name: emitter for room in ROOMS for name, emitter in entries(room, "EMITTER").items()
}
