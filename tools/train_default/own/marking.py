"""Which of a reply's tokens are to be learned and which are not to come again; needs no torch.

In a reply of the model's own, every token that completes words said before (`repeat` tokens in a
row) is to become unlikely: the loss is -log(1 - p) (Welleck et al. 2019, "Neural text generation
with unlikelihood training"). Where it is asked for, a drawn reply that names its subject early,
ends, and says nothing twice is learned like any text (rejection sampling). No request names a
subject that `following.py` counts with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from tools.train_default.batches import PAD, Array
from tools.train_default.chats.asking import ASKS, ASKS_ANY, ONLY_ONE
from tools.train_default.chats.extract import ANIMALS, PEOPLE, THINGS, article
from tools.train_default.chats.following import SUBJECTS, follows, loops, opening
from tools.train_default.chats.smalltalk import vary

COUNTED = frozenset(noun for nouns in SUBJECTS.values() for noun in nouns)
NOUNS = tuple(noun for noun in (*ANIMALS, *PEOPLE, *THINGS) if noun not in COUNTED)
SHORTEST = 60  # tokens of a reply that is learned


@dataclass(frozen=True)
class Reply:
    prompt: list[int]
    ids: list[int]  # the end among them, if it was reached
    text: str
    noun: str | None  # that the request names
    greedy: bool
    ended: bool

    @property
    def is_good(self) -> bool:
        """Drawn, ended, about its subject from the beginning, and nothing said twice."""
        if self.greedy or not self.ended or self.noun is None or len(self.ids) < SHORTEST:
            return False
        return follows(opening(self.text), self.noun) and not loops(self.text)


def requests(rng: Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Requests for stories and the noun that they name, if they do."""
    for _ in range(count):
        if rng.random() < 0.1:
            yield vary(rng, rng.choice(ASKS_ANY)), None
            continue
        noun = rng.choice(NOUNS)
        phrase = f"the {noun}" if noun in ONLY_ONE else article(noun)
        yield vary(rng, rng.choice(ASKS).format(phrase)), noun


def repeats(ids: Sequence[int], size: int) -> Array:
    """Which tokens complete `size` tokens in a row that came before."""
    runs: set[tuple[int, ...]] = set()
    marks = np.zeros(len(ids), bool)
    for at in range(size, len(ids) + 1):
        run = tuple(ids[at - size : at])
        marks[at - 1] = run in runs
        runs.add(run)
    return marks


def marked(reply: Reply, repeat: int, learn_good: bool = True) -> tuple[Array, Array]:
    """Ids and targets of a reply; a target `PAD - 1 - token` says what is not to come.

    Of a good reply every token is a target, if `learn_good`.
    """
    own = np.array(reply.ids, np.int64)
    unwanted = np.where(repeats(reply.ids, repeat), PAD - 1 - own, PAD)
    ids = np.concatenate([np.array(reply.prompt, np.int64), own])
    learned = own if learn_good and reply.is_good else unwanted
    targets = np.concatenate([np.full(len(reply.prompt), PAD), learned])
    return ids[:-1], targets[1:]


def pack(
    replies: Iterable[Reply], repeat: int, context: int, learn_good: bool = True
) -> list[tuple[Array, Array]]:
    """Rows [context] of as many replies as fit, without those in which nothing is marked."""
    rows: list[tuple[Array, Array]] = []
    at = context
    for ids, targets in (marked(reply, repeat, learn_good) for reply in replies):
        if (targets == PAD).all():
            continue
        if at + len(ids) > context:
            rows.append((np.full(context, PAD), np.full(context, PAD)))
            at = 0
        part = slice(at, at + len(ids))
        rows[-1][0][part], rows[-1][1][part] = ids, targets
        at = part.stop
    return rows


def shares(replies: Sequence[Reply]) -> dict[str, float]:
    """Of replies that loop, by how they were made, that end, keep their subject, and are good."""

    def share(values: Iterable[bool]) -> float:
        return float(np.mean(list(values)))

    return {
        "greedy_loops": share(loops(reply.text) for reply in replies if reply.greedy),
        "drawn_loops": share(loops(reply.text) for reply in replies if not reply.greedy),
        "ends": share(reply.ended for reply in replies),
        "follows": share(follows(reply.text, reply.noun) for reply in replies if reply.noun),
        "good": share(reply.is_good for reply in replies),
    }
