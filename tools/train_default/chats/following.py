"""Whether a story is about what was asked for, and whether it runs in circles: counted, not judged.

One fixed request for each subject, `Tell me a story about a X.`, answered by one way of decoding.
`follows` counts replies with the subject in them (or its plural, as whole words); `early` those
that have it in their first two sentences; `loops` those in which six words in a row come again;
`ends` those that come to their end by themselves. Of a few fixed chats of two turns (`turns.txt`)
those are counted in which both replies have a word that they should have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tools.train_default.chats.extract import article, plural
from tools.train_default.chats.tables import read_rows, read_words

# `unlisted`: the word lists that the chats are made with have none of these.
SUBJECTS = read_words("subjects.txt")
RUN = 6


class Turn(NamedTuple):
    says: str
    words: frozenset[str]  # of which the reply should have one


def read_turns() -> list[list[Turn]]:
    pairs = [[line.split("|") for line in block] for block in read_rows("turns.txt")]
    return [[Turn(says, frozenset(words.split())) for says, words in chat] for chat in pairs]


TURNS = read_turns()


def asks(noun: str) -> str:
    return f"Tell me a story about {'the moon' if noun == 'moon' else article(noun)}."


def follows(reply: str, noun: str) -> bool:
    return re.search(rf"\b(?:{noun}|{plural(noun)})\b", reply, re.IGNORECASE) is not None


def opening(reply: str) -> str:
    return " ".join(re.split(r"(?<=[.!?])\s+", reply.strip())[:2])


def loops(reply: str) -> bool:
    words = re.findall(r"[a-z']+", reply.lower())
    runs = [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return len(set(runs)) < len(runs)


def answers(turn: Turn, reply: str) -> bool:
    return not turn.words.isdisjoint(re.findall(r"[a-z]+", reply.lower()))


def score(answer: Callable[[list[str], int], tuple[str, bool]]) -> dict[str, int]:
    """Counts over all subjects and chats.

    `answer` takes what was said, the user's messages and the replies in turn, and a seed; it gives
    a reply and whether that came to its end.
    """
    counts = {"requests": 0, "follows": 0, "early": 0, "loops": 0, "ends": 0}
    for kind, nouns in SUBJECTS.items():
        answered = [answer([asks(noun)], seed) for seed, noun in enumerate(nouns)]
        counts["ends"] += sum(ended for _, ended in answered)
        replies = [(noun, reply) for noun, (reply, _) in zip(nouns, answered, strict=True)]
        followed = sum(follows(reply, noun) for noun, reply in replies)
        counts["requests"] += len(replies)
        counts["follows"] += followed
        counts["early"] += sum(follows(opening(reply), noun) for noun, reply in replies)
        counts["loops"] += sum(loops(reply) for _, reply in replies)
        counts[f"{kind}_of_{len(nouns)}"] = followed
    on_topic = sum(keeps_topic(chat, answer, seed) for seed, chat in enumerate(TURNS))
    return counts | {f"chats_of_{len(TURNS)}": on_topic}


def keeps_topic(
    chat: list[Turn], answer: Callable[[list[str], int], tuple[str, bool]], seed: int
) -> bool:
    """Whether each reply of a chat has a word that it should have."""
    said: list[str] = []
    for turn in chat:
        reply, _ = answer([*said, turn.says], seed)
        said += [turn.says, reply]
        if not answers(turn, reply):
            return False
    return True
