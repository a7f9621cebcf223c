"""Compiles the kernels to PTX, which needs no GPU; prints a line of JSON, a line of text a kernel.

python -m tests.offload.cuda.ptx 7.5 8.0 12.0        # needs the extra `cuda`
"""

from __future__ import annotations

import itertools
import json
import sys

from numba.cuda import compile_ptx

from edgerun.offload.cuda.dots import instruction, portable
from edgerun.offload.cuda.kernels import make_kernels
from edgerun.offload.cuda.network import SIGNATURES


def main(capabilities: list[str]) -> None:
    told = []
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        for bits, dot4 in itertools.product((2, 4), (instruction(), portable())):
            kernels = make_kernels(bits, dot4)
            for name, arguments in SIGNATURES.items():
                function = getattr(kernels, name)
                text, _ = compile_ptx(function, arguments, cc=(major, minor))
                target = next(line for line in text.splitlines() if ".target" in line)
                counts = [text.count(code) for code in ("dp4a.s32.s32", ".f64")]
                told.append([capability, name, target, *counts])
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
