"""Finds activation functions: the files beside this one."""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.activations.base import Activation
from edgerun.discovery import entries

ACTIVATIONS: Mapping[str, Activation] = entries("edgerun.activations", "ACTIVATION")
