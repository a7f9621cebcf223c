"""Machine code for processors that this machine may not have."""

from __future__ import annotations

import dataclasses
import errno
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun.kernels import isa as isa_module
from edgerun.kernels.host.permission import ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, ask_for_tiles
from edgerun.kernels.isa import available_isas, obstacle, selected_isa
from edgerun.kernels.lang.dot import X86
from edgerun.kernels.lang.isa import ISAS

# In a process of its own: LLVM ends the process where it cannot translate something.
SCRIPT = """
import sys
from llvmlite import binding
from edgerun.kernels.lang import dot
from edgerun.kernels.jit.catalogue import kernels
from edgerun.kernels.jit.compiler import compile_module
from edgerun.kernels.jit.target import target_machine
triple, cpu, isa, lanes, features = sys.argv[1:]
dot.X86 = triple.startswith("x86")
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
target = binding.Target.from_triple(triple)
machine = target.create_target_machine(cpu=cpu, features=features, opt=3)
text, constants = "", {"lanes": int(lanes), "isa": isa}
if isa == "amx":
    calls = {"amx_peak": {"isa": isa}}
    constants |= {"tokens": -4, "packed": 1}
    calls["amx_row"] = {"bits": 2, **constants}
    calls["amx_block"] = {"bits": 4, "block": 32, "zeros": 0, "halves": 0, **constants}
else:
    calls = {"linear_row": {"bits": 2, **constants}}
    calls["linear_block"] = {"bits": 8, "block": 64, "zeros": 0, "halves": 0, **constants}
for name, params in calls.items():
    kernel = kernels()[name]
    module = compile_module(kernel.make(**params), kernel.types, target_machine())
    module.triple, module.data_layout = triple, str(machine.target_data)
    text += machine.emit_assembly(module)
print(text)
"""


def assembly(triple: str, cpu: str, isa: str, lanes: int, features: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, triple, cpu, isa, str(lanes), features],
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


@pytest.mark.skipif(not X86, reason="Numba writes code for this machine's own architecture")
def test_avxvnni_uses_its_dot_product_without_avx512() -> None:
    text = assembly("x86_64-unknown-linux-gnu", "alderlake", "avxvnni", 32)
    products = [line for line in text.splitlines() if "vpdpbusd" in line]
    assert len(products) > 50
    assert all("{vex}" in line and "ymm" in line for line in products)
    assert "zmm" not in text


@pytest.mark.parametrize("cpu", ["cortex-a72", pytest.param("neoverse-n1", marks=pytest.mark.slow)])
def test_portable_code_multiplies_bytes_on_arm(cpu: str) -> None:
    text = assembly("aarch64-unknown-linux-gnu", cpu, "portable", 16)
    assert text.count("\tsmull") > 20


FOREIGN = """
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from edgerun.kernels.jit.compiler import PLAIN, compile_module
from edgerun.kernels.jit.target import target_machine
from edgerun.kernels.lang.dot import X86
from edgerun.kernels.lang.ir import declare

@intrinsic
def foreign(typingctx):
    def codegen(context, builder, sig, args):
        name = "llvm.aarch64.isb" if X86 else "llvm.x86.sse2.pause"
        kinds = [ir.IntType(32)] * X86
        builder.call(declare(builder, name, ir.VoidType(), *kinds), [kind(15) for kind in kinds])
        return context.get_dummy_value()
    return types.void(), codegen

@njit
def helper(value):
    foreign()
    return value + 1

def body(a, chunk):
    helper(a)

print("foreign" if "llvm." in str(compile_module(body, PLAIN, target_machine())) else "lost")
"""


def test_functions_that_a_kernel_calls_are_not_compiled_for_this_machine() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FOREIGN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "foreign\n", done.stderr


@pytest.mark.parametrize(
    ("isa", "features", "used", "unused"),
    [
        ("neon", "+neon", ("smlal\tv", "smlal2\tv", "addp\tv"), ("sdot", "ext\tv")),
        ("dotprod", "+dotprod", ("sdot\tv",), ("smlal", "usdot")),
        ("i8mm", "+dotprod,+i8mm", ("usdot\tv",), ("smlal", "\tsdot")),
    ],
)
def test_arm_multiplies_bytes_by_the_instructions_of_the_set(
    isa: str, features: str, used: tuple[str, ...], unused: tuple[str, ...]
) -> None:
    text = assembly("aarch64-unknown-linux-gnu", "generic", isa, 16, features)
    assert all(text.count(f"\t{mnemonic}") > 20 for mnemonic in used)
    assert not any(mnemonic in text for mnemonic in unused)


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_set_runs_here(isa: str) -> None:
    if isa not in available_isas():
        pytest.skip(f"{obstacle(isa)}: {isa} kernels did not run")


def test_nothing_but_the_records_tells_one_set_from_another(repo_root: Path) -> None:
    compared = re.compile(r"\bisas?(\.name)?\b(\]|\))? *(==|!=|in\b|not in\b) *[\"({\[A-Z]")
    sources = [path for path in (repo_root / "edgerun").rglob("*.py") if path.name != "isa.py"]
    assert [path for path in sources if compared.search(path.read_text())] == []
    assert compared.search('if isa == "amx":') and compared.search("binder.isa in ISAS")


def fake_syscall(error: int, calls: list[tuple[int, int, int]]) -> Any:
    def syscall(number: int, first: int, second: int) -> int:
        calls.append((number, first, second))
        return error

    return syscall


def test_permission_for_tiles_is_asked_for_and_granted() -> None:
    calls: list[tuple[int, int, int]] = []
    assert ask_for_tiles(fake_syscall(0, calls)) == ""
    assert calls == [(158, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.EINVAL, "Linux 5.16 or later"), (errno.EPERM, "refuses AMX tiles: Operation not")],
)
def test_a_refusal_of_tiles_says_why(error: int, reason: str) -> None:
    assert reason in ask_for_tiles(fake_syscall(error, []))


def test_tiles_need_a_system_that_knows_the_permission() -> None:
    assert "Linux on x86-64 only" in ask_for_tiles(None)


@pytest.fixture
def amx_machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for a processor with AMX under a system that answers as told."""

    def machine(refusal: str, forced: str | None = None) -> None:
        everything = frozenset(feature for isa in ISAS.values() for feature in isa.features)
        monkeypatch.setattr(isa_module, "host_features", lambda: everything)
        monkeypatch.setattr(isa_module, "PERMISSIONS", {"amx-tile": lambda: refusal})
        chosen = dataclasses.replace(settings(), isa=forced)
        monkeypatch.setattr(isa_module, "settings", lambda: chosen)
        selected_isa.cache_clear()

    yield machine
    selected_isa.cache_clear()


def test_amx_is_the_best_where_it_is_permitted(amx_machine: Any) -> None:
    amx_machine(refusal="")
    assert selected_isa().name == "amx"


def test_without_permission_for_tiles_the_next_best_is_used(amx_machine: Any) -> None:
    amx_machine(refusal="the system refuses AMX tiles")
    assert selected_isa().name == "avx512vnni"


def test_forcing_amx_without_permission_says_why_not(amx_machine: Any) -> None:
    amx_machine(refusal="the system refuses AMX tiles", forced="amx")
    with pytest.raises(
        InputError, match=r"can run: avx512vnni, .*\(the system refuses AMX tiles\)"
    ):
        selected_isa()


@pytest.mark.skipif(not X86, reason="Numba writes code for this machine's own architecture")
def test_amx_multiplies_tiles_and_gives_them_up() -> None:
    text = assembly("x86_64-unknown-linux-gnu", "sapphirerapids", "amx", 64)
    assert text.count("tdpbsud") >= 10 and "ldtilecfg" in text and "tilerelease" in text
