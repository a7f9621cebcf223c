"""A process that compiles kernels for another one (``compile_pool.py``).

Reads lines of JSON, ``[name, constants]``; answers each with a line that holds a number of bytes
and then the object code, or with 0 for a kernel that it cannot compile.
"""

from __future__ import annotations

import json
import sys

from edgerun.kernels.compiler import compile_object
from edgerun.kernels.registry import kernels


def main() -> None:
    """Answers until there is no more input."""
    known = kernels()
    for line in sys.stdin.buffer:
        name, params = json.loads(line)
        code = compile_object(known[name].make(**params)) if name in known else b""
        sys.stdout.buffer.write(b"%d\n" % len(code) + code)
        sys.stdout.buffer.flush()
