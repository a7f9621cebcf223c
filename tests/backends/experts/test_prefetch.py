"""Experts that are read before anybody asks for them: where that pays, and that it stops elsewhere.

The pool and its rules are the real ones; programs and the link to the disk are events on a clock
of their own, so that nothing here depends on the speed of a machine.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from edgerun.backends.base import ExpertMemory
from edgerun.backends.cpu.experts.gate import Gate
from edgerun.backends.cpu.experts.pool import Pool
from edgerun.backends.cpu.experts.prefetch import ALL, Prefetch
from edgerun.backends.cpu.experts.protocol import Entry, Glance, Post, Read
from edgerun.backends.cpu.experts.stream import ExpertStream, _Deciding
from edgerun.backends.cpu.experts.words import SharedWords
from edgerun.errors import BackendError
from edgerun.kernels.run.residency import COUNT, LOG, SEQUENCE
from edgerun.offload.policies.scan_lru import ScanResistant

LAYERS, EXPERTS, TOP_K, SLOTS = 8, 32, 4, 128
READ_S = 1.0


@dataclass
class Link:
    """A program of single rows, and a link that brings one expert at a time.

    Attributes:
        compute_s: from a layer's last expert to the next layer's post.
        recall: of guesses; None makes none.
        looks_ahead: in prompts.
        waited: experts that were not there when they were asked for.
    """

    compute_s: float
    recall: float | None
    looks_ahead: bool = True
    now: float = 0.0
    waited: int = 0
    reads: int = 0
    idle_s: float = 0.0
    number: int = 0
    last: Post | None = None
    table: set[Entry] = field(default_factory=set)
    flying: tuple[float, Read] | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(1)
        self.rule = Prefetch(1, lambda: self.now)
        self.pool = Pool(SLOTS, TOP_K, ScanResistant(), self, self.rule)

    # What the pool sees.

    def posted(self) -> int:
        return self.number

    def post(self, number: int) -> Post | None:
        return self.last if self.last is not None and number == self.number else None

    def done(self, layer: int) -> int:
        return 0

    def over(self) -> int:
        return 0

    def evict(self, entry: Entry, number: int) -> bool:
        self.table.remove(entry)
        return True

    def publish(self, entry: Entry, slot: int) -> None:
        self.table.add(entry)

    # What happens.

    def token(self, needed: list[list[int]]) -> None:
        """Goes through all layers."""
        foresees = self.recall is not None and self.rule.begin_run()
        for layer, experts in enumerate(needed):
            scores = (1.0,) * len(experts)
            self.number += 1
            most = len(experts) >= 0.75 * EXPERTS
            self.last = Post(
                layer, tuple(experts), scores, self.number, self.now, foresees and not most, most
            )
            entries = {(layer, expert) for expert in experts}
            self.waited += len(entries - self.table)
            following = needed[layer + 1] if layer + 1 < len(needed) else None
            while not entries <= self.table:
                self._go_on(following, float("inf"))
            end = self.now + self.compute_s
            while self.now < end:
                self._go_on(following, end)

    def _go_on(self, following: list[int] | None, end: float) -> None:
        """Lets the link do one thing, or rest to the end."""
        if self.flying is None:
            self._begin(following)
        if self.flying is None or self.flying[0] > end:
            self.idle_s += 0.0 if self.flying else end - self.now
            self.now = end
            return
        self.now, read = self.flying
        self.flying = None
        self.pool.finish(read, READ_S)

    def _begin(self, following: list[int] | None) -> None:
        read = self.pool.next_read()
        if read is None and (glance := self.pool.next_glance()) is not None:
            post = glance.post
            if post.needs_most and self.looks_ahead:
                if post.layer + 1 < LAYERS:
                    self.pool.wish(post.layer + 1, range(EXPERTS), ahead=ALL)
            elif not post.needs_most and glance.ahead == 1 and following is not None:
                self.pool.wish(post.layer + 1, self._guess(following))
            read = self.pool.next_read()
        if read is not None:
            self.reads += 1
            self.flying = self.now + READ_S, read

    def _guess(self, experts: list[int]) -> list[int]:
        others = [expert for expert in range(EXPERTS) if expert not in experts]
        return [
            expert if self.chance.random() < (self.recall or 0.0) else self.chance.choice(others)
            for expert in experts
        ]


def tokens(count: int) -> Iterator[list[list[int]]]:
    """What each layer needs: by half what it needed before."""
    chance, last = random.Random(0), [[0] * 0 for _ in range(LAYERS)]
    for _ in range(count):
        for layer in range(LAYERS):
            old = [expert for expert in last[layer] if chance.random() < 0.5]
            new = [expert for expert in range(EXPERTS) if expert not in old]
            last[layer] = old + chance.sample(new, TOP_K - len(old))
        yield [list(experts) for experts in last]


def ran(compute_s: float, recall: float | None, count: int = 300) -> Link:
    link = Link(compute_s, recall)
    for needed in tokens(count):
        link.token(needed)
    return link


def test_a_link_that_idles_half_of_the_time_brings_more_than_half_before_it_is_needed() -> None:
    without, ahead = ran(1.0, None), ran(1.0, 0.95)
    assert without.idle_s == pytest.approx(without.now / 2, rel=0.1)
    assert ahead.waited <= without.waited / 2
    assert ahead.reads <= 1.1 * without.reads
    assert ahead.now <= 0.75 * without.now


@pytest.mark.parametrize(("recall", "seconds"), [(0.95, 0.85), (0.85, 0.93)])
def test_a_link_that_idles_a_third_of_the_time_shortens_waits(
    recall: float, seconds: float
) -> None:
    """There is no time to read half of what is missing, but waits begin earlier and are shorter."""
    without, ahead = ran(0.5, None), ran(0.5, recall)
    assert without.idle_s == pytest.approx(without.now / 3, rel=0.1)
    assert ahead.reads <= 1.2 * without.reads
    assert ahead.now <= seconds * without.now


@pytest.mark.parametrize("recall", [0.95, 0.85, 0.6, 0.3, 0.0])
@pytest.mark.parametrize("compute_s", [0.0, 0.02])
def test_a_link_that_is_never_idle_is_left_alone(compute_s: float, recall: float) -> None:
    without, ahead = ran(compute_s, None), ran(compute_s, recall)
    assert ahead.reads <= 1.02 * without.reads
    assert ahead.now <= 1.005 * without.now


@pytest.mark.parametrize("recall", [0.85, 0.6, 0.3, 0.0])
@pytest.mark.parametrize("compute_s", [0.2, 0.5, 1.0, 2.0])
def test_bad_guesses_never_make_it_slower(compute_s: float, recall: float) -> None:
    without, ahead = ran(compute_s, None), ran(compute_s, recall)
    assert ahead.reads <= 1.2 * without.reads
    assert ahead.now <= 1.005 * without.now


def test_neither_the_time_before_the_first_layer_nor_a_pause_of_the_program_is_a_rest() -> None:
    """Else guesses would seem to pay for a thousand layers, on a link that never rests."""
    prefetch = Prefetch(1, lambda: 1000.0)
    for layer in range(20):
        prefetch.note_post(layer, 1000.0 + 1e-3 * layer)
        prefetch.note_arrival(1.0, is_wish=True)
        prefetch.note_guess(1, 2, 1)
    assert not prefetch.pays(1)
    prefetch.note_post(20, 2000.0)
    assert not prefetch.pays(1)


def test_what_does_not_pay_is_tried_again_and_then() -> None:
    """Guesses cost the processor time, but how good they are may change."""
    link = ran(0.5, 0.1)
    assert not link.rule.begin_run()
    guessed = link.rule.guesses.needed
    link.recall = 1.0
    for needed in tokens(150):
        link.token(needed)
    assert link.rule.begin_run()
    assert link.rule.guesses.needed > 3 * guessed
    assert link.rule.guesses.wished


@pytest.mark.parametrize("compute_s", [8.0, 16.0, 32.0])
def test_prompts_read_the_next_layers_under_the_products_of_this_one(compute_s: float) -> None:
    """Half of the experts are there, so that a layer reads 16 of 32."""
    waits, ahead = (prompted(compute_s, looks_ahead=looks) for looks in (False, True))
    assert waits[1] == pytest.approx(waits[0] * READ_S + 4 * LAYERS * compute_s, rel=0.01)
    assert ahead[0] <= waits[0] + 4 * EXPERTS, "more than a layer more a prompt"
    assert ahead[1] <= 1.1 * max(ahead[0] * READ_S, 4 * LAYERS * compute_s)


def prompted(compute_s: float, *, looks_ahead: bool) -> tuple[int, float]:
    """Reads and seconds of some prompts, after replies."""
    link = Link(compute_s, None, looks_ahead=looks_ahead)
    for needed in tokens(60):
        link.token(needed)
    for _ in range(4):  # until guesses are trusted
        link.token([list(range(EXPERTS))] * LAYERS)
    reads, seconds = link.reads, link.now
    for _ in range(4):
        link.token([list(range(EXPERTS))] * LAYERS)
    assert link.rule.guesses.wasted == 0
    return link.reads - reads, link.now - seconds


def test_gates_that_are_replaced_are_not_taken_for_those_that_follow() -> None:
    """As another program is compiled for other rows, its gates may lie where the last ones lay."""
    rng = np.random.default_rng(0)
    weight, row = rng.standard_normal((9, 12), np.float32), rng.standard_normal(12, np.float32)
    there = Gate(weight, None, np.ones(12, np.float32), 3)
    for _ in range(20):
        here = Gate(weight, None, rng.uniform(0.01, 2, 12).astype(np.float32), 3)
        assert here.norm is not None
        logits = weight @ (row / here.norm)
        assert there.guess(row, here) == np.argsort(-logits, kind="stable")[:3].tolist()


def test_a_batch_that_needs_most_of_a_layer_wishes_for_all_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = ExpertStream(ExpertMemory(1024, ScanResistant), slots=4, slot_bytes=256, top_k=2)
    wishes: list[tuple[object, ...]] = []
    monkeypatch.setattr(stream._pool, "wish", lambda *wish: wishes.append(wish))
    for count in (8, 6, 16):
        stream._words.add_layer(count, 4)
    for layer in range(3):
        stream._look_ahead(Glance(Post(layer, (), (), 7, needs_most=True), 1))
    stream.close()
    assert wishes == [(1, range(6), 7, ALL), (2, range(16), 7, ALL)]


@pytest.mark.parametrize("method", ["guess", "is_at_hand"])
def test_a_guess_that_fails_ends_the_run_and_no_reader(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    stream = ExpertStream(ExpertMemory(1024, ScanResistant), slots=4, slot_bytes=256, top_k=2)
    for _ in range(2):
        stream._words.add_layer(8, 4)
    glances = iter([Glance(Post(0, (), (), 1, has_input=True), 1)])
    monkeypatch.setattr(stream._pool, "next_glance", lambda: next(glances, None))
    monkeypatch.setattr(Pool, "is_at_rest", method == "is_at_hand")
    divisors = iter([0])
    monkeypatch.setattr(stream._outlook, method, lambda *given: 1 // next(divisors, 2))
    with pytest.raises(BackendError, match="ZeroDivisionError"), stream.run():
        stream._ring()
        end = time.monotonic() + 10
        while not stream._words.aborted and time.monotonic() < end:
            time.sleep(0.001)
    assert all(thread.is_alive() for thread in stream._threads)
    with stream.run():
        stream._ring()
    stream.close()


def test_readers_ask_for_short_turns_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    askers: list[str] = []
    ask = "edgerun.backends.cpu.experts.stream.take_short_turns"
    monkeypatch.setattr(ask, lambda: askers.append(threading.current_thread().name))
    stream = ExpertStream(ExpertMemory(1024, ScanResistant), slots=4, slot_bytes=256, top_k=2)
    with stream.run():
        stream._ring()
    threads = stream._threads
    stream.close()
    assert sorted(askers) == sorted(thread.name for thread in threads)


def test_three_quarters_of_a_layer_are_most_of_it() -> None:
    words = SharedWords(np.zeros((2, 64), np.uint8), 1.0)
    layer = words.add_layer(8, 4)
    layer.post[SEQUENCE], words.control[LOG + 1] = 1, layer.number
    for count in range(1, 9):
        layer.post[COUNT] = count
        post = words.post(1)
        assert post is not None and post.needs_most == (count >= 6)


def test_no_run_begins_while_a_reader_gives_up_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be given up itself, and nobody could say why."""
    stream = ExpertStream(ExpertMemory(1024, ScanResistant), slots=4, slot_bytes=256, top_k=2)
    middle, abort = threading.Event(), stream._words.abort

    def slowly(reason: int) -> None:
        middle.set()
        time.sleep(0.2)
        abort(reason)

    def give_up() -> None:
        with _Deciding(stream):
            raise ValueError

    monkeypatch.setattr(stream._words, "abort", slowly)
    reader = threading.Thread(target=give_up)
    reader.start()
    assert middle.wait(10)
    with stream.run():
        reader.join()
    stream.close()


def test_whole_layers_are_foreseen_after_two_right_guesses_others_after_many() -> None:
    for ahead, enough in ((ALL, 2), (1, 16), (2, 16)):
        link = Prefetch(now=lambda: 0.0)
        link.note_arrival(1e-3, is_wish=False)
        link.note_post(0, 0.0)
        link.note_post(1, 1.0)  # so it rests for long
        for _ in range(enough):
            assert not link.pays(ahead)
            link.note_guess(ahead, absent=8, right=8)
        assert link.pays(ahead)
