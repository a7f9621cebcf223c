"""An activation whose curve is a model's own."""

from __future__ import annotations

from edgerun.backends.cpu.emit.pointwise.elements import ELEMENTS

EMITTER = ELEMENTS
