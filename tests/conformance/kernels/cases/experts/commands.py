"""Cases of the kernel that gives a device some experts of a layer."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import ALONE, PLANNED
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run import commands as words
from edgerun.kernels.run.parts import PART_WORDS
from edgerun.offload.divider import Divider, Prices
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.schedule import divide
from tests.conformance.kernels.harness import Call, cases_of, random, untouched

EXPERTS, WIDTH = 6, 19
ACTIVE = [1, 2, 4, 5]
US = 1_000


def placed(rows: int, top_k: int) -> tuple[NDArray[np.int64], NDArray[np.int32], list[int]]:
    """Rows that go to some experts: parts in the order of places, the places of rows, and rows."""
    goes_to = [[e for e in ACTIVE if (e + row) % 4 or row == 0][:top_k] for row in range(rows)]
    pairs = sorted((expert, row) for row, own in enumerate(goes_to) for expert in own)
    places = np.full((rows, top_k), -1, np.int32)
    for place, (expert, row) in enumerate(pairs):
        places[row, goes_to[row].index(expert)] = place
    parts = untouched((1 + EXPERTS * PART_WORDS,), np.int64)
    given = [len(ACTIVE)]
    for expert in ACTIVE:
        own = [place for place, (other, _) in enumerate(pairs) if other == expert]
        given += [expert, own[0], len(own)]
    parts[: len(given)] = given
    return parts, places, [row for _, row in pairs]


def check_rows(
    parts: list[list[int]],
    control: NDArray[np.int64],
    slots: dict[int, int],
    taken: NDArray[np.float32],
    x: NDArray[np.float32],
    row_of_place: list[int],
) -> None:
    """The rows of a command are those of its parts, and go through the slots of these."""
    given = [(e, place) for e, first, n in parts for place in range(first, first + n)]
    asked = control[words.SLOTS : words.SLOTS + control[words.COUNT]].tolist()
    assert asked == [slots[expert] for expert, _ in given]
    own = [row_of_place[place] for _, place in given]
    np.testing.assert_array_equal(taken[: len(own)], x[own, :WIDTH])
    np.testing.assert_array_equal(taken[len(own) :], untouched(taken.shape)[len(own) :])


def check_told(
    layer: NDArray[np.int64],
    scores: NDArray[np.float32],
    weights: NDArray[np.float32],
    parts: list[list[int]],
    there: list[int],
) -> None:
    """What is told of the experts is what they are, those of the device last."""
    most = len(parts)
    here = most - len(there)
    names = layer[words.LAYER_WORDS : words.LAYER_WORDS + most].tolist()
    assert {*names} == {*ACTIVE} and {*names[here:]} == {*there}
    by_name = {expert: (first, first + n) for expert, first, n in parts}
    spans = [by_name[name] for name in names]
    assert layer[words.LAYER_WORDS + most :].tolist() == [b - a for a, b in spans]
    largest = [np.abs(weights[a:b]).max() for a, b in spans]
    np.testing.assert_array_equal(scores, np.array(largest, np.float32))
    kinds = [1 << (b - a - 1).bit_length() for a, b in spans]
    assert layer[words.CPU_KINDS] == reduce(or_, kinds[:here], 0)
    assert layer[words.DEVICE_KINDS] == reduce(or_, kinds[here:], 0)
    # Nothing was ever seen.
    unseen = layer[[words.CERTIFICATE_NS, words.CPU_LEAST_NS, words.DEVICE_LEAST_NS]]
    assert not unseen.any()


@cases_of(
    "expert_command",
    slots=[{}, {1: 3, 4: 0, 5: 9}, {1: 3, 2: 1, 4: 0, 5: 9}],
    device_us=[1, 50, 900],
    is_open=[0, 1],
    commands=[4, 8],
    rows=[1, 3],
)
def expert_command(
    slots: dict[int, int], device_us: int, is_open: int, commands: int, rows: int
) -> Call:
    """Four experts, some on the device, which takes so long for one; the processor 100."""
    estimates = Estimates(Estimate(1e-4), Estimate(device_us * 1e-6), Estimate(1.0))
    estimates.start, estimates.command = Estimate(5e-6), Estimate(2e-5)
    prices, most, top_k = Prices(estimates), len(ACTIVE), 4
    prices.update([1, 2, 4])
    divider = Divider(most, prices)
    table = np.array([slots.get(expert, -1) + 1 for expert in range(EXPERTS)], np.int64)
    control, count = np.zeros(words.CONTROL_WORDS, np.int64), rows * top_k
    taken = untouched((count, WIDTH))
    control[[words.OPEN, words.GIVEN, words.X]] = is_open, 41, taken.ctypes.data
    control[[words.CHECK_EVERY, words.TRY_EVERY]] = 8, 5
    layer = untouched((words.LAYER_WORDS + 2 * most,), np.int64)
    layer[[words.COMMANDS, words.CALLS]] = commands, 9  # the tenth is tried, whatever it costs
    parts, places, row_of_place = placed(rows, top_k)
    before = parts[1 : 1 + most * PART_WORDS].reshape(-1, PART_WORDS).tolist()
    weights, scores = -random((count,)), untouched((most,))
    x = random((rows, WIDTH), gap=3)
    is_cached = [expert in slots for expert in ACTIVE]
    costs = np.array([[100, device_us, 0 if there else 10**6] for there in is_cached]) * US
    shares, _, makespan = divide(costs, 0, 1)
    expected = [expert for expert, share in zip(ACTIVE, shares.tolist(), strict=True) if share]

    def check() -> None:
        there = expected if is_open else []
        here = len(ACTIVE) - len(there)
        shown = parts[1 : 1 + most * PART_WORDS].reshape(-1, PART_WORDS)
        assert sorted(shown.tolist()) == before
        assert {*shown[here:, 0].tolist()} == {*there}
        assert layer[words.ACTIVE] == is_open * most and layer[words.THERE] == len(there)
        assert layer[words.STARTED] <= layer[words.WORKING]
        assert control[words.GIVEN] == 41 + bool(there)
        is_checked = bool(there) and (commands + 1) % 8 == 1
        assert parts[0] == here + is_checked
        if there:
            assert layer[words.IS_CHECKED] == is_checked
            assert layer[words.NUMBER] == 42 and layer[words.COMMANDS] == commands + 1
            check_rows(shown[here:].tolist(), control, slots, taken, x, row_of_place)
        else:
            np.testing.assert_array_equal(taken, untouched(taken.shape))
        if is_open:
            result = divider.memory["result"]
            assert layer[words.PLANNED_NS] == result[PLANNED if there else ALONE]
            assert 0 < layer[words.BOUND_NS] <= makespan
            assert layer[words.CPU_COST_NS] == here * 100 * US
            assert layer[words.DEVICE_COST_NS] == len(there) * device_us * US
            check_told(layer, scores, weights, before, expected)

    memory = divider.memory
    fields = {"parts": parts, "experts": EXPERTS, "most": most, "top_k": top_k, "places": places}
    fields |= {"weights": weights, "row_of": untouched((count,), np.int64)}
    fields |= {"table": table, "control": control, "layer": layer, "scores": scores}
    fields |= {"divide": np.array([compiled("expert_division").address], np.int64)}
    fields |= {"division": divider.arguments, "counts": memory["rows"]}
    fields |= {name: memory[name] for name in ("cached", "shares", "costs", "prices", "result")}
    fields |= {"x": x, "x_stride": x.strides[0] // 4, "width": WIDTH}
    return Call({}, fields, rows, check, 1)
