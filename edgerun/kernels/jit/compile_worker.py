"""A process that compiles kernels for another one (``compile_pool.py``).

First it writes the arguments of every kernel, a line of JSON. Then it reads lines of JSON,
``[name, constants]``; answers each with a line that holds a number of bytes and then the object
code, or with 0 for a kernel that it cannot compile.
"""

from __future__ import annotations

import json
import sys

from edgerun.kernels.jit.catalogue import compile_named, signatures


def main() -> None:
    """Answers until there is no more input."""
    compilable = signatures()
    sys.stdout.buffer.write(json.dumps(compilable).encode() + b"\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        name, params = json.loads(line)
        code = compile_named(name, params) if name in compilable else b""
        sys.stdout.buffer.write(b"%d\n" % len(code) + code)
        sys.stdout.buffer.flush()
