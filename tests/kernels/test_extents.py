"""What kernels declare to touch is all that they touch, and the second wall believes them."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import mmap
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.kernels.extents import EXTENTS, OPTIONAL
from edgerun.kernels.jit.registry import kernels
from edgerun.kernels.run.program import ThreadTeam
from tests.kernels.harness import CASES, ISAS, Call, run

PAGE, PROTECTED = mmap.PAGESIZE, 0
# Bound to a cache when the program meets one; see emit/attention.py.
LATE = {"key_data", "value_data", "key_scales", "value_scales", "page_table", "table"}
# The back-end makes them for the largest batch, whatever a case needs.
GENEROUS, GATHERING = {"partials", "units"}, {"select_rows"}
# The widest vectors reach furthest; the portable ones are the other kind of code.
OTHER_ISAS = set(ISAS[1:-1])


def test_every_operand_is_a_field_of_its_kernel() -> None:
    for name, extents in EXTENTS.items():
        assert set(extents) <= set(kernels()[name].fields), name


def guarded(array: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """A copy of the first bytes of an array, behind which no memory may be touched."""
    room = math.ceil(size / PAGE) * PAGE
    area = mmap.mmap(-1, room + PAGE)
    whole = np.frombuffer(area, np.uint8)
    last = ctypes.c_void_p(whole.ctypes.data + room)
    assert ctypes.CDLL(None).mprotect(last, PAGE, PROTECTED) == 0
    copy = whole[room - size : room]
    copy[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)[:size]
    return copy


def sizes_of(call: Call) -> dict[str, int]:
    """What extents are computed from, as the back-end says it."""
    fields = call.fields
    known = {name: int(value) for name, value in fields.items() if np.ndim(value) == 0}
    known |= {name: value for name, value in call.params.items() if isinstance(value, int)}
    table = fields.get("table", fields.get("codes"))
    vocab = {} if table is None else {"vocab": len(table)}
    batch = [fields[name] for name in ("x", "out") if np.ndim(fields.get(name, 0)) == 2]
    return known | vocab | {"rows": max([call.rows, *map(len, batch)])}


def run_guarded(kernel: str, call: Call, team: ThreadTeam) -> None:
    """Runs a call on memory that ends where the declared extents end."""
    known, copies = sizes_of(call), {}
    for name, extent in EXTENTS[kernel].items():
        array = call.fields.get(name)
        if isinstance(array, np.ndarray):
            size = extent(known)
            if name in GENEROUS or kernel in GATHERING:
                size = min(size, array.nbytes)
            earlier = copies.get(id(array))
            if earlier is None or earlier[1].nbytes < size:
                copies[id(array)] = (array, guarded(array, size))
    fields = {
        name: copies[id(value)][1] if id(value) in copies else value
        for name, value in call.fields.items()
    }
    run(kernel, dataclasses.replace(call, fields=fields), team)
    for array, copy in copies.values():
        if array.flags.writeable:
            array.reshape(-1).view(np.uint8)[: copy.nbytes] = copy
    call.check()


def run_all() -> None:
    """Runs the cases of declared kernels; the last line names the one that was running."""
    team = ThreadTeam(1)
    for case in CASES:
        words = str(case.arguments)
        if case.kernel in EXTENTS and not any(f"'{isa}'" in words for isa in OTHER_ISAS):
            sys.stdout.write(f"{case}\n")
            sys.stdout.flush()
            run_guarded(case.kernel, case.prepare(**case.arguments), team)
    sys.stdout.write("done\n")
    team.close()


@pytest.mark.skipif(sys.platform == "win32", reason="memory is protected by mprotect")
def test_kernels_touch_nothing_beyond_their_extents() -> None:
    """In a process of its own, which a touch ends."""
    script = "import tests.kernels.test_conformance; from tests.kernels import test_extents"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; test_extents.run_all()"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last) == (0, "done"), done.stderr[-3000:]


def test_addresses_are_declared_or_come_with_the_cache() -> None:
    """Operands that no extent speaks of would pass as numbers."""
    for case in CASES:
        if case.kernel in EXTENTS:
            call = case.prepare(**case.arguments)
            arrays = {name for name, value in call.fields.items() if isinstance(value, np.ndarray)}
            assert arrays <= set(EXTENTS[case.kernel]) | LATE, case
            assert OPTIONAL.isdisjoint(LATE)
