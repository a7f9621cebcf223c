"""Compiles the kernels to PTX, which needs no GPU; prints a line of JSON, a line of text a kernel.

python -m tests.offload.cuda.ptx 7.5 8.0 12.0        # needs the extra `cuda`
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from numba import float32, int32, int64
from numba.cuda import compile_ptx

from edgerun.offload.cuda.forms import TILE, Form
from edgerun.offload.cuda.kernels import make_gated, make_product
from edgerun.offload.cuda.rounding import quantise

F32, I32, VECTOR, WORDS = float32[:, ::1], int32[:, ::1], float32[::1], int32[::1]
ROUNDED = I32, F32, I32
MATRIX = int64[::1]
SLOTS = WORDS, VECTOR, int64


def kernels() -> Iterator[tuple[str, Callable[..., None], tuple[Any, ...]]]:
    """Name, function and types of the arguments of every kind of kernel."""
    yield "quantise", quantise, (F32, int64, *ROUNDED, int64, int64, int64)
    for bits, row_scale, activation in (
        (2, True, "silu"),
        (4, False, "clamped_swiglu"),
        (8, False, "relu2"),
    ):
        form, tile = Form(bits, row_scale, 16, not row_scale, bits == 4), 1 if bits == 4 else TILE
        plain = Form(bits, row_scale, 16)
        product, gated = make_product(form, tile), make_gated(form, plain, activation, tile)
        yield "product", product, (*SLOTS, MATRIX, I32, *ROUNDED, F32)
        yield "gated", gated, (*SLOTS, MATRIX, MATRIX, I32, *ROUNDED, F32)


def fusible(text: str) -> int:
    """Operations that an assembler may make one of: products whose sum is taken; and fused ones."""
    operation = r"\b%s(?:\.ftz|\.full|\.approx)?\.f32\s+(%%f\d+), (%%f\d+), ([^;]*)"
    products = {target for target, _, _ in re.findall(operation % "mul", text)}
    sums = [terms for _, *terms in re.findall(operation % "(?:add|sub)", text)]
    fused = len(re.findall(r"\b(?:fma|mad)(?:\.ftz)?\.f32", text))
    return fused + sum(not products.isdisjoint(terms) for terms in sums)


def main(capabilities: list[str]) -> None:
    told = []
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        for name, function, arguments in kernels():
            text, _ = compile_ptx(function, arguments, cc=(major, minor))
            target = next(line for line in text.splitlines() if ".target" in line)
            counts = [text.count(code) for code in ("dp4a.s32.s32", ".f64", ".ftz")]
            told.append([capability, name, target, *counts, fusible(text)])
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
