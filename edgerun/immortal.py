"""Objects of native libraries whose end would never come."""

from __future__ import annotations

import ctypes


def keep_for_ever(thing: object) -> None:
    """Has an object live until the process ends, so that not even the interpreter destroys it.

    For what waits, when it is destroyed, for something that will not happen.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
