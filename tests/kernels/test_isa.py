"""Machine code for processors that this machine may not have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgerun.kernels.dot import X86
from edgerun.kernels.isa import REQUIRED, available_isas

# In a process of its own: LLVM ends the process where it cannot translate something.
SCRIPT = """
import sys
from llvmlite import binding
from edgerun.kernels import dot, loader
from edgerun.kernels.compiler import compile_module
from edgerun.kernels.linear import linear_block, linear_row
triple, cpu, isa, lanes = sys.argv[1:]
dot.X86 = triple.startswith("x86")
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, features="", opt=3)
text = ""
for body in (
    linear_row(bits=2, lanes=int(lanes), isa=isa),
    linear_block(bits=8, lanes=int(lanes), block=64, isa=isa),
):
    module = compile_module(body, 2, loader.target_machine())
    module.triple, module.data_layout = triple, str(machine.target_data)
    text += machine.emit_assembly(module)
print(text)
"""


def assembly(triple: str, cpu: str, isa: str, lanes: int) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, triple, cpu, isa, str(lanes)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not X86, reason="Numba writes code for this machine's own architecture")
def test_avx512vnni_uses_its_dot_product_on_whole_registers() -> None:
    text = assembly("x86_64-unknown-linux-gnu", "cascadelake", "avx512vnni", 64)
    assert sum("vpdpbusd" in line and "zmm" in line for line in text.splitlines()) > 50


@pytest.mark.parametrize(("cpu", "instruction"), [("neoverse-n1", "sdot"), ("cortex-a72", "smull")])
def test_portable_code_multiplies_bytes_on_arm(cpu: str, instruction: str) -> None:
    text = assembly("aarch64-unknown-linux-gnu", cpu, "portable", 16)
    assert text.count(f"\t{instruction}") > 20


@pytest.mark.parametrize("isa", REQUIRED)
def test_instruction_set_runs_here(isa: str) -> None:
    if isa not in available_isas():
        pytest.skip(f"this machine lacks {', '.join(REQUIRED[isa])}: {isa} kernels did not run")
