"""Values that are kept in a range: logits, as a rule, and so long rows."""

from __future__ import annotations

from edgerun.backends.cpu.emit.pointwise.elements import ELEMENTS

EMITTER = ELEMENTS
