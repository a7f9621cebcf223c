"""Finds the policies: the files beside this one, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from edgerun.discovery import entries
from edgerun.offload.policies.base import Policy

ROOM = "edgerun.offload.policies"


@cache
def policies() -> Mapping[str, type[Policy]]:
    """All policies by name."""
    return entries(ROOM, "POLICY")
