"""Eviction policies: what a cache gives up first, against a plain model of each."""

import random

import pytest

from edgerun.errors import InputError
from edgerun.state import SequenceStore, same_attention
from edgerun.state.paged import PAGE_TOKENS
from edgerun.state.policies.registry import policy_named

NAMES = ["lfu", "lru"]


class Plain:
    """All that ever happened; the victim is computed from that."""

    def __init__(self) -> None:
        self.clock, self.age = 0, 0
        self.idle_since: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.priority: dict[int, int] = {}

    def use(self, entry: int) -> None:
        self.idle_since.pop(entry, None)
        self.uses[entry] = self.uses.get(entry, 0) + 1
        self.priority[entry] = self.age + self.uses[entry]

    def leave(self, entry: int) -> None:
        self.clock += 1
        self.idle_since[entry] = self.clock

    def forget(self, entry: int) -> None:
        for table in (self.idle_since, self.uses, self.priority):
            table.pop(entry, None)

    def victim(self, name: str) -> int | None:
        if not self.idle_since:
            return None
        if name == "lru":
            return min(self.idle_since, key=lambda entry: self.idle_since[entry])
        chosen = min(self.idle_since, key=lambda e: (self.priority[e], self.idle_since[e]))
        self.age = self.priority[chosen]
        return chosen


@pytest.mark.parametrize("name", NAMES)
def test_the_victim_is_the_one_of_the_definition(name):
    for seed in range(50):
        rng = random.Random(seed)
        policy, plain = policy_named(name)(), Plain()
        for _ in range(200):
            entry = rng.randrange(12)
            action = rng.choice(["use", "use", "leave", "forget", "victim"])
            if action == "victim":
                victim = policy.victim()
                assert victim == plain.victim(name)
                if victim is not None:
                    policy.forget(victim)
                    plain.forget(victim)
            elif action != "leave" or entry in plain.uses:
                getattr(policy, action)(entry)
                getattr(plain, action)(entry)
            assert len(policy) == len(plain.idle_since)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_that_is_left_twice_or_never_used_does_no_harm(name):
    policy = policy_named(name)()
    assert policy.victim() is None
    for entry in (3, 3, 4):
        policy.leave(entry)
    assert len(policy) == 2
    assert policy.victim() == 3
    policy.forget(3)
    policy.forget(3)
    assert policy.victim() == 4


@pytest.mark.parametrize(("name", "survives"), [("lru", False), ("lfu", True)])
def test_a_beginning_that_many_share_survives_prompts_that_come_once(name, survives):
    store = SequenceStore(same_attention(1, 1, 8), 4 * PAGE_TOKENS, 8, eviction=name)
    popular = [1] * (PAGE_TOKENS + 1)
    for ids in [popular] * 6 + [[2 + number] * (PAGE_TOKENS + 1) for number in range(5)]:
        slot, length = store.match(ids)
        store.reserve(slot, PAGE_TOKENS)
        if length < PAGE_TOKENS:
            store.commit(slot, PAGE_TOKENS, ids)
        store.close(slot)
    assert (store.match(popular)[1] == PAGE_TOKENS) is survives


def test_a_favourite_of_long_ago_fades():
    policy = policy_named("lfu")()
    for _ in range(20):
        policy.use(0)
    policy.leave(0)
    for entry in range(1, 200):
        policy.use(entry)
        policy.leave(entry)
        victim = policy.victim()
        assert victim is not None
        policy.forget(victim)
        if victim == 0:
            break
    assert 10 < entry < 30


def test_an_unknown_policy_is_refused():
    with pytest.raises(InputError, match="eviction is 'fifo'; expected one of lfu, lru"):
        SequenceStore(same_attention(1, 1, 8), 64, eviction="fifo")
