"""What a layer of experts has a device compute while the processor computes the rest.

Of few rows, those of replies. The layer is divided by ``expert_division``, as layers are that are
shared from outside, but without uploads. What the device does not deliver the processor
computes itself, so that a run has its result whatever becomes of the device.
"""

from __future__ import annotations

from numba import float32, int64, njit

from edgerun.kernels.experts.division import (
    ALONE,
    BOUND,
    CERTIFICATE,
    COST_WORDS,
    CPU_LEAST,
    DEVICE,
    DEVICE_LEAST,
    DIVISION_WORDS,
    GIVEN_CACHED,
    GIVEN_COSTS,
    GIVEN_EXPERTS,
    GIVEN_PRICES,
    GIVEN_RESULT,
    GIVEN_ROWS,
    GIVEN_SHARES,
    GIVEN_WORDS,
    KINDS,
    PLANNED,
    PRICES,
    WEIGHT_SUM,
)
from edgerun.kernels.experts.rows import part_at, places_end, swap_parts
from edgerun.kernels.experts.schedule import kind_of, price_of
from edgerun.kernels.jit.declare import Arguments, Body, function, kernel
from edgerun.kernels.lang.intrinsics import (
    atomic_load,
    atomic_store,
    atomic_swap,
    call_chunk,
    nanoseconds,
    read_byte,
    rest,
    write_byte,
)
from edgerun.kernels.lang.word import float_at, int_at, set_float, set_word, word
from edgerun.kernels.pointwise.elementwise import copy_floats
from edgerun.kernels.run import commands as w
from edgerun.kernels.run.parts import COUNT, PART_WORDS, START, UNIT

LOOKS = 64  # at a word between two at the clock


@kernel(
    "expert_command",
    f"rows:i64[1] parts:i64[1 + experts * {PART_WORDS}] experts most top_k places:i32[rows, top_k]"
    " weights:f32[rows * top_k] row_of:i64[rows * top_k] table:i64[experts]"
    f" control:i64[{w.CONTROL_WORDS}] layer:i64[{w.LAYER_WORDS} + 2 * most] scores:f32[most]"
    f" divide:i64[1] division:i64[{GIVEN_WORDS}] counts:i64[most] cached:i64[most]"
    f" shares:i64[most] costs:i64[most, {COST_WORDS}] prices:f64[{KINDS}, {PRICES}]"
    f" result:i64[{DIVISION_WORDS}] x:f32[rows, width; x_stride] x_stride width",
)
def expert_command() -> Body:
    """Divides the experts of rows, and gives the device a command for its own; one chunk.

    ``most`` is how many experts a batch can go to. ``table`` has the slot of each expert on the
    device, counted from 1, or 0. ``divide`` is the address of ``expert_division`` and ``division``
    what it is called with, but for the memory that follows. Experts of the device are moved behind
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
def _price(a, active):  # type: ignore[no-untyped-def]
    """Divides the experts that there are."""
    for index in range(active):
        slot = atomic_load(a.table + word(part_at(a.parts, index), UNIT) * 8)
        set_word(a.counts, index, word(part_at(a.parts, index), COUNT))
        set_word(a.cached, index, int64(slot != 0))
    set_word(a.division, GIVEN_EXPERTS, active)
    set_word(a.division, GIVEN_ROWS, a.counts)
    set_word(a.division, GIVEN_CACHED, a.cached)
    set_word(a.division, GIVEN_PRICES, a.prices)
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
            swap_parts(part_at(a.parts, index), part_at(a.parts, behind))
    return active - behind


@njit
def _expect(a, active, there):  # type: ignore[no-untyped-def]
    """Writes what the layer is expected to take, divided as it is."""
    for side in range(2):
        cost, kinds, least, is_seen = int64(0), int64(0), 0.0, True
        for index in range(active):
            is_there = there > 0 and word(a.shares, index) > 0
            if is_there == (side == DEVICE):
                rows = word(a.counts, index)
                cost += word(a.costs, index * COST_WORDS + side)
                kinds |= int64(1) << kind_of(rows)
                price = price_of(a.prices, rows, CPU_LEAST + side * (DEVICE_LEAST - CPU_LEAST))
                least, is_seen = least + price, is_seen and price > 0
        set_word(a.layer, w.CPU_COST_NS + side, cost)
        set_word(a.layer, w.CPU_KINDS + side, kinds)
        set_word(a.layer, w.CPU_LEAST_NS + side, int64(least) if is_seen else int64(0))
    planned = word(a.result, PLANNED) if there > 0 else word(a.result, ALONE)
    set_word(a.layer, w.PLANNED_NS, planned)
    set_word(a.layer, w.BOUND_NS, word(a.result, BOUND) // WEIGHT_SUM)
    set_word(a.layer, w.CERTIFICATE_NS, word(a.result, CERTIFICATE))


@njit
def _note(a, active):  # type: ignore[no-untyped-def]
    """Writes experts, their rows, and the most that a result is multiplied with, without sign."""
    for index in range(active):
        part, score = part_at(a.parts, index), float32(0)
        for place in range(word(part, START), places_end(part)):
            score = max(score, abs(float_at(a.weights, place)))
        set_word(a.layer, w.LAYER_WORDS + index, word(part, UNIT))
        set_word(a.layer, w.LAYER_WORDS + active + index, word(part, COUNT))
        set_float(a.scores, index, score)


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
        swap_parts(part_at(a.parts, here), part_at(a.parts, here + commands // every % there))
    set_word(a.parts, 0, here + is_checked)
    _find_rows(a)
    target, count = word(a.control, w.X), int64(0)
    for index in range(here, here + there):
        part = part_at(a.parts, index)
        slot = word(a.table, word(part, UNIT)) - 1
        for place in range(word(part, START), places_end(part)):
            source = a.x + word(a.row_of, place) * a.x_stride * 4
            copy_floats(source, target + count * a.width * 4, a.width)
            set_word(a.control, w.SLOTS + count, slot)
            count += 1
    set_word(a.control, w.COUNT, count)
    number = word(a.control, w.GIVEN) + 1
    set_word(a.layer, w.NUMBER, number)
    # A full barrier: whoever obeys says that it sleeps, and then looks at the number once more.
    atomic_swap(a.control + w.GIVEN * 8, number)
    if atomic_load(a.control + w.ASLEEP * 8) != 0:
        write_byte(word(a.control, w.BELL))


@njit
def _find_rows(a):  # type: ignore[no-untyped-def]
    """Writes the row of each place."""
    for row in range(word(a.rows, 0)):
        for index in range(row * a.top_k, (row + 1) * a.top_k):
            place = int_at(a.places, index)
            if place >= 0:
                set_word(a.row_of, place, row)


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
