"""Whether a story is about what was asked for, and whether it runs in circles: counted, not judged.

One fixed request for each subject, `Tell me a story about a X.`, answered by one way of decoding.
`follows` counts replies with the subject in them (or its plural, as whole words); `early` those
that have it in their first two sentences; `loops` those in which six words in a row come again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tools.train_default.chats.extract import article, plural
from tools.train_default.chats.tables import read_words

# `unlisted`: the word lists that the chats are made with have none of these.
SUBJECTS = read_words("subjects.txt")
RUN = 6


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


def score(answer: Callable[[str, int], str]) -> dict[str, int]:
    """Counts over all subjects; `answer` takes a request and a seed."""
    counts = {"requests": 0, "follows": 0, "early": 0, "loops": 0}
    for kind, nouns in SUBJECTS.items():
        replies = [(noun, answer(asks(noun), seed)) for seed, noun in enumerate(nouns)]
        followed = sum(follows(reply, noun) for noun, reply in replies)
        counts["requests"] += len(replies)
        counts["follows"] += followed
        counts["early"] += sum(follows(opening(reply), noun) for noun, reply in replies)
        counts["loops"] += sum(loops(reply) for _, reply in replies)
        counts[f"{kind}_of_{len(nouns)}"] = followed
    return counts
