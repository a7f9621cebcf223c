"""Cases of the kernels that give a device some experts of a layer, and take their results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.experts.division import ALONE, CPU_LEAST, KINDS, PLANNED, PRICES
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run import commands as words
from edgerun.kernels.run.instructions import instruction
from edgerun.kernels.run.parts import PART_WORDS
from edgerun.offload.divider import Divider, Prices
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.floors import ONE
from edgerun.offload.schedule import divide
from tests.conformance.kernels.harness import Call, cases_of, random, untouched

EXPERTS, TOP_K, WIDTH = 6, 4, 19
ACTIVE = [1, 2, 4, 5]
US = 1_000


def parts_of(experts: list[int]) -> NDArray[np.int64]:
    """A row that goes to some experts, in the order of its places."""
    parts = untouched((1 + EXPERTS * PART_WORDS,), np.int64)
    given = [len(experts), *(word for place, e in enumerate(experts) for word in (e, place, 1))]
    parts[: len(given)] = given
    return parts


@cases_of(
    "expert_command",
    slots=[{}, {1: 3, 4: 0, 5: 9}, {1: 3, 2: 1, 4: 0, 5: 9}],
    device_us=[1, 50, 900],
    is_open=[0, 1],
    commands=[4, 8],
)
def expert_command(slots: dict[int, int], device_us: int, is_open: int, commands: int) -> Call:
    """Four experts of a row, some on the device, which takes so long for one; the processor 100."""
    estimates = Estimates(Estimate(1e-4), Estimate(device_us * 1e-6), Estimate(1.0))
    estimates.start, estimates.command = Estimate(5e-6), Estimate(2e-5)
    prices = Prices(estimates)
    prices.update(ONE)
    divider = Divider(TOP_K, prices)
    table = np.array([slots.get(expert, -1) + 1 for expert in range(EXPERTS)], np.int64)
    control = np.zeros(words.CONTROL_WORDS, np.int64)
    taken = untouched((TOP_K, WIDTH))
    control[[words.OPEN, words.GIVEN, words.X]] = is_open, 41, taken.ctypes.data
    control[[words.CHECK_EVERY, words.TRY_EVERY]] = 8, 5
    layer = untouched((words.LAYER_WORDS + TOP_K,), np.int64)
    layer[[words.COMMANDS, words.CALLS]] = commands, 9  # the tenth is tried, whatever it costs
    parts, weights, scores = parts_of(ACTIVE), -random((TOP_K,)), untouched((TOP_K,))
    x = random((1, WIDTH), gap=3)
    is_cached = [expert in slots for expert in ACTIVE]
    costs = np.array([[100, device_us, 0 if there else 10**6] for there in is_cached]) * US
    shares, _, makespan = divide(costs, 0, 1)
    expected = [expert for expert, share in zip(ACTIVE, shares.tolist(), strict=True) if share]

    def check() -> None:
        there = expected if is_open else []
        here = len(ACTIVE) - len(there)
        shown = parts[1 : 1 + TOP_K * PART_WORDS].reshape(-1, PART_WORDS)
        assert sorted(shown.tolist()) == [[e, place, 1] for place, e in enumerate(ACTIVE)]
        assert {*shown[here:, 0].tolist()} == {*there}
        assert layer[words.ACTIVE] == is_open * TOP_K and layer[words.THERE] == len(there)
        assert layer[words.STARTED] <= layer[words.WORKING]
        assert control[words.GIVEN] == 41 + bool(there)
        is_checked = bool(there) and (commands + 1) % 8 == 1
        assert parts[0] == here + is_checked
        if there:
            assert layer[words.IS_CHECKED] == is_checked
            assert layer[words.NUMBER] == 42 and layer[words.COMMANDS] == commands + 1
            asked = control[words.SLOTS : words.SLOTS + control[words.COUNT]].tolist()
            assert asked == [slots[expert] for expert in shown[here:, 0].tolist()]
            np.testing.assert_array_equal(taken[: len(there)], x[[0] * len(there), :WIDTH])
        np.testing.assert_array_equal(taken[len(there) :], untouched((TOP_K, WIDTH))[len(there) :])
        if is_open:
            names = layer[words.LAYER_WORDS :].tolist()
            assert {*names[:here]} == {*shown[:here, 0].tolist()} and {*names} == {*ACTIVE}
            places = [ACTIVE.index(name) for name in names]
            np.testing.assert_array_equal(scores, np.abs(weights[places]))
            result = divider.memory["result"]
            assert layer[words.PLANNED_NS] == result[PLANNED if there else ALONE]
            assert layer[words.CPU_COST_NS] == here * 100 * US
            assert layer[words.DEVICE_COST_NS] == len(there) * device_us * US
            assert 0 < layer[words.BOUND_NS] <= makespan
            assert layer[words.CERTIFICATE_NS] == 0  # nothing was ever seen

    memory = divider.memory
    fields = {"parts": parts, "experts": EXPERTS, "top_k": TOP_K, "weights": weights}
    fields |= {"table": table, "control": control, "layer": layer, "scores": scores}
    fields |= {"divide": np.array([compiled("expert_division").address], np.int64)}
    fields |= {"division": divider.arguments, "counts": memory["rows"]}
    fields |= {name: memory[name] for name in ("cached", "shares", "costs", "prices", "result")}
    fields |= {"x": x, "x_stride": x.strides[0] // 4, "width": WIDTH}
    return Call({}, fields, 0, check, 1)


def copying(source: NDArray[np.float32], target: NDArray[np.float32]) -> tuple[Any, list[Any]]:
    """A step that copies all rows, and what it uses."""
    rows = np.array([TOP_K], np.int64)
    memory = {"rows": rows, "index": np.arange(TOP_K, dtype=np.int32), "x": source, "out": target}
    fields = {name: array.ctypes.data for name, array in memory.items()}
    fields |= {"x_stride": WIDTH, "out_stride": WIDTH, "width": WIDTH}
    step = instruction(
        "select_rows", params={}, fields=fields, chunks=(1, 1, 1), reads=set(), writes=set()
    )
    words_of_it = [step.function, step.arguments.ctypes.data, 1, 3, 3]  # as many chunks as rows
    return np.array([words_of_it], np.int64), [*memory.values(), step]


@cases_of(
    "expert_results",
    there=[0, 1, 3],
    fault=[0, words.FAILED],
    checked=[None, "same", "other"],
    least=[0.0, 1.0, 1e15],
)
def expert_results(there: int, fault: int, checked: str | None, least: float) -> Call:
    """Results of a device, or of what makes up for it; 4 experts, of which it has some."""
    here = TOP_K - there
    order = [3, 0, 2, 1]  # places, those of the device last
    parts = parts_of([ACTIVE[place] for place in order])
    parts[1 : 1 + TOP_K * PART_WORDS].reshape(-1, PART_WORDS)[:, 1] = order
    is_checked = checked is not None and there > 0
    parts[0] = here + is_checked
    own, theirs, others = (random((TOP_K, WIDTH), seed) for seed in range(3))
    results = np.full((TOP_K, WIDTH + 2), np.nan, np.float32)
    results[order, :WIDTH] = own
    if checked == "same":
        results[order[here:][:1], :WIDTH] = theirs[:1]
    before = results.copy()
    control = np.zeros(words.CONTROL_WORDS, np.int64)
    control[[words.GIVEN, words.DONE, words.OPEN, words.FAULT]] = 7, 7, 1, fault
    control[[words.OUT, words.PATIENCE]] = theirs.ctypes.data, 10**9
    control[[words.BEGAN, words.ENDED]] = 1000, 1400
    layer = np.zeros(words.LAYER_WORDS + TOP_K, np.int64)
    layer[[words.ACTIVE, words.THERE, words.NUMBER, words.IS_CHECKED]] = TOP_K, there, 7, is_checked
    layer[[words.STARTED, words.WORKING, words.PLANNED_NS]] = 900, 950, 600
    totals, prices = np.zeros(words.TOTAL_WORDS, np.int64), np.zeros((KINDS, PRICES))
    prices[0, CPU_LEAST:] = least
    frame = np.array([1, TOP_K], np.int64)
    copied = untouched((TOP_K, WIDTH))
    steps, used = copying(others, copied)

    def check() -> None:
        assert used  # and still there
        wrong = fault or (words.DIFFERS if is_checked and checked == "other" else 0)
        left = order[here:]
        np.testing.assert_array_equal(
            copied, others if wrong and there else untouched(others.shape)
        )
        if wrong and there:
            np.testing.assert_array_equal(results, before)
            assert parts[0] == there and control[words.OPEN] == 0
            units = parts[1 : 1 + there * PART_WORDS].reshape(-1, PART_WORDS)[:, 1]
            assert units.tolist() == left and control[words.FAULT] == wrong
            assert not totals.any()
            return
        np.testing.assert_array_equal(results[left, :WIDTH], theirs[:there])
        np.testing.assert_array_equal(results[order[:here]], before[order[:here]])
        assert np.isnan(results[:, WIDTH:]).all()
        sides = totals[[words.LAYERS, words.EXPERTS_HERE, words.EXPERTS_THERE]].tolist()
        assert sides == [1, here, there] and totals[words.PLANNED_SUM] == 600
        assert totals[words.DEVICE_SUM] == layer[words.DEVICE_NS] == (400 if there else 0)
        assert totals[words.START_SUM] == (50 if there else 0)
        assert totals[words.COMMAND_SUM] == (100 if there else 0)
        assert totals[words.CHECKED] == (is_checked and there > 0)
        assert totals[words.CPU_SUM] == (0 if is_checked else layer[words.CPU_NS])
        assert layer[words.IS_LEAST] == totals[words.LEASTS] == (least != 1)

    arguments = {"parts": parts, "experts": EXPERTS, "top_k": TOP_K, "control": control}
    arguments |= {"layer": layer, "totals": totals, "prices": prices, "steps": steps, "count": 1}
    arguments |= {"frame": frame, "frame_words": len(frame), "results": results}
    return Call({}, arguments | {"stride": WIDTH + 2, "width": WIDTH}, 0, check, 1)
