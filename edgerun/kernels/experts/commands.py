"""What a layer of experts has a device compute while the processor computes the rest.

Rows of a reply only, one at a time. The layer is divided by ``expert_division``, as layers are that
are shared from outside, but without uploads. What the device does not deliver the processor
computes itself, so that a run has its result whatever becomes of the device.
"""

from __future__ import annotations

from numba import int64, njit

from edgerun.kernels.experts.division import (
    ALONE,
    BOUND,
    CERTIFICATE,
    COST_WORDS,
    CPU,
    CPU_LEAST,
    DEVICE,
    DEVICE_LEAST,
    DIVISION_WORDS,
    GIVEN_CACHED,
    GIVEN_COSTS,
    GIVEN_EXPERTS,
    GIVEN_RESULT,
    GIVEN_ROWS,
    GIVEN_SHARES,
    GIVEN_WORDS,
    PLANNED,
    PRICES,
    WEIGHT_SUM,
)
from edgerun.kernels.experts.rows import swap_parts
from edgerun.kernels.jit.declare import Arguments, Body, function, kernel
from edgerun.kernels.lang.intrinsics import (
    atomic_load,
    atomic_store,
    atomic_swap,
    call_chunk,
    compare_exchange,
    doze,
    nanoseconds,
    read_byte,
    rest,
    write_byte,
)
from edgerun.kernels.lang.word import double_at, float_at, int_at, set_float, set_word, word
from edgerun.kernels.pointwise.elementwise import copy_floats
from edgerun.kernels.run import commands as w
from edgerun.kernels.run.parts import PART_WORDS, START, UNIT

LOOKS = 64  # at a word between two at the clock
SPINS_BEFORE_DOZING = 10_000  # some milliseconds: to doze takes half as long as many a layer


@kernel(
    "expert_command",
    f"parts:i64[1 + experts * {PART_WORDS}] experts top_k weights:f32[top_k] table:i64[experts]"
    f" control:i64[{w.CONTROL_WORDS}] layer:i64[{w.LAYER_WORDS} + top_k] scores:f32[top_k]"
    f" divide:i64[1] division:i64[{GIVEN_WORDS}] counts:i64[top_k] cached:i64[top_k]"
    f" shares:i64[top_k] costs:i64[top_k, {COST_WORDS}] prices:f64[{PRICES}]"
    f" result:i64[{DIVISION_WORDS}] x:f32[1, width; x_stride] x_stride width",
)
def expert_command() -> Body:
    """Divides the experts of a row, and gives the device a command for its own; one chunk.

    ``table`` has the slot of each expert on the device, counted from 1, or 0. ``divide`` is the
    address of ``expert_division`` and ``division`` what it is called with, but for the memory that
    follows; ``prices`` are those of experts with one row. Experts of the device are moved behind
    the others in ``parts`` and are not counted there any more. ``layer`` (``run/commands.py``) and
    ``scores`` get what happened, for whoever learns from it.
    """

    def body(a: Arguments, chunk: int) -> None:
        set_word(a.layer, w.STARTED, nanoseconds())
        active = word(a.parts, 0)
        is_open = atomic_load(a.control + w.OPEN * 8) != 0
        there = int64(0)
        if is_open and active > 0:
            _price(a, active)
            if _is_worth_it(a):
                there = _move_back(a, active)
            _expect(a, active, there)
            _note(a, active)
        set_word(a.layer, w.ACTIVE, active if is_open else int64(0))
        set_word(a.layer, w.THERE, there)
        if there > 0:
            _give(a, active - there, there)
        set_word(a.layer, w.WORKING, nanoseconds())

    return body


@njit
def _part(a, index):  # type: ignore[no-untyped-def]
    return a.parts + 8 + index * PART_WORDS * 8


@njit
def _price(a, active):  # type: ignore[no-untyped-def]
    """Divides the experts that there are."""
    for index in range(active):
        slot = atomic_load(a.table + word(_part(a, index), UNIT) * 8)
        set_word(a.counts, index, 1)
        set_word(a.cached, index, int64(slot != 0))
    set_word(a.division, GIVEN_EXPERTS, active)
    set_word(a.division, GIVEN_ROWS, a.counts)
    set_word(a.division, GIVEN_CACHED, a.cached)
    set_word(a.division, GIVEN_COSTS, a.costs)
    set_word(a.division, GIVEN_SHARES, a.shares)
    set_word(a.division, GIVEN_RESULT, a.result)
    call_chunk(word(a.divide, 0), a.division, 0)


@njit
def _is_worth_it(a):  # type: ignore[no-untyped-def]
    """Whether the device is expected to save time, or it is time to see whether it would."""
    calls = word(a.layer, w.CALLS) + 1
    set_word(a.layer, w.CALLS, calls)
    if word(a.result, PLANNED) <= word(a.result, ALONE):
        return True
    return calls % word(a.control, w.TRY_EVERY) == 0


@njit
def _move_back(a, active):  # type: ignore[no-untyped-def]
    """Puts parts that the device computes behind the others; how many they are."""
    behind = active
    for index in range(active - 1, -1, -1):
        if word(a.shares, index) > 0:
            behind -= 1
            swap_parts(_part(a, index), _part(a, behind))
    return active - behind


@njit
def _expect(a, active, there):  # type: ignore[no-untyped-def]
    """Writes what the layer is expected to take, divided as it is."""
    cpu, device = int64(0), int64(0)
    for index in range(active):
        is_there = there > 0 and word(a.shares, index) > 0
        if is_there:
            device += word(a.costs, index * COST_WORDS + DEVICE)
        else:
            cpu += word(a.costs, index * COST_WORDS + CPU)
    planned = word(a.result, PLANNED) if there > 0 else word(a.result, ALONE)
    set_word(a.layer, w.PLANNED_NS, planned)
    set_word(a.layer, w.BOUND_NS, word(a.result, BOUND) // WEIGHT_SUM)
    set_word(a.layer, w.CERTIFICATE_NS, word(a.result, CERTIFICATE))
    set_word(a.layer, w.CPU_COST_NS, cpu)
    set_word(a.layer, w.DEVICE_COST_NS, device)


@njit
def _note(a, active):  # type: ignore[no-untyped-def]
    """Writes the experts and what their results are multiplied with, without sign."""
    for index in range(active):
        part = _part(a, index)
        set_word(a.layer, w.LAYER_WORDS + index, word(part, UNIT))
        set_float(a.scores, index, abs(float_at(a.weights, word(part, START))))


@njit
def _give(a, here, there):  # type: ignore[no-untyped-def]
    """Writes rows and slots of a command, and says that there is one.

    Every now and then one of the device's experts is computed here, too, by turns.
    """
    commands = word(a.layer, w.COMMANDS) + 1
    set_word(a.layer, w.COMMANDS, commands)
    every = word(a.control, w.CHECK_EVERY)
    is_checked = int64(commands % every == 1 % every)
    set_word(a.layer, w.IS_CHECKED, is_checked)
    if is_checked != 0:
        swap_parts(_part(a, here), _part(a, here + commands // every % there))
    set_word(a.parts, 0, here + is_checked)
    target = word(a.control, w.X)
    for index in range(there):
        copy_floats(a.x, target + index * a.width * 4, a.width)
        expert = word(_part(a, here + index), UNIT)
        set_word(a.control, w.SLOTS + index, word(a.table, expert) - 1)
    set_word(a.control, w.COUNT, there)
    number = word(a.control, w.GIVEN) + 1
    set_word(a.layer, w.NUMBER, number)
    # A full barrier: whoever obeys says that it sleeps, and then looks at the number once more.
    atomic_swap(a.control + w.GIVEN * 8, number)
    if atomic_load(a.control + w.ASLEEP * 8) != 0:
        write_byte(word(a.control, w.BELL))


@kernel(
    "expert_results",
    f"parts:i64[1 + experts * {PART_WORDS}] experts top_k control:i64[{w.CONTROL_WORDS}]"
    f" layer:i64[{w.LAYER_WORDS} + top_k] totals:i64[{w.TOTAL_WORDS}] prices:f64[{PRICES}]"
    f" steps:i64[count, {w.STEP_WORDS}] count frame:i64[frame_words] frame_words"
    " results:f32[top_k, width; stride] stride width",
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
    number, began, spins = word(a.layer, w.NUMBER), nanoseconds(), 0
    while atomic_load(a.control + w.DONE * 8) < number:
        if atomic_load(a.control + w.FAULT * 8) != 0:
            break
        spins += 1
        if spins < SPINS_BEFORE_DOZING:
            rest(spins)
        else:
            doze()
            if nanoseconds() - began > word(a.control, w.PATIENCE):
                compare_exchange(a.control + w.FAULT * 8, 0, w.LATE)
    return atomic_load(a.control + w.FAULT * 8)


@njit
def _result(a, index):  # type: ignore[no-untyped-def]
    """Where the result of a part belongs."""
    return a.results + word(_part(a, index), START) * a.stride * 4


@njit
def _differs(a, here):  # type: ignore[no-untyped-def]
    """Whether the device's first result is another than that of the processor, which has it."""
    if word(a.layer, w.IS_CHECKED) == 0:
        return False
    theirs, ours = word(a.control, w.OUT), _result(a, here)
    for column in range(a.width):  # noqa: SIM110 - which Numba has not
        if int_at(theirs, column) != int_at(ours, column):
            return True
    return False


@njit
def _take(a, here, there):  # type: ignore[no-untyped-def]
    source = word(a.control, w.OUT)
    for index in range(there):
        copy_floats(source + index * a.width * 4, _result(a, here + index), a.width)


@njit
def _make_up(a, here, there):  # type: ignore[no-untyped-def]
    """Computes the device's experts; those of the processor are done with."""
    for index in range(there):
        for place in range(PART_WORDS):
            set_word(_part(a, index), place, word(_part(a, here + index), place))
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
    is_least = _is_less(a, cpu, here, CPU_LEAST)
    if there > 0:
        began, last_there = word(a.control, w.BEGAN), word(a.control, w.ENDED)
        device, last = last_there - began, max(ended, last_there)
        is_least = is_least or _is_less(a, device, there, DEVICE_LEAST)
        _add(a, w.WITH_DEVICE, 1)
        _add(a, w.DEVICE_SUM, device)
        _add(a, w.DEVICE_COST_SUM, word(a.layer, w.DEVICE_COST_NS))
        _add(a, w.START_SUM, working - started)
        _add(a, w.COMMAND_SUM, max(int64(0), began - started))
        _add(a, w.CHECKED, is_checked)
    if there == 0 or is_checked == 0:  # else the processor computed more than it had to
        _add(a, w.CPU_SUM, cpu)
        _add(a, w.CPU_COST_SUM, word(a.layer, w.CPU_COST_NS))
    set_word(a.layer, w.IS_LEAST, int64(is_least))
    set_word(a.layer, w.CPU_NS, cpu)
    set_word(a.layer, w.DEVICE_NS, device)
    _add(a, w.LEASTS, int64(is_least))
    _add(a, w.LAYERS, 1)
    _add(a, w.EXPERTS_HERE, here)
    _add(a, w.EXPERTS_THERE, there)
    _add(a, w.PLANNED_SUM, word(a.layer, w.PLANNED_NS))
    _add(a, w.BOUND_SUM, word(a.layer, w.BOUND_NS))
    _add(a, w.CERTIFICATE_SUM, word(a.layer, w.CERTIFICATE_NS))
    _add(a, w.EARLY, int64(last - started < word(a.layer, w.CERTIFICATE_NS)))
    _add(a, w.SECONDS_SUM, last - started)


@njit
def _is_less(a, taken, experts, price):  # type: ignore[no-untyped-def]
    """Whether experts of one row took less than ever, or were never seen."""
    least = (double_at(a.prices, price) + double_at(a.prices, price + 1)) * experts
    return experts > 0 and (least == 0 or taken < least)


@function("next-command", returns=True)
def next_command(control: int, life: int, last: int, spinning: int) -> int:
    """Waits for a command.

    Args:
        control: address of the control block.
        life: there are no more commands when ``LIFE`` is another.
        last: the number of the one before.
        spinning: nanoseconds for which it looks without a pause before it sleeps.

    Returns:
        the number of the command, ``last`` after a signal, -1 if there will be none.
    """
    began, spins = nanoseconds(), 0
    while True:
        if atomic_load(control + w.LIFE * 8) != life:
            return -1
        number = atomic_load(control + w.GIVEN * 8)
        if number != last:
            return number  # type: ignore[no-any-return]
        spins += 1
        rest(spins)
        if spins % LOOKS == 0 and nanoseconds() - began > spinning:
            byte = _sleep(control, life, last)
            if byte < 0:
                return last
            began, spins = nanoseconds(), 0


@njit
def _sleep(control, life, last):  # type: ignore[no-untyped-def]
    """Waits for a byte, unless there is a command by now; -1 after a signal."""
    atomic_swap(control + w.ASLEEP * 8, 1)
    byte = int64(0)
    if atomic_load(control + w.GIVEN * 8) == last and atomic_load(control + w.LIFE * 8) == life:
        byte = read_byte(word(control, w.EAR))
    atomic_store(control + w.ASLEEP * 8, 0)
    return byte
