"""Attention to what an earlier layer has written, by the kernels of other attention."""

from __future__ import annotations

from edgerun.backends.cpu.emit import attention
from edgerun.backends.cpu.emit.emitter import Emitter

EMITTER = Emitter(
    attention.emit_shared_attention, attention.EMITTER.supports, attention.cost_of_reading
)
