"""Finds a drafter by name, and says of which models replies can be drafted."""

from __future__ import annotations

from collections.abc import Iterable

from edgerun.discovery import entry_named, entry_names
from edgerun.engine.drafting.base import Drafter
from edgerun.engine.drafting.drafting import Drafting
from edgerun.errors import UnsupportedError
from edgerun.plan.programs import Programs
from edgerun.state import RecurrentState
from edgerun.state.spec import State

AUTO, NONE = "auto", "none"
USUAL = "lookup"
ROOM, ENTRY = "edgerun.engine.drafting", "DRAFTER"


def drafter_choices(name: object) -> tuple[str, ...]:
    """What may be asked for; nobody looks for drafters where ``name`` asks for none."""
    needs_none = isinstance(name, str) and name in (AUTO, NONE)
    return (AUTO, NONE) if needs_none else (AUTO, *entry_names(ROOM, ENTRY), NONE)


def drafting_for(name: str, programs: Programs, states: Iterable[State]) -> Drafting | None:
    """What drafts replies; None if nothing does.

    Args:
        name: one of ``drafter_choices``; "auto" drafts where that changes no text.
        programs: that compute the model.
        states: what its layers remember.

    Raises:
        UnsupportedError: a drafter was asked for, and the model's replies cannot be drafted.
    """
    if name == NONE:
        return None
    if not programs.has_rows_alike and name != AUTO:
        raise UnsupportedError(
            f"draft is '{name}', and replies cannot be drafted: what computes this model, or its "
            "prompts, may compute several tokens at a time to other bits than one; leave draft out"
        )
    drafter: type[Drafter] = entry_named(ROOM, ENTRY, "draft", USUAL if name == AUTO else name)
    takes_back = not any(isinstance(state, RecurrentState) for state in states)
    return Drafting(drafter, takes_back=takes_back)
