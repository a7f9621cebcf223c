"""Finds an eviction policy by name."""

from __future__ import annotations

from edgerun.discovery import entry_named
from edgerun.state.policies.base import Policy

ROOM = "edgerun.state.policies"


def policy_named(name: str) -> type[Policy]:
    """Returns the policy called ``name``.

    Raises:
        InputError: there is none.
    """
    policy: type[Policy] = entry_named(ROOM, "POLICY", "eviction", name)
    return policy
