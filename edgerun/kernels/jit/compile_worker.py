"""A process that compiles kernels for another one (``compile_pool.py``).

First it writes the names of every kernel's arguments, a line of JSON. Then it reads lines of JSON,
``[name, constants]``; answers each with a line that holds a number of bytes and then the object
code, or with 0 for a kernel that it cannot compile.
"""

from __future__ import annotations

import json
import sys

from edgerun.kernels.jit.compiler import compile_named, fields_of_all


def main() -> None:
    """Answers until there is no more input."""
    known = fields_of_all()
    sys.stdout.buffer.write(json.dumps(known).encode() + b"\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        name, params = json.loads(line)
        code = compile_named(name, params) if name in known else b""
        sys.stdout.buffer.write(b"%d\n" % len(code) + code)
        sys.stdout.buffer.flush()
