"""Short turns at the processor, for threads that do little and must do it soon.

A reader that has got what it waited for puts it in order and asks for more; until then the disk
rests. Where kernels compute on all processors it comes to its turn when they give theirs up, some
milliseconds later. Linux 6.12 and later let a thread ask for shorter turns than others: it gets no
more of the processor, but comes sooner to what it gets.

Sources: Linux ``Documentation/scheduler/sched-eevdf.rst``; ``man 2 sched_setattr``.
"""

from __future__ import annotations

import ctypes
import platform
import sys

TURN_NS = 100_000  # the shortest that Linux knows
SCHED_OTHER = 0
CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr


class _Attributes(ctypes.Structure):
    """The first form of Linux's ``struct sched_attr``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def take_short_turns() -> bool:
    """Asks for short turns of the calling thread; whether the system will give it such.

    A thread whose turns somebody has arranged otherwise, as by ``chrt``, keeps those.
    """
    attributes = turns()
    if attributes is None or attributes.policy != SCHED_OTHER:
        return False
    attributes.flags, attributes.runtime = 0, TURN_NS
    if _call(0, ctypes.byref(attributes)) != 0:
        return False
    after = turns()  # older systems look at nothing but the nice value
    return after is not None and after.runtime == TURN_NS


def turns() -> _Attributes | None:
    """How the calling thread comes to its turns; None where that cannot be asked."""
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    return attributes if _call(1, ctypes.byref(attributes), size) == 0 else None


def _call(which: int, *arguments: object) -> int:
    """Calls ``sched_setattr`` (0) or ``sched_getattr`` (1) for this thread; 0 where that went."""
    numbers = CALLS.get(platform.machine())
    if not sys.platform.startswith("linux") or numbers is None:
        return -1
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    flags = ctypes.c_long(0)
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(numbers[which]), flags, *values, flags))
