"""Finds the ops: the files beside this one, and those of the folder of pointwise ones."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.discovery import entries
from edgerun.ops.base import Op

# By name, which is that of the file.
OPS: Mapping[str, Op] = entries("edgerun.ops", "OP") | entries("edgerun.ops.pointwise", "OP")
