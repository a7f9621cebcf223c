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

from edgerun.kernels.jit.catalogue import kernels
from edgerun.kernels.run.program import ThreadTeam
from tests.conformance.kernels.harness import CASES, ISAS, Call, run

PAGE, PROTECTED = mmap.PAGESIZE, 0
LONGEST = 900  # seconds: without a cache most kernels are compiled, on a slow machine in 5 minutes
# Made for the largest batch or the widest sums, whatever a case needs.
GENEROUS = {"partials", "units", "single", "stacked", "multiply_peak"}
GATHERING = {"select_rows"}
# The widest vectors reach furthest; the portable ones are the other kind of code.
OTHER_ISAS = set(ISAS[1:-1])


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
    numbers = {name: int(value) for name, value in fields.items() if np.ndim(value) == 0}
    numbers |= {name: value for name, value in call.params.items() if isinstance(value, int)}
    batch = [fields[name] for name in ("x", "out") if np.ndim(fields.get(name, 0)) == 2]
    if "positions" in fields:
        batch.append(fields["positions"])
    rows = np.max(fields.get("rows", call.rows))
    implied = {"rows": max([int(rows), *map(len, batch)]), "chunks": call.chunks or call.rows}
    return implied | numbers


def run_guarded(kernel: str, call: Call, team: ThreadTeam) -> None:
    """Runs a call on memory that ends where the declared extents end."""
    copies: dict[int, tuple[NDArray[Any], NDArray[np.uint8]]] = {}
    for name, size in kernels()[kernel].signature.touched(sizes_of(call)).items():
        array = call.fields.get(name)
        if isinstance(array, np.ndarray):
            if {name, kernel} & (GENEROUS | GATHERING):
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
    """Runs all cases; the last line names the one that was running."""
    team = ThreadTeam(1)
    for case in CASES:
        words = str(case.arguments)
        if not any(f"'{isa}'" in words for isa in OTHER_ISAS):
            sys.stdout.write(f"{case}\n")
            sys.stdout.flush()
            run_guarded(case.kernel, case.prepare(**case.arguments), team)
    sys.stdout.write("done\n")
    team.close()


@pytest.mark.timeout(LONGEST)
@pytest.mark.skipif(sys.platform == "win32", reason="memory is protected by mprotect")
def test_kernels_touch_nothing_beyond_their_extents() -> None:
    """In a process of its own, which a touch ends."""
    script = "from tests.conformance.kernels import test_extents, test_kernels"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; test_extents.run_all()"],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last) == (0, "done"), done.stderr[-3000:]
