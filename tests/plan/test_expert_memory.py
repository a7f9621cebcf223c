"""How much memory experts get: what is asked for, what is free, and what would do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import InputError
from edgerun.machine.disk import DiskProfile
from edgerun.plan.expert_memory import (
    MARGIN_BYTES,
    ExpertBudget,
    ExpertLayer,
    MemoryAmount,
    budget_for,
)

SLOT = 40_000
LAYERS = (
    ExpertLayer("a", experts=8, top_k=2, stored_bytes=SLOT + 99, held_bytes=SLOT),
    ExpertLayer("b", experts=4, top_k=3, stored_bytes=SLOT + 99, held_bytes=SLOT - 50),
)
ALL = 8 * SLOT + 4 * (SLOT - 50)


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (5, 5),
        ("5", 5),
        ("4G", 4 * 10**9),
        ("4GB", 4 * 10**9),
        (" 4 g ", 4 * 10**9),
        ("1.5G", 15 * 10**8),
        ("512M", 512 * 10**6),
        ("512MiB", 512 << 20),
        ("2Gi", 2 << 30),
        ("7k", 7000),
        ("1T", 10**12),
        ("25%", 25),
        ("12.5 %", 13),
        ("100%", 100),
    ],
)
def test_amounts(value: object, nbytes: int) -> None:
    assert MemoryAmount.read(value).of(100) == nbytes


@pytest.mark.parametrize(
    "value",
    [0, -1, "", "0", "0G", "0%", "101%", "-4G", "4X", "G", "4GG", "4,5G", "1e9", "4 %G", "nan",
     "inf", True, 1.5, None, b"4G", "9" * 30, "٤G", "4G\n5G"],
)  # fmt: skip
def test_what_is_no_amount_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"expert_memory is .*; expected an amount such as 4G"):
        MemoryAmount.read(value)


def test_all_that_fits_needs_no_budget() -> None:
    enough = ALL + 77 + MARGIN_BYTES
    assert budget_for(LAYERS, None, free_bytes=enough, other_bytes=77) is None
    less = budget_for(LAYERS, None, free_bytes=enough - 1, other_bytes=77)
    assert less is not None
    assert (less.nbytes, less.slots, less.experts) == (ALL - 1, 11, 12)
    assert less.slot_bytes == SLOT
    assert less.resident_share == 11 / 12
    assert less.stored_bytes == 12 * (SLOT + 99)


def test_what_is_asked_for_is_what_experts_get() -> None:
    half = budget_for(LAYERS, MemoryAmount.read("50%"), free_bytes=1 << 40, other_bytes=0)
    assert half is not None
    assert (half.nbytes, half.slots) == (ALL // 2, 5)
    assert budget_for(LAYERS, MemoryAmount.read("100%"), free_bytes=1 << 40, other_bytes=0) is None
    more = MemoryAmount.read(2 * ALL)
    assert budget_for(LAYERS, more, free_bytes=1 << 40, other_bytes=0) is None


def test_too_little_names_what_would_do() -> None:
    """Room for three experts of any layer."""
    for value in (1, 3 * SLOT - 1, "24%"):
        with pytest.raises(InputError, match="bytes are too few for experts: a token needs 3 of"):
            budget_for(LAYERS, MemoryAmount.read(value), free_bytes=1 << 40, other_bytes=0)
    with pytest.raises(InputError, match=r"allow (\d+) or more") as refusal:
        budget_for(LAYERS, MemoryAmount(1), free_bytes=1 << 40, other_bytes=0)
    least = str(refusal.value).split("allow ")[1].split()[0]
    exact = budget_for(LAYERS, MemoryAmount.read(least), free_bytes=1 << 40, other_bytes=0)
    assert exact is not None
    assert exact.slots == 3


def test_a_machine_that_is_full_is_said_to_be() -> None:
    with pytest.raises(InputError, match=r"0\.0 MB of memory are left for experts.*end other"):
        budget_for(LAYERS, None, free_bytes=5, other_bytes=0)


def test_what_fits_needs_no_margin() -> None:
    """A small mixture, where less is free than others may soon take."""
    assert budget_for(LAYERS, None, free_bytes=ALL + 77, other_bytes=77) is None
    with pytest.raises(InputError, match="of memory are left for experts"):
        budget_for(LAYERS, None, free_bytes=ALL + 76, other_bytes=77)


def test_more_than_is_free_names_what_is() -> None:
    layers = (ExpertLayer("a", 8, 2, 10**9, 10**9),)
    asked = MemoryAmount.read("5G")
    with pytest.raises(InputError, match=r"5\.00 GB, and 3\.00 GB of memory.*choose 3000M or less"):
        budget_for(layers, asked, free_bytes=4 * 10**9, other_bytes=10**9)
    assert budget_for(layers, asked, free_bytes=7 * 10**9, other_bytes=10**9) is not None


@given(
    st.integers(1, 20 * SLOT),
    st.integers(0, 2 * MARGIN_BYTES),
    st.integers(0, 1 << 20),
)
def test_a_budget_has_room_for_a_token_and_not_for_all(asked: int, free: int, other: int) -> None:
    for amount in (MemoryAmount(asked), None):
        try:
            budget = budget_for(LAYERS, amount, free_bytes=free, other_bytes=other)
        except InputError:
            continue
        if budget is None:
            assert free - other >= ALL
            assert amount is None or asked >= ALL
        else:
            assert 3 <= budget.slots < 12
            assert budget.slots * budget.slot_bytes <= budget.nbytes
            assert budget.nbytes + other <= free


def test_back_ends_learn_how_the_disk_is_read_best() -> None:
    disk = DiskProfile(direct={1: 1.0}, buffered={1: 1.0, 4: 2.0})
    memory = ExpertBudget(LAYERS, 5 * SLOT, SLOT, disk).memory()
    assert (memory.nbytes, memory.direct, memory.at_once) == (5 * SLOT, False, 4)
    assert (memory.slot_bytes, memory.top_k) == (SLOT, max(layer.top_k for layer in LAYERS))
    policy = memory.make_policy()
    policy.use(0, [1], [1.0])
    assert policy.rank((0, 1))
