"""What a layer of experts takes of a device that computed some, or computes in its place."""

from __future__ import annotations

from numba import int64, njit

from edgerun.kernels.experts.rows import part_at, places_end
from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.intrinsics import (
    atomic_load,
    atomic_store,
    call_chunk,
    compare_exchange,
    doze,
    nanoseconds,
    rest,
)
from edgerun.kernels.lang.word import int_at, set_word, word
from edgerun.kernels.pointwise.elementwise import copy_floats
from edgerun.kernels.run import commands as w
from edgerun.kernels.run.parts import PART_WORDS, START

LOOKS = 64  # at a word between two at the clock
DOZING_NS = 3_000_000  # of waiting, before threads doze: once takes half as long as many a layer


@kernel(
    "expert_results",
    f"rows:i64[1] parts:i64[1 + experts * {PART_WORDS}] experts most top_k"
    f" control:i64[{w.CONTROL_WORDS}] layer:i64[{w.LAYER_WORDS} + 2 * most]"
    f" totals:i64[{w.TOTAL_WORDS}] steps:i64[count, {w.STEP_WORDS}] count"
    " frame:i64[frame_words] frame_words results:f32[rows * top_k, width; stride] stride width",
)
def expert_results() -> Body:
    """Takes what the device computed of a layer to where it belongs; one chunk.

    If that does not come in time, or is not what the processor has, the device's experts are
    computed by the instructions in ``steps``, which are those between ``expert_command`` and this.
    """

    def body(a: Arguments, chunk: int) -> None:
        ended = nanoseconds()
        there = word(a.layer, w.THERE)
        if there > 0:
            here = word(a.layer, w.ACTIVE) - there
            fault = _await(a)
            answered = nanoseconds()
            if fault == 0 and _differs(a, here):
                compare_exchange(a.control + w.FAULT * 8, 0, w.DIFFERS)
                fault = w.DIFFERS
            if fault == 0:
                _take(a, here, there)
                _add(a, w.TAKING_SUM, nanoseconds() - answered)
            else:
                atomic_store(a.control + w.OPEN * 8, 0)
                _make_up(a, here, there)
                set_word(a.layer, w.ACTIVE, 0)  # of this nothing is to be learned
                set_word(a.layer, w.THERE, 0)
        if word(a.layer, w.ACTIVE) > 0:
            _count(a, ended)

    return body


@njit
def _await(a):  # type: ignore[no-untyped-def]
    """Waits until the command was obeyed; 0, or what is wrong."""
    number, began, spins, waited = word(a.layer, w.NUMBER), nanoseconds(), 0, int64(0)
    while atomic_load(a.control + w.DONE * 8) < number:
        if atomic_load(a.control + w.FAULT * 8) != 0:
            break
        spins += 1
        if waited < DOZING_NS:
            rest(spins)
        else:
            doze()
        if spins % LOOKS == 0:
            waited = nanoseconds() - began
            if waited > word(a.control, w.PATIENCE):
                compare_exchange(a.control + w.FAULT * 8, 0, w.LATE)
    return atomic_load(a.control + w.FAULT * 8)


@njit
def _differs(a, here):  # type: ignore[no-untyped-def]
    """Whether results of the device's first expert are others than the processor's, if it has."""
    if word(a.layer, w.IS_CHECKED) == 0:
        return False
    theirs, part = word(a.control, w.OUT), part_at(a.parts, here)
    for place in range(word(part, START), places_end(part)):
        ours = a.results + place * a.stride * 4
        for column in range(a.width):
            if int_at(theirs, column) != int_at(ours, column):
                return True
        theirs += a.width * 4
    return False


@njit
def _take(a, here, there):  # type: ignore[no-untyped-def]
    source = word(a.control, w.OUT)
    for index in range(here, here + there):
        part = part_at(a.parts, index)
        for place in range(word(part, START), places_end(part)):
            copy_floats(source, a.results + place * a.stride * 4, a.width)
            source += a.width * 4


@njit
def _make_up(a, here, there):  # type: ignore[no-untyped-def]
    """Computes the device's experts; those of the processor are done with."""
    for index in range(there):
        for place in range(PART_WORDS):
            set_word(part_at(a.parts, index), place, word(part_at(a.parts, here + index), place))
    set_word(a.parts, 0, there)
    for index in range(a.count):
        step = a.steps + index * w.STEP_WORDS * 8
        units = word(a.frame, word(step, w.SIZE)) * word(step, w.TIMES)
        divide = word(step, w.DIVIDE)
        for chunk in range((units + divide - 1) // divide):
            call_chunk(word(step, w.FUNCTION), word(step, w.ARGUMENTS), chunk)


@njit
def _add(a, total, value):  # type: ignore[no-untyped-def]
    set_word(a.totals, total, word(a.totals, total) + value)


@njit
def _count(a, ended):  # type: ignore[no-untyped-def]
    """Adds up what the layer took."""
    started, working = word(a.layer, w.STARTED), word(a.layer, w.WORKING)
    there, is_checked = word(a.layer, w.THERE), word(a.layer, w.IS_CHECKED)
    here = word(a.layer, w.ACTIVE) - there
    cpu, device, last = ended - working, int64(0), ended
    is_least = here > 0 and _is_less(a, cpu, w.CPU_LEAST_NS)
    if there > 0:
        began, last_there = word(a.control, w.BEGAN), word(a.control, w.ENDED)
        device, last = last_there - began, max(ended, last_there)
        is_least = is_least or _is_less(a, device, w.DEVICE_LEAST_NS)
        _add(a, w.WITH_DEVICE, 1)
        _add(a, w.DEVICE_SUM, device)
        _add(a, w.DEVICE_COST_SUM, word(a.layer, w.DEVICE_COST_NS))
        _mark(a, w.DEVICE_KINDS_SEEN, word(a.layer, w.DEVICE_KINDS))
        _add(a, w.START_SUM, working - started)
        _add(a, w.COMMAND_SUM, max(int64(0), began - started))
        _add(a, w.CHECKED, is_checked)
    is_more = there > 0 and is_checked != 0  # the processor computed more than it had to
    if here > 0 and not is_more:
        _add(a, w.CPU_SUM, cpu)
        _add(a, w.CPU_COST_SUM, word(a.layer, w.CPU_COST_NS))
        _mark(a, w.CPU_KINDS_SEEN, word(a.layer, w.CPU_KINDS))
    set_word(a.layer, w.IS_LEAST, int64(is_least))
    set_word(a.layer, w.CPU_NS, cpu)
    set_word(a.layer, w.DEVICE_NS, device)
    _add(a, w.LEASTS, int64(is_least))
    _add(a, w.LAYERS, 1)
    _add(a, w.ROWS, word(a.rows, 0))
    _add(a, w.EXPERTS_HERE, here)
    _add(a, w.EXPERTS_THERE, there)
    _add(a, w.PLANNED_SUM, word(a.layer, w.PLANNED_NS))
    _add(a, w.BOUND_SUM, word(a.layer, w.BOUND_NS))
    _add(a, w.CERTIFICATE_SUM, word(a.layer, w.CERTIFICATE_NS))
    _add(a, w.EARLY, int64(last - started < word(a.layer, w.CERTIFICATE_NS)))
    _add(a, w.SECONDS_SUM, last - started)


@njit
def _mark(a, total, kinds):  # type: ignore[no-untyped-def]
    set_word(a.totals, total, word(a.totals, total) | kinds)


@njit
def _is_less(a, taken, least):  # type: ignore[no-untyped-def]
    """Whether experts took less than ever, or some were never seen."""
    return word(a.layer, least) == 0 or taken < word(a.layer, least)
