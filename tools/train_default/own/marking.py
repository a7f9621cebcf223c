"""Which of a reply's tokens are to be learned and which are not to come again; needs no torch.

In a reply of the model's own, every token that completes words said before (`repeat` tokens in a
row) is to become unlikely: the loss is -log(1 - p) (Welleck et al. 2019, "Neural text generation
with unlikelihood training"). Where it is asked for, a drawn reply that names its subject early,
ends, and says nothing twice is learned like any text (rejection sampling). No request names a
subject that `following.py` counts with.

With a teacher nothing has to become unlikely: it says what should have come instead (Agarwal et al.
2024, "On-policy distillation of language models"), and of that what would complete words said
before is left out (`without_repeats`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from tools.train_default.batches import PAD, Array
from tools.train_default.chats.asking import ASKS, ASKS_ANY, ONLY_ONE
from tools.train_default.chats.extract import ANIMALS, NOT_ABOUT, PEOPLE, THINGS, article
from tools.train_default.chats.following import SUBJECTS, follows, loops, opening
from tools.train_default.chats.smalltalk import vary

COUNTED = frozenset(noun for nouns in SUBJECTS.values() for noun in nouns)
NOUNS = tuple(noun for noun in (*ANIMALS, *PEOPLE, *THINGS) if noun not in COUNTED)
SHORTEST = 60  # tokens of a reply that is learned
EARLY = 40  # tokens of a reply in which its subject should be named
EMPTY = (PAD, PAD, 0, -np.inf)  # in a row: ids, targets, and a teacher's ids and log p
# What stands between an article and a point, with nothing after it, is a noun.
NOUN = re.compile(r"\b(?:an?|the|her|his) ([a-z]{3,12})[.,!?]")


@dataclass(frozen=True)
class Reply:
    prompt: list[int]
    ids: list[int]  # the end among them, if it was reached
    text: str
    noun: str | None  # that the request names
    greedy: bool
    ended: bool
    names: frozenset[int] = frozenset()  # tokens with which the noun begins

    @property
    def is_good(self) -> bool:
        """Drawn, ended, about its subject from the beginning, and nothing said twice."""
        if self.greedy or not self.ended or self.noun is None or len(self.ids) < SHORTEST:
            return False
        return follows(opening(self.text), self.noun) and not loops(self.text)


def nouns_of(texts: Iterable[str], least: int = 5) -> tuple[str, ...]:
    """NOUNS, and those that at least so many texts have; none that `following.py` counts with."""
    counts = Counter(noun for text in texts for noun in set(NOUN.findall(text)))
    often = {noun for noun, count in counts.items() if count >= least}
    return (*NOUNS, *sorted(often.difference(NOUNS, COUNTED, NOT_ABOUT)))


def requests(
    rng: Random, count: int, nouns: Sequence[str] = NOUNS
) -> Iterator[tuple[str, str | None]]:
    """Requests for stories and the noun that they name, if they do."""
    for _ in range(count):
        if rng.random() < 0.1:
            yield vary(rng, rng.choice(ASKS_ANY)), None
            continue
        noun = rng.choice(nouns)
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


def without_repeats(
    ids: Sequence[int], tokens: Array, log_p: Array, size: int, weight: float = 1.0
) -> tuple[Array, Array]:
    """What a teacher says, less what would complete `size` tokens in a row that came before.

    Args:
        ids: of a reply, n or n + 1 in all.
        tokens: what is likeliest after each of the first n `[n, k]`.
        log_p: its log p `[n, k]`.
        size: so many tokens in a row are a repetition.
        weight: of what is said where the reply's own next token is a repetition.

    Returns:
        the likeliest token that is left after each of the first n `[n]`, PAD where none is; and log
        p `[n, k]`, -inf of what is left out. The p of what is left add up to what all did before,
        times the weight.
    """
    followers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    remaining = log_p.copy()
    for at in range(size - 1, len(ids) + 1):
        run = tuple(ids[at - size + 1 : at])
        if at <= len(remaining) and (before := followers.get(run)):
            remaining[at - 1][np.isin(tokens[at - 1], list(before))] = -np.inf
        if at < len(ids):
            followers[run].add(ids[at])
    change = np.exp(log_p).sum(-1) / np.maximum(np.exp(remaining).sum(-1), 1e-9)
    again = repeats(ids, size)[1:]
    change[: len(again)][again] *= weight
    likeliest = np.take_along_axis(tokens, remaining.argmax(-1)[:, None], -1)[:, 0]
    likeliest = np.where(np.isneginf(remaining).all(-1), PAD, likeliest)
    return likeliest, remaining + np.log(change)[:, None]


def towards(reply: Reply, tokens: Array, log_p: Array, times: float) -> Array:
    """What a teacher says of a reply, with its subject so many times as likely at the beginning.

    That is through the token that names the subject, or through the first `EARLY` tokens.

    Args:
        tokens: what is likeliest in the place of each token of the reply `[n, k]`.
        log_p: its log p `[n, k]`.
        times: beside the others, as likely as before.

    Returns:
        log p `[n, k]`; the p of a row add up to what they did before.
    """
    named = next((at for at, token in enumerate(reply.ids) if token in reply.names), EARLY)
    part = slice(0, min(named + 1, EARLY))
    is_subject = np.isin(tokens[part], list(reply.names))
    changed = log_p.copy()
    changed[part] += np.where(is_subject, np.log(times), 0.0)
    total, before = (np.exp(each[part]).sum(-1) for each in (changed, log_p))
    changed[part] -= np.log(total / before)[:, None]
    return changed


def taught(
    reply: Reply,
    tokens: Array,
    log_p: Array,
    repeat: int,
    learn_good: bool = True,
    subject: float = 1.0,
    weight: float = 1.0,
) -> tuple[Array, Array, Array, Array]:
    """Ids and targets of a reply, and what a teacher says; nothing is asked of the prompt.

    Of a good reply every token is a target, if `learn_good`; of others the teacher's likeliest, for
    the first `EARLY` tokens and where the reply repeats itself.

    Args:
        tokens: the teacher's likeliest after each token of prompt and reply `[n, k]`.
        log_p: its log p of them `[n, k]`.
        repeat: so many tokens in a row are a repetition.
        subject: how many times as likely the reply's subject shall be where it is not named yet.
        weight: of what is said where the reply repeats itself.

    Returns:
        ids and targets `[n - 1]`, and the teacher's ids (int32) and log p (float32) `[n - 1, k]`,
        as `LanguageModel.head_loss` takes them.
    """
    start = len(reply.prompt) - 1  # what is said after it is the first token of the reply
    own = np.array(reply.ids, np.int64)
    ids = np.concatenate([np.array(reply.prompt, np.int64), own[:-1]])
    tokens, said = tokens[:-1].astype(np.int32), log_p[:-1].astype(np.float32)
    likely = towards(reply, tokens[start:], said[start:], subject)
    best, likely[1:] = without_repeats(reply.ids, tokens[start + 1 :], likely[1:], repeat, weight)
    said[:start], said[start:] = -np.inf, likely
    first = tokens[start, likely[0].argmax()]
    if learn_good and reply.is_good:
        learned = own
    else:  # a teacher goes on with what has begun to repeat itself, so elsewhere it is not asked
        again = repeats(reply.ids, repeat)
        learned = np.where(again | (np.arange(len(own)) < EARLY), [first, *best], PAD)
    targets = np.concatenate([np.full(start, PAD), learned])
    return ids, targets, tokens, said


def pack(replies: Iterable[tuple[Array, ...]], context: int) -> list[tuple[Array, ...]]:
    """Rows [context] of as many replies as fit, without those in which there is no target."""
    rows: list[tuple[Array, ...]] = []
    at = context
    for arrays in replies:
        if (arrays[1] == PAD).all():
            continue
        size = len(arrays[0])
        if at + size > context:
            at = 0
            rows.append(
                tuple(
                    np.full((context, *array.shape[1:]), empty, array.dtype)
                    for array, empty in zip(arrays, EMPTY, strict=False)
                )
            )
        for row, array in zip(rows[-1], arrays, strict=True):
            row[at : at + size] = array
        at += size
    return rows


def shares(replies: Sequence[Reply]) -> dict[str, float]:
    """Of replies that loop, by how they were made, that end, keep their subject, and are good.

    A share of no replies is left out: there may be none whose request names a subject.
    """
    counted = {
        "greedy_loops": [loops(reply.text) for reply in replies if reply.greedy],
        "drawn_loops": [loops(reply.text) for reply in replies if not reply.greedy],
        "ends": [reply.ended for reply in replies],
        "follows": [follows(reply.text, reply.noun) for reply in replies if reply.noun],
        "good": [reply.is_good for reply in replies],
    }
    return {name: float(np.mean(values)) for name, values in counted.items() if values}
