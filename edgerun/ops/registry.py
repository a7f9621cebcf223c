"""Finds the ops: the files beside this one, and those of the folders below."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.discovery import entries
from edgerun.ops.base import Op

# By name, which is that of the file.
ROOMS = ("edgerun.ops", "edgerun.ops.pointwise", "edgerun.ops.recurrent")
OPS: Mapping[str, Op] = {name: op for room in ROOMS for name, op in entries(room, "OP").items()}
