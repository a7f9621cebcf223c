"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.expert_faults.session import Session


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, once.

    Attributes:
        name: what goes wrong, how, and where; no other fault has it.
        attempt: does it to a model, and raises an ``AssertionError`` if anything follows but what
            should.
    """

    name: str
    attempt: Callable[[Session], None]
