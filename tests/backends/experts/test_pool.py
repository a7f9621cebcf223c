"""The pool of experts: what it evicts, and that no order of events breaks its rules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgerun.backends.cpu.experts.pool import MOST_LATE
from edgerun.backends.cpu.experts.prefetch import ALL, Guesses
from edgerun.backends.cpu.experts.protocol import Glance, Post, Read
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.policies.base import Policy
from edgerun.offload.policies.registry import policies
from edgerun.offload.policies.scan_lru import ScanResistant
from tests.support.pool_model import WORLDS, Sizes, World, explore


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_events_breaks_a_rule(name: str) -> None:
    """Slots have one owner; what is needed or read stays; nothing is read before it is there."""
    explore(name, range(200))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_a_million_breaks_a_rule(name: str) -> None:
    explore(name, range(1000, 1000 + 1_000_000 // len(WORLDS) + 1))


def test_worlds_do_what_they_are_for() -> None:
    """Everything is computed, but for runs that were given up; and such there are."""
    worlds = {name: World(sizes, 1) for name, sizes in WORLDS.items()}
    for world in worlds.values():
        world.explore()
    assert all(world.computed for world in worlds.values())
    aborted = [World(WORLDS["faults"], seed) for seed in range(20)]
    for world in aborted:
        world.explore()
    assert 0 < sum(world.aborts for world in aborted) < 20 * WORLDS["faults"].runs


class Alone(World):
    """Shared words of a program that waits for each step as a whole."""

    def __init__(self, slots: int, policy: Policy, spare: int = 0) -> None:
        super().__init__(Sizes(slots, layers=3, spare=spare), 0, policy=policy)

    def _others(self) -> None:
        pass

    def step(self, step: Step) -> None:
        self.ask(Post(step.layer, step.experts, step.scores))
        while read := self.pool.next_read():
            self.fill(read)

    def ask(self, post: Post) -> Post:
        """Posts with the next number."""
        self.number += 1
        self.log[self.number] = post.layer
        numbered = replace(post, number=self.number)
        self.posts[post.layer] = self.number, numbered
        return numbered

    def fill(self, read: Read) -> None:
        """What was to be read is in memory."""
        self.content[read.slot] = read.entry
        self.pool.finish(read)


@pytest.mark.parametrize("name", sorted(policies()))
def test_the_pool_holds_what_a_cache_of_its_size_would(name: str) -> None:
    """What ``tools.bench.policies`` predicts from a trace is what happens."""
    chance = random.Random(7)
    pool, cache = Alone(5, policies()[name]()), ExpertCache(5, policies()[name]())
    for number in range(400):
        experts = tuple(chance.sample(range(6), chance.randint(1, 4)))
        step = Step(number % 2, experts, tuple(chance.random() for _ in experts))
        pool.step(step)
        cache.access(step)
        assert pool.pool.resident.keys() == cache.resident
        pool.check_slots()


def test_a_read_of_a_run_that_has_ended_is_tried_again_and_ends_no_other() -> None:
    world = Alone(3, ScanResistant())
    world.ask(Post(0, (4,), (1.0,)))
    read = world.pool.next_read()
    assert read is not None
    world.last_over = 1
    world.ask(Post(0, (4, 5), (1.0, 0.5)))
    other = world.pool.next_read()
    assert other is not None and other.entry == (0, 5)
    assert not world.pool.fail(read)
    again = world.pool.next_read()
    assert again is not None and again.entry == (0, 4)
    assert world.pool.fail(again)


def test_posts_are_left_for_later_while_nothing_is_to_be_read_and_not_for_long() -> None:
    world = Alone(4, ScanResistant())
    pool = world.pool
    assert not pool.is_at_rest, "nothing was posted"
    world.ask(Post(0, (4,), (1.0,)))
    read = pool.next_read()
    assert read is not None and not pool.is_at_rest
    world.fill(read)
    assert pool.is_at_rest
    for layer in range(MOST_LATE):
        world.ask(Post(layer % 3, (4,), (1.0,)))
        assert pool.is_at_rest
    world.ask(Post(0, (4,), (1.0,)))
    assert not pool.is_at_rest and pool.next_read() is None and pool.is_at_rest
    pool.wish(1, [2], world.number)
    assert not pool.is_at_rest
    pool._foresight.forget()
    world.ask(Post(1, (), ()))
    world.last_over = world.number
    assert not pool.is_at_rest, "its run has ended"
    world.ask(Post(0, (4,), (1.0,)))
    assert not pool.is_at_rest, "posts of that run are still to be taken"
    assert pool.next_read() is None and pool.is_at_rest


def test_a_forked_child_forgets_what_was_published_and_not_told_of() -> None:
    """Or its programs would read a slot that another expert gets."""
    world = Alone(3, ScanResistant())
    world.ask(Post(0, (4,), (1.0,)))
    read = world.pool.next_read()
    assert read is not None
    world.table[read.entry] = read.slot
    world.last_over = 1
    world.pool.forget_reads()
    assert not world.table.get(read.entry) and read.slot in world.pool._free


@pytest.mark.parametrize("late", ["another post", "the end of the run"])
def test_a_wish_that_comes_too_late_is_forgotten(late: str) -> None:
    world = Alone(3, ScanResistant())
    world.ask(Post(0, (), ()))
    assert world.pool.next_read() is None
    if late == "another post":
        world.ask(Post(1, (), ()))
    else:
        world.last_over = 1
    world.pool.wish(1, [2], 1)
    assert world.pool.next_read() is None
    world.pool.wish(1, [2])
    read = world.pool.next_read()
    assert read is not None and read.entry == (1, 2)


def test_what_is_awaited_leaves_last_and_what_came_in_vain_first() -> None:
    world = Alone(3, ScanResistant())
    step = lambda layer, *experts: world.step(Step(layer, experts, (1.0,) * len(experts)))  # noqa: E731
    step(0, 0, 1)
    world.pool.wish(2, [0])
    read = world.pool.next_read()
    assert read is not None and read.entry == (2, 0)
    world.fill(read)
    step(1, 2)
    assert world.pool.resident.keys() == {(0, 1), (1, 2), (2, 0)}
    step(2, 3)  # so the guess was wrong
    assert world.pool.resident.keys() == {(0, 1), (1, 2), (2, 3)}
    assert world.pool.prefetch.guesses == Guesses(needed=1, foreseen=0, wished=1, wasted=1)


def test_slots_are_spare_when_something_is_asked_for_so_that_nothing_has_to_leave_first() -> None:
    world = Alone(4, ScanResistant(), spare=1)
    for first in range(3):
        world.step(Step(0, (first, first + 1), (1.0, 1.0)))
    assert world.pool.resident.keys() == {(0, 1), (0, 2), (0, 3)}
    world.ask(Post(0, (3, 4), (1.0, 1.0)))
    read = world.pool.next_read()
    assert read is not None and read.entry == (0, 4)
    assert len(world.pool.resident) == 3, "nobody left yet"
    world.fill(read)
    assert world.pool.next_read() is None
    assert world.pool.resident.keys() == {(0, 2), (0, 3), (0, 4)}


def test_what_is_awaited_stays_when_more_is_wished_for() -> None:
    world = Alone(2, ScanResistant())
    for layer in range(3):
        world.pool.wish(layer, [0])
        read = world.pool.next_read()
        assert (read is None) == (layer == 2)
        if read is not None:
            world.fill(read)
    assert world.pool.resident.keys() == {(0, 0), (1, 0)}


def test_of_what_is_awaited_leaves_first_what_is_awaited_last() -> None:
    world = Alone(2, ScanResistant())
    for layer in (1, 2):
        world.pool.wish(layer, [0])
        read = world.pool.next_read()
        assert read is not None
        world.fill(read)
    world.step(Step(0, (0,), (1.0,)))
    assert world.pool.resident.keys() == {(0, 0), (1, 0)}


def test_what_a_run_awaited_that_was_given_up_is_forgotten() -> None:
    world = Alone(3, ScanResistant())
    world.step(Step(0, (0,), (1.0,)))
    world.pool.wish(1, [0])
    world.pool.wish(2, [5])
    world.step(Step(0, (0,), (1.0,)))
    assert world.pool.resident.keys() == {(0, 0)}, "nothing is wished for any more"
    world.step(Step(2, (4,), (1.0,)))
    assert world.pool.prefetch.guesses.needed == 0


def test_what_a_layer_brought_stays_until_the_next_comes_where_runs_repeat_layers() -> None:
    """Also what its last post does not need, and whatever is wished for meanwhile."""
    world = Alone(4, ScanResistant())
    world.pool.repeats = True
    world.step(Step(0, (0, 1), (1.0, 1.0)))
    world.step(Step(0, (2,), (1.0,)))
    for wish, room in ((0, True), (1, False)):
        world.pool.wish(1, range(wish + 1))
        read = world.pool.next_read()
        assert (read is not None) == room, "three of four slots are the first layer's"
        if read is not None:
            world.fill(read)
    world.step(Step(0, (0, 1), (1.0, 1.0)))
    assert world.pool.resident.keys() == {(0, 0), (0, 1), (0, 2), (1, 0)}
    world.step(Step(1, (0, 1, 2), (1.0,) * 3))
    assert world.pool.resident.keys() == {(0, 2), (1, 0), (1, 1), (1, 2)}
    awaits = world.pool._foresight.awaits
    assert (awaits((0, 2)), awaits((1, 2))) == (False, True)
    world.step(Step(0, (0,), (1.0,)))  # another run, which forgets what the last one awaited
    assert not awaits((1, 2))


def test_a_layer_that_comes_again_is_guessed_at_again_and_judged_once() -> None:
    """What was missing when any of the guesses was made counts."""
    world = Alone(6, ScanResistant())
    world.pool.repeats = True
    for experts in ((0,), (0, 1)):
        post = world.ask(Post(0, experts, (1.0,) * len(experts), needs_most=True))
        while read := world.pool.next_read():
            world.fill(read)
        glance = world.pool.next_glance()
        assert glance == Glance(post, 1)
        world.pool.wish(1, range(3), post.number, ALL)
    assert {(1, 0), (1, 1), (1, 2)} <= world.pool.resident.keys()
    world.step(Step(1, (0, 2), (1.0, 1.0)))
    right = world.pool.prefetch._right[ALL]
    assert (right.count, right.value) == (1, pytest.approx(2 / 3))


@pytest.mark.parametrize("name", sorted(policies()))
def test_what_may_not_leave_now_is_the_first_to_leave_later(name: str) -> None:
    world = Alone(3, policies()[name]())
    world.step(Step(0, (0, 1, 2), (1.0,) * 3))
    order = world.pool._order
    first, second, third = order.lowest(3, set())
    assert order.lowest(1, {first}) == [second]
    assert order.lowest(2, {second}) == [first, third]


@pytest.mark.parametrize("name", sorted(policies()))
def test_who_leaves_first_is_who_is_worth_least(name: str) -> None:
    """After uses, guesses that are right and wrong, and experts that left and came again."""
    chance, world = random.Random(3), Alone(7, policies()[name]())
    order = world.pool._order
    for number in range(600):
        layer = number % 3
        step = Step(layer, tuple(chance.sample(range(6), 2)), (chance.random(), chance.random()))
        world.step(step)
        if layer < 2:
            world.pool.wish(layer + 1, chance.sample(range(6), 2))
        by_worth = sorted(world.pool.resident, key=order.worth)
        assert order.lowest(7, set()) == by_worth
        assert order.lowest(2, {*by_worth[:1], *by_worth[2:3]}) == by_worth[1:2] + by_worth[3:4]


def test_two_reads_share_the_link_and_a_third_begins_when_one_is_done() -> None:
    world = Alone(4, ScanResistant())
    world.ask(Post(0, (0, 1, 2), (1.0, 1.0, 1.0)))
    first, second = world.pool.next_read(), world.pool.next_read()
    assert first is not None and second is not None
    assert world.pool.next_read() is None and not world.pool.has_more
    world.fill(first)
    assert world.pool.has_more
    third = world.pool.next_read()
    assert third is not None and third.entry == (0, 2)


def test_the_layer_after_the_next_is_looked_at_when_nothing_else_is_to_be_read() -> None:
    world = Alone(4, ScanResistant())
    post = world.ask(Post(0, (0,), (1.0,), has_input=True))
    read = world.pool.next_read()
    assert read is not None
    assert world.pool.next_glance() == Glance(post, 1)
    world.pool.wish(1, [3], 1)
    assert world.pool.next_glance() is None, "there is a wish"
    world.fill(read)
    wished = world.pool.next_read()
    assert wished is not None and wished.entry == (1, 3)
    assert world.pool.has_more
    assert world.pool.next_glance() == Glance(post, 2)
    assert world.pool.next_glance() is None


def test_from_a_prompt_one_layer_is_looked_ahead() -> None:
    world = Alone(4, ScanResistant())
    post = world.ask(Post(0, (0,), (1.0,), needs_most=True))
    read = world.pool.next_read()
    assert read is not None
    assert [world.pool.next_glance() for _ in range(2)] == [Glance(post, 1), None]


@pytest.mark.parametrize(
    ("method", "calls", "is_in_order"),
    [
        ("in_order", 1, True),
        ("leave", 2, True),
        ("use", 1, True),
        ("rank", 2, False),
        ("leave", 2, False),
        ("use", 1, False),
    ],
)
def test_after_a_policy_has_failed_every_slot_can_be_had(
    monkeypatch: pytest.MonkeyPatch, method: str, calls: int, is_in_order: bool
) -> None:
    """Whichever of the first calls it is that fails."""
    for failing in range(calls):
        policy = ScanResistant()
        if not is_in_order:
            monkeypatch.setattr(policy, "in_order", lambda: None)
        world, right, left = Alone(3, policy), getattr(policy, method), [failing]

        def fails_once(*arguments: object) -> object:
            left[0] -= 1  # noqa: B023
            if left[0] == -1:  # noqa: B023
                raise ZeroDivisionError("of all things")
            return right(*arguments)  # noqa: B023

        world.step(Step(0, (0, 1, 2), (1.0,) * 3))
        monkeypatch.setattr(policy, method, fails_once)
        with pytest.raises(ZeroDivisionError):
            world.step(Step(0, (1, 3, 4), (1.0,) * 3))
        for experts in ((3, 4, 5), (0, 2, 5)):
            world.step(Step(0, experts, (1.0,) * 3))
            assert world.pool.resident.keys() == {(0, expert) for expert in experts}
