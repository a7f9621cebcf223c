"""Caches of experts, under every policy: room, what is needed, and the best that could be."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import InputError
from edgerun.offload.belady import Belady
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.policies.base import Entry, Policy, Rank
from edgerun.offload.policies.lfu import LeastFrequentlyUsed
from edgerun.offload.policies.lrfu import LeastRecentlyFrequentlyUsed
from edgerun.offload.policies.lru import LeastRecentlyUsed
from edgerun.offload.policies.mrs import MinusRecentScore
from edgerun.offload.policies.registry import policies
from edgerun.offload.policies.scan_lru import ScanResistant
from edgerun.offload.policies.static import Static
from edgerun.offload.replay import count_hits

EXPERTS = 6
NAMES = ["lfu", "lru", "lrfu", "mrs", "scan_lru", "static"]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[Step]]:
    """Room, and steps of one or two layers that fit."""
    layers = draw(st.integers(1, 2))
    capacity = draw(st.integers(1, layers * EXPERTS))
    most = min(capacity, EXPERTS)
    steps = []
    needs = st.lists(st.integers(0, EXPERTS - 1), max_size=most, unique=True)
    for experts in draw(st.lists(needs, min_size=1, max_size=30)):
        scores = tuple((7 * expert + len(steps)) % 5 / 5 for expert in experts)
        steps.append(Step(draw(st.integers(0, layers - 1)), tuple(experts), scores))
    return capacity, steps


def entries(step: Step) -> list[Entry]:
    return [(step.layer, expert) for expert in step.experts]


def test_the_policies_are_files() -> None:
    assert sorted(policies()) == sorted(NAMES)


@pytest.mark.parametrize("name", [*NAMES, "belady"])
@given(runs())
def test_a_cache_never_has_more_than_its_room_nor_less_than_what_is_needed(
    name: str, run: tuple[int, list[Step]]
) -> None:
    capacity, steps = run
    policy = Belady(steps) if name == "belady" else policies()[name]()
    experts = ExpertCache(capacity, policy)
    resident: set[Entry] = set()
    for step in steps:
        access = experts.access(step)
        needed = entries(step)
        assert set(access.missing) == set(needed) - resident
        assert len(access.missing) == len({*access.missing})
        assert set(access.evicted) <= resident - set(needed)
        assert len(access.evicted) == max(0, len(resident) + len(access.missing) - capacity)
        resident = (resident - set(access.evicted)) | set(needed)
        assert experts.resident == resident
        assert len(resident) <= capacity


@given(runs())
def test_no_policy_hits_more_often_than_the_one_that_knows_the_future(
    run: tuple[int, list[Step]],
) -> None:
    capacity, steps = run
    best = count_hits(steps, capacity, Belady(steps))
    for policy in policies().values():
        assert count_hits(steps, capacity, policy()) <= best


@given(runs())
def test_what_knows_the_future_is_the_best_of_all_ways(run: tuple[int, list[Step]]) -> None:
    """Against a search through everything that a cache could keep."""
    capacity, steps = min(run[0], 3), [step for step in run[1][:7] if len(step.experts) <= 3]
    steps = [step for step in steps if len(step.experts) <= capacity]
    assert count_hits(steps, capacity, Belady(steps)) == most_hits(capacity, tuple(steps))


def most_hits(capacity: int, steps: tuple[Step, ...]) -> int:
    @cache
    def best(place: int, resident: frozenset[Entry]) -> int:
        if place == len(steps):
            return 0
        needed = frozenset(entries(steps[place]))
        others = sorted(resident - needed)
        room = min(len(others), capacity - len(needed))
        return len(resident & needed) + max(
            best(place + 1, needed | frozenset(retained)) for retained in combinations(others, room)
        )

    return best(0, frozenset())


@pytest.mark.parametrize("name", ["lru", "scan_lru"])
@given(runs(), st.lists(st.tuples(st.integers(0, 1), st.integers(0, EXPERTS - 1)), max_size=6))
def test_who_leaves_is_the_same_by_order_and_by_rank(
    name: str, run: tuple[int, list[Step]], filled: list[Entry]
) -> None:
    """Also where some were never used, and others used that were computed elsewhere."""
    capacity, steps = run
    by_order, by_rank = (ExpertCache(capacity, policies()[name]()) for _ in range(2))
    by_rank._policy.in_order = lambda: None  # type: ignore[method-assign]
    for place, step in enumerate(steps):
        if place == len(steps) // 2:
            assert by_order.fill(filled) == by_rank.fill(filled)
        some = step.experts[place % 3 :]
        assert by_order.admit(step, some) == by_rank.admit(step, some)


def test_no_ranks_are_asked_for_where_a_policy_has_an_order() -> None:
    class Ordered(ScanResistant):
        def rank(self, entry: Entry) -> Rank:
            raise AssertionError("to rank all takes as long as there are slots")

        def in_order(self) -> Iterable[Entry]:
            return super().in_order()

    steps = [Step(0, (expert % 7,), (1.0,)) for expert in range(50)]
    assert count_hits(steps, 3, Ordered()) == count_hits(steps, 3, ScanResistant())


def test_prompts_take_nothing_from_replies() -> None:
    """Of eight layers half of the experts stay where they are, while a prompt needs all."""
    layers, missing = range(8), {}
    prompt = [Step(layer, tuple(range(EXPERTS)), (1.0,) * EXPERTS) for layer in layers]
    for policy in (LeastRecentlyUsed(), ScanResistant()):
        rng, experts = random.Random(0), ExpertCache(8 * EXPERTS // 2, policy)
        for _ in range(20):
            for layer in layers:
                experts.access(Step(layer, tuple(rng.sample(range(EXPERTS), 2)), (1.0, 1.0)))
        before = experts.resident
        read = sum(len(experts.access(step).missing) for step in prompt)
        missing[type(policy)] = read, len(before - experts.resident)
    assert missing[LeastRecentlyUsed][0] >= 8 * EXPERTS * 7 // 8
    read, left = missing[ScanResistant]
    assert read <= 8 * EXPERTS // 2 + EXPERTS  # what was missing, and for room in the first layer
    assert left <= EXPERTS


def test_steps_of_tokens_are_those_of_lru() -> None:
    rng = random.Random(0)
    steps = [Step(0, tuple(rng.sample(range(8), 3)), (1.0,) * 3) for _ in range(200)]
    steps.insert(0, Step(0, (7,), (1.0,)))  # how many there are
    both = [count_hits(steps, 5, policy()) for policy in (LeastRecentlyUsed, ScanResistant)]
    assert both[0] == both[1]


@given(runs())
def test_lru_is_that_of_an_ordered_dictionary(run: tuple[int, list[Step]]) -> None:
    capacity, steps = run
    experts = ExpertCache(capacity, LeastRecentlyUsed())
    reference: OrderedDict[Entry, None] = OrderedDict()
    for step in steps:
        experts.access(step)
        for entry in entries(step):
            reference[entry] = None
            reference.move_to_end(entry)
        while len(reference) > capacity:
            reference.popitem(last=False)
        assert experts.resident == set(reference)


@given(runs(), st.sampled_from(["lrfu", "mrs"]))
def test_decaying_sums_are_those_of_their_formula(run: tuple[int, list[Step]], name: str) -> None:
    """S(t) = gain + (1 - a) S(t - 1), which the policy has as a logarithm."""
    _, steps = run
    policy: Policy
    policy = LeastRecentlyFrequentlyUsed(0.1) if name == "lrfu" else MinusRecentScore(0.1)
    shrink = 2**-0.1 if name == "lrfu" else 0.9
    sums = {(layer, expert): 0.0 for layer in range(2) for expert in range(EXPERTS)}
    for step in steps:
        policy.use(step.layer, step.experts, step.scores)
        for expert in range(EXPERTS):
            sums[step.layer, expert] *= shrink
        for expert, score in zip(step.experts, step.scores, strict=True):
            sums[step.layer, expert] += 1 if name == "lrfu" else max(score, 2**-24)
    for entry in {entry for step in steps for entry in entries(step)}:
        assert 2 ** policy.rank(entry)[0] == pytest.approx(sums[entry])
    used = {entry for step in steps for entry in entries(step)}
    for layer in {layer for layer, _ in used}:
        own = {entry for entry in used if entry[0] == layer}
        (least,) = min(map(policy.rank, own))
        assert policy.rank(policy.lowest(own))[0] == pytest.approx(least)


def feed(policy: Policy, capacity: int, experts: str) -> Iterator[str]:
    """Experts one at a time, by letters; yields who leaves."""
    slots = ExpertCache(capacity, policy)
    for letter in experts:
        for _, expert in slots.access(Step(0, (ord(letter),), (0.5,))).evicted:
            yield chr(expert)


def test_lfu_gives_up_the_rare_and_forgets_old_favourites() -> None:
    assert list(feed(LeastFrequentlyUsed(), 2, "aaabcd")) == ["b", "c"]
    favourites = list(feed(LeastFrequentlyUsed(), 2, "aaa" + "bcdefg"))
    assert "a" in favourites  # which plain counts would keep for ever


def test_lfu_counts_anew_when_an_expert_comes_back() -> None:
    assert list(feed(LeastFrequentlyUsed(), 2, "aaaaa" + "bb" + "cbc")) == ["b", "c", "b"]


def test_lrfu_lies_between_lru_and_lfu() -> None:
    experts = "aaabcabca"
    assert list(feed(LeastRecentlyFrequentlyUsed(50), 2, experts)) == list(
        feed(LeastRecentlyUsed(), 2, experts)
    )
    assert "a" not in feed(LeastRecentlyFrequentlyUsed(0), 2, experts)


def test_mrs_goes_by_scores() -> None:
    slots = ExpertCache(2, MinusRecentScore())
    slots.access(Step(0, (1, 2), (0.1, 0.9)))
    assert slots.access(Step(0, (3,), (0.5,))).evicted == ((0, 1),)


def test_static_pins_what_was_used_most_in_the_beginning() -> None:
    left = list(feed(Static(profiled=4), 2, "aaab" + "bbbbcbdbe" * 3))
    assert "a" not in left
    assert "b" in left  # most used of all, but too late


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(InputError, match=f"a cache of {capacity} experts; expected room for 1"):
        ExpertCache(capacity, LeastRecentlyUsed())


def test_of_experts_of_a_layer_those_never_used_are_exchanged_first() -> None:
    """The last of them before all others, whatever other layers have."""
    slots = ExpertCache(5, LeastRecentlyUsed())
    slots.fill([(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)])
    for experts in ((4, 5, 6), (1,)):
        slots.admit(Step(0, experts, (1.0,) * len(experts)), [])
    accesses = [slots.exchange((0, expert)) for expert in (6, 5, 4)]
    assert [None if each is None else each.evicted for each in accesses] == [
        ((0, 3),),
        ((0, 2),),
        None,  # what is left was used later
    ]
    assert slots.resident == {(0, 1), (0, 5), (0, 6), (1, 1), (1, 2)}


def test_a_step_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    slots = ExpertCache(2, LeastRecentlyUsed())
    slots.access(Step(4, (1,), (1.0,)))
    message = "layer 4 needs 3 experts at once and the cache has room for 2: give it room for 3"
    with pytest.raises(InputError, match=message):
        slots.access(Step(4, (1, 2, 3), (1.0, 1.0, 1.0)))
    assert slots.resident == {(4, 1)}


def test_some_of_a_step_may_be_computed_elsewhere() -> None:
    slots = ExpertCache(2, LeastRecentlyUsed())
    assert slots.admit(Step(0, (1, 2, 3), (1.0,) * 3), [2]).missing == ((0, 2),)
    access = slots.admit(Step(0, (2, 3, 4, 5), (1.0,) * 4), [5])
    assert (access.missing, access.evicted) == (((0, 5),), ())
    access = slots.admit(Step(0, (5, 6), (1.0,) * 2), [6])  # 5 is computed from its slot
    assert (access.missing, access.evicted) == (((0, 6),), ((0, 2),))
    with pytest.raises(InputError, match="needs 3 experts at once"):
        slots.admit(Step(0, (5, 6, 7), (1.0,) * 3), [7])
    assert slots.resident == {(0, 5), (0, 6)}


def test_experts_are_exchanged_for_such_that_are_worth_more() -> None:
    slots = ExpertCache(2, LeastFrequentlyUsed())
    for expert in (1, 1, 2, 3, 3):
        slots.admit(Step(0, (expert,), (1.0,)), [expert] if expert < 3 else [])
    first = slots.exchange((0, 3))
    assert first is not None and first.evicted == ((0, 2),)
    assert slots.exchange((0, 3)) is None  # it is there
    slots.admit(Step(0, (4,), (1.0,)), [])
    slots.admit(Step(0, (1, 3), (1.0, 1.0)), [])
    assert slots.exchange((0, 4)) is None  # which is worth less
    assert slots.resident == {(0, 1), (0, 3)}
    empty = ExpertCache(1, LeastRecentlyUsed())
    empty.admit(Step(0, (7,), (1.0,)), [])
    access = empty.exchange((0, 7))
    assert access is not None and not access.evicted and empty.resident == {(0, 7)}
