"""Counts instructions a weight in the innermost loops of the linear kernels, in assembly code.

    python -m tools.emulate_isa.instructions avx2 avx512vnni

A loop is what lies between a label and a jump back to it, without smaller loops; it counts when it
multiplies bytes. Instructions are divided by the products it makes: a product is a weight times an
activation. Decoding multiplies a weight once, a prompt as often as it has rows.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping

from edgerun.backends.cpu.emit.gemm import gemm_tokens
from edgerun.kernels.isa import isa_of

# Products by instruction and registers, per byte of a vector: four bytes a lane of int32.
PRODUCTS: Mapping[str, int] = {
    r"vpmaddubsw.*ymm": 32,
    r"vpdpbusd.*zmm": 64,
    r"vpdpbusd.*ymm": 32,
    r"smlal2?\s.*\.8h": 8,
    r"smull2?\s.*\.8h": 8,
    r"us?dot\s.*\.4s": 16,
    r"sdot\s.*\.4s": 16,
    r"smmla\s.*\.4s": 32,
}
LABEL = re.compile(r"^(\.LBB\w+):")
JUMP = re.compile(r"^\s+(?:j\w+|b\.\w+|cbn?z\s+\w+,)\s*(\.LBB\w+)")
INSTRUCTION = re.compile(r"^\t[a-z]")
KERNELS = {
    "ternary, int2": ("row", {"bits": 2}),
    "int4, a scale a row": ("row", {"bits": 4}),
    "int4, blocks of 32": ("block", {"bits": 4, "block": 32}),
    "int8, blocks of 32": ("block", {"bits": 8, "block": 32}),
}


def loops(assembly: str) -> Iterator[list[str]]:
    """The instructions of every innermost loop."""
    started: dict[str, int] = {}
    code = [line for line in assembly.splitlines() if LABEL.match(line) or INSTRUCTION.match(line)]
    for index, line in enumerate(code):
        if label := LABEL.match(line):
            started[label[1]] = index
        elif (jump := JUMP.match(line)) and jump[1] in started:
            body = code[started[jump[1]] : index + 1]
            started = {}  # what encloses it is no innermost loop
            yield [one for one in body if INSTRUCTION.match(one)]


def products(instruction: str) -> int:
    """Products that an instruction makes."""
    return next((n for form, n in PRODUCTS.items() if re.search(form, instruction)), 0)


def cost(assembly: str) -> float:
    """Instructions a product in the loop that makes most products."""
    counted = [(sum(map(products, body)), len(body)) for body in loops(assembly)]
    made, instructions = max(counted)
    return instructions / made


def assembly_of(kernel: str, params: Mapping[str, int | str]) -> list[str]:
    """Assembly code of a kernel for this machine, function by function."""
    from edgerun.kernels.jit.compiler import compile_module
    from edgerun.kernels.jit.loader import target_machine
    from edgerun.kernels.jit.registry import kernels

    machine = target_machine()
    module = compile_module(kernels()[kernel].make(**params), 2, machine)
    return re.split(r"\n\t\.globl|\n\t\.type", machine.emit_assembly(module))


def main() -> None:
    """Command line: prints a line for each instruction set and form."""
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        isa = isa_of(name)
        common = {"lanes": isa.vector_bytes, "isa": name}
        for form, (ending, params) in KERNELS.items():
            one = assembly_of(f"linear_{ending}", {**common, **params})
            many = assembly_of(f"gemm_{ending}", {**common, **params, "tokens": gemm_tokens(isa)})
            alone = [cost(text) for text in one if any(map(products, text.splitlines()))]
            together = min(cost(text) for text in many if any(map(products, text.splitlines())))
            print(f"| `{name}` | {form} | {max(alone):.3f} | {together:.3f} |", flush=True)


if __name__ == "__main__":
    main()
