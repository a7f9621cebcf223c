"""Places that a user names for the parts of the work: ``prefill=openvino:NPU,decode=cpu``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edgerun.backends.base import Backend
from edgerun.backends.registry import Candidates, find_candidates
from edgerun.errors import InputError
from edgerun.values import shown

PARTS = ("prefill", "decode")
ELSEWHERE = "cpu"  # runs what no place was named for
EXAMPLE = "prefill=openvino:NPU,decode=cpu"
# A part, and a place in quotes or up to what looks like the next part: devices may have commas.
ENTRY = re.compile(r'\s*([^=]*?)\s*=\s*(?:"([^"]+)"|([^"\s].*?))\s*(?:,(?=[^,:=]*=)|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Places:
    """Back-ends, with a device after a colon where one is named.

    Attributes:
        prefill: for rows of prompts whose logits nobody wants.
        decode: for all others.
    """

    prefill: str = ELSEWHERE
    decode: str = ELSEWHERE

    @classmethod
    def read(cls, text: str) -> Places:
        """Reads what a user wrote; a part that is left out goes to the CPU.

        A place in double quotes may have whatever is not a quote, as the names of files do.

        Raises:
            InputError: it is not written like ``EXAMPLE``.
        """
        places: dict[str, str] = {}
        end = 0
        while not places or end < len(text):
            entry = ENTRY.match(text, end)
            part, *place = entry.groups("") if entry else ("", "")
            if entry is None or part not in PARTS or part in places:
                raise InputError(
                    f"the places {shown(text)} are not understood; expected a back-end for "
                    f"{' or '.join(PARTS)} or both, as in {EXAMPLE}; one whose device has ',' and "
                    "'=' in its name goes into double quotes"
                )
            places[part], end = "".join(place), entry.end()
        return cls(**places)


def placed_candidates(
    places: Places, given: Mapping[str, Any] = MappingProxyType({})
) -> Candidates:
    """The back-ends of places, with their companions.

    Args:
        places: what was asked for.
        given: what the caller chose, see ``Backend.configure``.

    Raises:
        InputError: there is no back-end or device of a name, or it runs no parts of models.
        UnsupportedError: one does not run here.
    """
    decode = _candidates(places.decode, given)
    if places.prefill == places.decode:
        return decode
    prefill = _candidates(places.prefill, given)
    shared = {backend.name: backend for backend in decode.backends}
    backends = tuple(shared.get(backend.name, backend) for backend in prefill.backends)
    return replace(decode, prompts=replace(prefill, backends=backends))


def _candidates(place: str, given: Mapping[str, Any]) -> Candidates:
    name, _, device = place.partition(":")
    candidates = find_candidates(name, device or None, given)
    first: Backend = candidates.backends[0]
    if first.whole_graph:
        raise InputError(
            f"the back-end '{first.name}' runs whole files only, so no part of the work can be "
            f"placed there: use --backend {first.name}"
        )
    return replace(candidates, preferred=first.name)
