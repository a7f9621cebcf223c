"""Forecasts of models whose experts are read while they run, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from edgerun.backends.figures import ExpertReads
from edgerun.machine.disk import DiskProfile
from edgerun.plan.expert_forecast import FORESEEN, HANDLING, LEAST_GUESSED, Compute, forecast
from edgerun.plan.expert_memory import ExpertBudget, ExpertLayer

DISK = DiskProfile(direct={1: 5e8, 4: 1e9})
LAYERS = tuple(ExpertLayer(f"m{n}", 8, 2, 1_000_000, 900_000) for n in range(3))
HALF = ExpertBudget(LAYERS, 12 * 900_000, 900_000, DISK)
DECODE = Compute(1, experts_s=3e-3, others_s=2e-3, after_s=0.5e-3)
PROMPT = Compute(512, experts_s=0.3, others_s=0.1)


MEMORY = 9e9


def simulated_token_s(hit_share: float, foreseen: float, tokens: int = 40_000) -> float:
    """Tokens whose experts are there or not by chance, and foreseen or not.

    Those that were foreseen are read while others compute; of others, the last one that came is
    put in order and computed by itself.
    """
    rng, layers, own = np.random.default_rng(0), len(LAYERS), DECODE.experts_s / len(LAYERS)
    missing = (rng.random((tokens, layers, 2)) >= hit_share).sum(axis=2)
    early = rng.random((tokens, layers)) < foreseen
    early[:, 0] = False  # nothing comes before it
    between, fill = (DECODE.others_s - DECODE.after_s) / layers, 2 * 0.9e6 / MEMORY
    read = np.array([DISK.read_s(n, 1e6) + n * HANDLING.next_s for n in range(3)])[missing]
    asked = np.where(missing > 0, HANDLING.asking_s + read + fill + own / 2, 0)
    late = np.where(early, read - between, asked)
    return DECODE.others_s + float(np.maximum(own, late).sum()) / tokens


@pytest.mark.parametrize("slots", [0, 6, 12, 18, 23])
@pytest.mark.parametrize("recall", [None, 0.0, 0.95])
def test_a_token_takes_what_its_reads_and_sums_take(slots: int, recall: float | None) -> None:
    guessed = LEAST_GUESSED if recall is not None else LEAST_GUESSED - 1
    foreseen = round(guessed * (0.5 if recall is None else recall))
    reads = ExpertReads(1, 1, 1, 0.0, guessed=guessed, foreseen=foreseen, early=1)
    budget = replace(HALF, nbytes=slots * 900_000)
    expected = forecast(budget, DECODE, PROMPT, reads=reads, memory_bytes_s=MEMORY)
    share = FORESEEN if recall is None else recall
    assert expected.foreseen == pytest.approx(share)
    assert expected.token_s == pytest.approx(simulated_token_s(slots / 24, share), rel=0.01)
    assert expected.missed_bytes == pytest.approx(6e6 * (1 - slots / 24))


def test_with_everything_in_memory_nothing_is_read() -> None:
    expected = forecast(replace(HALF, nbytes=24 * 900_000), DECODE, PROMPT)
    assert expected.token_s == pytest.approx(DECODE.seconds)
    assert expected.prompt_s == pytest.approx(PROMPT.seconds)
    assert expected.missed_bytes == expected.prompt_bytes == 0


def test_a_trace_says_how_often_experts_are_there() -> None:
    shares = {"m0": 1.0, "m1": 0.0, "m2": 0.5}
    expected = forecast(HALF, DECODE, PROMPT, shares)
    assert [layer.hit_share for layer in expected.layers] == [1.0, 0.0, 0.5]
    assert [layer.missed_bytes for layer in expected.layers] == pytest.approx([0, 2e6, 1e6])
    assert expected.layers[0].seconds == pytest.approx(1e-3)
    assert expected.hits_from == "a trace"


def test_a_prompt_reads_every_expert_once_or_computes_longer() -> None:
    expected = forecast(HALF, DECODE, PROMPT, memory_bytes_s=MEMORY, threads=2)
    assert expected.prompt_bytes == pytest.approx(12e6, rel=1e-3)
    fill_s = 2 * 0.9e6 / MEMORY
    handled_s = 12 * (HANDLING.processor_s + fill_s) / 2  # by two threads that compute
    assert expected.prompt_s == pytest.approx(PROMPT.seconds + handled_s)
    slow = replace(HALF, disk=DiskProfile(direct={1: 1e7}))
    read_s = 12 * (0.1 + HANDLING.next_s)
    assert forecast(slow, DECODE, PROMPT).prompt_s == pytest.approx(read_s, rel=1e-3)
    less = replace(HALF, disk=DiskProfile(direct={1: 1e6 / 0.03}))
    late_s = 4 * (0.03 + HANDLING.next_s) - PROMPT.experts_s / 3 + 12 * HANDLING.processor_s
    assert forecast(less, DECODE, PROMPT).prompt_s == pytest.approx(PROMPT.seconds + late_s)
    few = forecast(slow, DECODE, replace(PROMPT, rows=1))
    assert few.prompt_bytes == pytest.approx(3 * 2 * 0.5e6)  # two experts, half of them there


def test_a_longer_prompt_reads_no_more_unless_it_takes_several_calls() -> None:
    longer = Compute(4096, 8 * PROMPT.experts_s, 8 * PROMPT.others_s)
    slow = replace(HALF, disk=DiskProfile(direct={1: 1e6}))
    for budget in (HALF, slow):
        expected = forecast(budget, DECODE, PROMPT, longer=[longer])
        once = expected.prompts[1]
        assert (expected.prompt, once.compute) == (PROMPT, longer)
        assert once.nbytes == pytest.approx(expected.prompt_bytes, rel=1e-3)
        by_calls = forecast(budget, DECODE, PROMPT, longer=[longer], call_rows=512).prompts[1]
        assert by_calls.nbytes == pytest.approx(8 * once.nbytes, rel=1e-3)
        assert by_calls.seconds == pytest.approx(8 * expected.prompt_s)
        ratio = by_calls.seconds / once.seconds
        assert ratio == pytest.approx(8 if budget is slow else 1, rel=0.05)
    calls = forecast(slow, DECODE, replace(PROMPT, rows=513), call_rows=512)
    assert calls.prompt_bytes == pytest.approx(12e6 + 3 * 2 * 0.5e6, rel=1e-3), "one row's, too"


def test_a_disk_ten_times_slower_makes_tokens_so() -> None:
    slow = DiskProfile(direct={count: speed / 10 for count, speed in DISK.direct.items()})
    fast, late = (forecast(replace(HALF, disk=disk), DECODE, PROMPT) for disk in (DISK, slow))
    reads = [sum(layer.read_s for layer in each.layers) for each in (fast, late)]
    assert reads[1] == pytest.approx(10 * reads[0])


@pytest.mark.parametrize(
    ("read_bytes", "waited_s", "speed"),
    [
        (10**9, 10.0, 1e8),  # a tenth of what was measured
        (10**9, 2.0, 1e9),
        (4 * 10**7, 0.4, 1e9),  # for less than half a second
        (0, 5.0, 1.0),
    ],
)
def test_a_disk_that_brings_far_less_than_it_did_is_believed(
    read_bytes: int, waited_s: float, speed: float
) -> None:
    reads = ExpertReads(100, 100, read_bytes, waited_s)
    expected = forecast(HALF, DECODE, PROMPT, reads=reads)
    assert expected.budget.disk.bytes_s == speed
    if speed == 1e9:
        assert expected.calibrated_bytes_s is None
        assert expected.line() == forecast(HALF, DECODE, PROMPT).line()
    else:
        assert expected.calibrated_bytes_s == 1e9
        assert f"disk {speed / 1e9:.2f} GB/s, measured were 1.00: about" in expected.line()
        assert expected.token_s > forecast(HALF, DECODE, PROMPT).token_s


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_replies_take_no_less_than_the_disk_and_no_more_than_all_after_another(
    share: float,
) -> None:
    """The shape that was measured; the better the guesses, the closer to the disk's time."""
    layers = tuple(ExpertLayer(f"m{n}", 128, 8, 1_327_104, 1_327_104) for n in range(48))
    decode = Compute(1, experts_s=48 * 1.8e-4, others_s=17.6e-3)
    disk = DiskProfile(direct={1: 1.206e9, 2: 1.171e9})
    budget = ExpertBudget(layers, round(share * 6144) * 1_327_104, 1_327_104, disk)
    read_s = 48 * 8 * (1 - share) * 1_327_104 / 1.206e9
    fill_s = 48 * 2 * 1_327_104 / 2e10
    seconds = []
    for recall in (0.0, 0.5, 1.0):
        guesses = {"guessed": LEAST_GUESSED, "foreseen": round(recall * LEAST_GUESSED), "early": 1}
        reads = ExpertReads(1, 1, 1, 0.0, **guesses)
        expected = forecast(budget, decode, PROMPT, reads=reads, memory_bytes_s=2e10)
        assert sum(layer.read_s for layer in expected.layers) == pytest.approx(read_s, rel=1e-3)
        seconds.append(expected.token_s)
    asked_s = 48 * (HANDLING.asking_s + 8 * HANDLING.next_s)
    most_s = read_s + fill_s + asked_s + decode.seconds
    assert read_s < seconds[2] < seconds[1] < seconds[0] < most_s


def test_the_line_says_what_it_assumes_until_it_was_measured() -> None:
    guesses = {"guessed": LEAST_GUESSED, "foreseen": LEAST_GUESSED, "early": 1}
    reads = ExpertReads(1, 1, 1, 0.0, **guesses)
    full = replace(HALF, nbytes=24 * 900_000)
    lines = [
        forecast(budget, DECODE, PROMPT, reads=measured).line()
        for budget, measured in ((HALF, None), (HALF, reads), (full, None))
    ]
    assert lines[0].endswith(f" (if {FORESEEN:.0%} of the experts are foreseen)")
    assert not any("foreseen" in line for line in lines[1:])


def test_guesses_that_nobody_follows_count_as_none() -> None:
    reads = ExpertReads(1, 1, 1, 0.0, guessed=LEAST_GUESSED, foreseen=LEAST_GUESSED // 2)
    assert forecast(HALF, DECODE, PROMPT, reads=reads).foreseen == 0


def test_of_few_experts_the_line_says_megabytes() -> None:
    line = forecast(HALF, DECODE, PROMPT).line()
    assert line.startswith("of 24.0 MB of experts 12.0 stay in memory; disk 1.00 GB/s: about ")


def test_the_line_has_the_figures() -> None:
    layers = tuple(ExpertLayer(f"m{n}", 128, 8, 1_200_000, 1_200_000) for n in range(48))
    disk = DiskProfile(direct={4: 0.83e9})
    budget = ExpertBudget(layers, 4 * 10**9, 1_200_000, disk)
    line = forecast(budget, Compute(1, 8e-3, 6e-3), Compute(512, 2.0, 1.0)).line()
    assert line == (
        "of 7.4 GB of experts 4.0 stay in memory; disk 0.83 GB/s: about 3.6 tokens/s, a prompt of "
        "512 tokens about 4.3 s (if 60% of the experts are foreseen)"
    )


def test_the_terms_are_plain_numbers() -> None:
    terms = forecast(HALF, DECODE, PROMPT).terms()
    again = msgspec.json.decode(msgspec.json.encode(terms))
    assert again["layers"][1]["name"] == "m1"
    assert again["slots"] == 12
    assert again["tokens_per_s"] == pytest.approx(1 / again["token_s"])
    assert again["disk_measured"] is None
    assert again["longer_prompts"] == []
    longer = forecast(HALF, DECODE, PROMPT, longer=[replace(PROMPT, rows=4096)]).terms()
    assert [each["compute"]["rows"] for each in longer["longer_prompts"]] == [4096]
