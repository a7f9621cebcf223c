"""Cases of the kernel that takes a device's results, or makes up for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.run import commands as words
from edgerun.kernels.run.instructions import instruction
from edgerun.kernels.run.parts import PART_WORDS
from tests.conformance.kernels.cases.experts.commands import ACTIVE, EXPERTS, WIDTH, placed
from tests.conformance.kernels.harness import Call, cases_of, random, untouched


def copying(source: NDArray[np.float32], target: NDArray[np.float32]) -> tuple[Any, list[Any]]:
    """A step that copies all rows, and what it uses."""
    rows, count = np.array([len(source)], np.int64), len(source)
    memory = {"rows": rows, "index": np.arange(count, dtype=np.int32), "x": source, "out": target}
    fields = {name: array.ctypes.data for name, array in memory.items()}
    fields |= {"x_stride": WIDTH, "out_stride": WIDTH, "width": WIDTH}
    step = instruction(
        "select_rows", params={}, fields=fields, chunks=(1, 1, 1), reads=set(), writes=set()
    )
    words_of_it = [step.function, step.arguments.ctypes.data, 1, 3, 3]  # as many chunks as rows
    return np.array([words_of_it], np.int64), [*memory.values(), step]


@cases_of(
    "expert_results",
    there=[0, 1, 3, 4],
    fault=[0, words.FAILED],
    checked=[None, "same", "other"],
    least=[0, 1],
    rows=[1, 3],
)
def expert_results(there: int, fault: int, checked: str | None, least: int, rows: int) -> Call:
    """Results of a device, or of what makes up for it; 4 experts, of which it has some."""
    most, top_k = len(ACTIVE), 4
    here, count = most - there, rows * top_k
    parts, _, _ = placed(rows, top_k)
    shown = parts[1 : 1 + most * PART_WORDS].reshape(-1, PART_WORDS)
    shown[:] = shown[[3, 0, 2, 1]]  # those of the device last
    is_checked = checked is not None and there > 0
    parts[0] = here + is_checked
    spans = [[*range(first, first + size)] for _, first, size in shown.tolist()]
    left = [place for span in spans[here:] for place in span]
    theirs, others = random((len(left), WIDTH), 1), random((count, WIDTH), 2)
    results = random((count, WIDTH), gap=2)
    if checked == "same" and there:
        results[spans[here], :WIDTH] = theirs[: len(spans[here])]
    before = results.copy()
    control = np.zeros(words.CONTROL_WORDS, np.int64)
    control[[words.GIVEN, words.DONE, words.OPEN, words.FAULT]] = 7, 7, 1, fault
    control[[words.OUT, words.PATIENCE]] = theirs.ctypes.data, 10**9
    control[[words.BEGAN, words.ENDED]] = 1000, 1400
    layer = np.zeros(words.LAYER_WORDS + 2 * most, np.int64)
    layer[[words.ACTIVE, words.THERE, words.NUMBER, words.IS_CHECKED]] = most, there, 7, is_checked
    layer[[words.STARTED, words.WORKING, words.PLANNED_NS]] = 900, 950, 600
    layer[[words.CPU_LEAST_NS, words.DEVICE_LEAST_NS]] = least
    layer[[words.CPU_KINDS, words.DEVICE_KINDS]] = 2, 4
    totals, frame = np.zeros(words.TOTAL_WORDS, np.int64), np.array([1, count], np.int64)
    totals[words.DEVICE_KINDS_SEEN], copied = 1, untouched((count, WIDTH))
    steps, used = copying(others, copied)

    def check() -> None:
        assert used  # and still there
        wrong = fault or (words.DIFFERS if is_checked and checked == "other" else 0)
        is_copied = bool(wrong and there)
        np.testing.assert_array_equal(copied, others if is_copied else untouched(others.shape))
        if is_copied:
            np.testing.assert_array_equal(results, before)
            assert parts[0] == there and control[words.OPEN] == 0
            first = parts[1 : 1 + there * PART_WORDS].reshape(-1, PART_WORDS)[:, 1].tolist()
            assert first == [span[0] for span in spans[here:]]
            assert control[words.FAULT] == wrong and totals.sum() == 1
            assert layer[words.ACTIVE] == layer[words.THERE] == 0
            return
        np.testing.assert_array_equal(results[left, :WIDTH], theirs)
        np.testing.assert_array_equal(np.delete(results, left, 0), np.delete(before, left, 0))
        assert np.isnan(results[:, WIDTH:]).all()
        counted = [words.LAYERS, words.ROWS, words.EXPERTS_HERE, words.EXPERTS_THERE]
        assert totals[counted].tolist() == [1, rows, here, there]
        sums = [words.PLANNED_SUM, words.DEVICE_SUM, words.START_SUM, words.COMMAND_SUM]
        assert totals[sums].tolist() == [600, *([400, 50, 100] if there else [0, 0, 0])]
        assert totals[words.CHECKED] == (is_checked and there > 0)
        is_learned = here > 0 and not is_checked
        assert totals[words.CPU_SUM] == is_learned * layer[words.CPU_NS]
        assert totals[words.CPU_KINDS_SEEN] == is_learned * 2
        assert totals[words.DEVICE_KINDS_SEEN] == (5 if there else 1)
        assert layer[words.IS_LEAST] == totals[words.LEASTS] == (least != 1)

    arguments = {"parts": parts, "experts": EXPERTS, "most": most, "top_k": top_k}
    arguments |= {"control": control, "layer": layer, "totals": totals, "steps": steps, "count": 1}
    arguments |= {"frame": frame, "frame_words": len(frame), "results": results}
    return Call({}, arguments | {"stride": WIDTH + 2, "width": WIDTH}, rows, check, 1)
