"""Counts instructions a weight in the innermost loops of the linear kernels, in assembly code.

    python -m tools.emulate_isa.instructions            # all sets
    python -m tools.emulate_isa.instructions avx2 neon

The code is compiled for a processor of each set, whatever this machine is, and runs nowhere.
A loop is what lies between a label and a jump back to it, without smaller loops; it counts when it
multiplies bytes. Instructions are divided by the products it makes: a product is a weight times an
activation. Decoding multiplies a weight once, a prompt as often as it has rows.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from unittest import mock

from llvmlite import binding

from edgerun.backends.cpu.row_paths import GEMM, block_tokens
from edgerun.kernels.jit.catalogue import kernels
from edgerun.kernels.jit.compiler import compile_module
from edgerun.kernels.jit.target import target_machine
from edgerun.kernels.lang import dot
from edgerun.kernels.lang.isa import isa_of


class Target(NamedTuple):
    """What LLVM calls a processor."""

    triple: str
    cpu: str
    features: str = ""


X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
TARGETS: Mapping[str, Target] = {
    "avx2": Target(X86, "haswell"),
    "avx512vnni": Target(X86, "cascadelake"),
    "neon": Target(ARM, "generic"),
    "dotprod": Target(ARM, "generic", "+dotprod"),
    "i8mm": Target(ARM, "generic", "+dotprod,+i8mm"),
}

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
BLOCK = {"block": 32, "zeros": 0, "halves": 0}
KERNELS = {
    "ternary, int2": ("row", {"bits": 2}),
    "int4, a scale a row": ("row", {"bits": 4}),
    "int4, blocks of 32": ("block", {"bits": 4, **BLOCK}),
    "int8, blocks of 32": ("block", {"bits": 8, **BLOCK}),
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
            yield [line for line in body if INSTRUCTION.match(line)]


def products(instruction: str) -> int:
    """Products that an instruction makes."""
    return next((n for form, n in PRODUCTS.items() if re.search(form, instruction)), 0)


def costs(functions: Sequence[str]) -> list[float]:
    """Instructions a product of each function, in its loop that makes most products."""
    ratios = []
    for assembly in functions:
        counted = [(sum(map(products, body)), len(body)) for body in loops(assembly)]
        most, instructions = max(counted, default=(0, 0))
        if most:
            ratios.append(instructions / most)
    return ratios


def assembly_of(kernel: str, params: Mapping[str, int | str], target: Target) -> list[str]:
    """Assembly code of a kernel, function by function."""
    machine = binding.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3
    )
    with mock.patch.object(dot, "X86", target.triple.startswith("x86")):
        declared = kernels()[kernel]
        module = compile_module(declared.make(**params), declared.types, target_machine())
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    return re.split(r"\n\t\.globl|\n\t\.type", machine.emit_assembly(module))


def main() -> None:
    """Command line: prints a line for each instruction set and form."""
    warnings.simplefilter("ignore")  # Numba's, about what the kernels' authors know
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    print("| set | weights | one row | many rows |\n| --- | --- | --- | --- |")
    for name in sys.argv[1:] or TARGETS:
        isa = isa_of(name)
        common: dict[str, int | str] = {"lanes": isa.vector_bytes, "isa": name}
        for form, (ending, params) in KERNELS.items():
            constants = {**common, **params, "tokens": block_tokens(isa, GEMM)}
            single = assembly_of(f"linear_{ending}", {**common, **params}, TARGETS[name])
            packed = {"packed": 1} if "block" in params else {}
            many = assembly_of(f"gemm_{ending}", constants | packed, TARGETS[name])
            print(f"| `{name}` | {form} | {max(costs(single)):.3f} | {min(costs(many)):.3f} |")


if __name__ == "__main__":
    main()
