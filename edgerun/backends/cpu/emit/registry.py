"""Finds how ops run: the files beside this one that are named after them."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.discovery import entries

EMITTERS: Mapping[str, Emitter] = entries("edgerun.backends.cpu.emit", "EMITTER")
