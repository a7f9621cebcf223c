"""Copies and kernels that a GPU does in order: the driver's, or their twins in the simulator.

Both modules have ``Kernel``, ``Mark``, ``Recording``, ``Stream`` and ``Context``, of the same
signatures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgerun.offload.cuda.arithmetic import SIMULATED

if TYPE_CHECKING or not SIMULATED:
    from edgerun.offload.cuda.streams.driver import Context, Kernel, Mark, Recording, Stream
else:
    from edgerun.offload.cuda.streams.simulated import Context, Kernel, Mark, Recording, Stream

__all__ = ["Context", "Kernel", "Mark", "Recording", "Stream"]
