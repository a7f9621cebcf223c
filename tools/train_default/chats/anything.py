"""Real stories about anything: their subject becomes a noun of books, or a word that nobody knows.

Where all subjects stand in lists (`swap.py`), these are learned, and a request for something else
is answered with something that is spelled alike. Where any word at all can be the subject, it has
to be taken from the request.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from tools.train_default.chats.asking import ASKS
from tools.train_default.chats.extract import NOT_ABOUT, article, hero, subjects
from tools.train_default.chats.following import follows, loops, opening
from tools.train_default.chats.smalltalk import vary
from tools.train_default.chats.swap import TELLING, exchange, swap_names
from tools.train_default.chats.tables import read_words
from tools.train_default.own.marking import COUNTED, NOUN, nouns_of

# Children's: what others say of people does not belong into requests for stories.
BOOKS = (
    "stories/fables_mit.jsonl",
    "stories/storybooks_ccby.jsonl",
    "stories/fairytaleqa.jsonl",
)
OFTEN = 3  # times that a noun comes in them
# Endings of what stands where a noun does and is none, or none that a story is about.
ENDINGS = ("ing", "ly", "ed", "ness", "ment", "tion", "sion", "ity", "ance", "ence")
ENDINGS += ("ous", "ful", "ive")
UNKNOWN = 0.3  # share of stories about a word that nobody knows
SYLLABLES = read_words("syllables.txt")


def invented(rng: Random) -> str:
    """A word of one to three syllables that looks like English, and is not on a list."""
    word = "".join(
        rng.choice(SYLLABLES["begins"])
        + rng.choice(SYLLABLES["vowels"])
        + (rng.choice(SYLLABLES["ends within words"]) if rng.random() < 0.4 else "")
        for _ in range(rng.choice((1, 2, 2, 3)))
    )
    word += rng.choice(("", rng.choice(SYLLABLES["ends"]), "er", "le", "y", "o"))
    said = word in COUNTED or any(part in word for part in SYLLABLES["not said"])
    return invented(rng) if said else word


def nouns_of_books(corpora: Path, stories: Iterable[str]) -> list[str]:
    """Nouns that books have often or stories twice; none that `following.py` counts with."""
    counts: Counter[str] = Counter()
    for pattern in BOOKS:
        for path in sorted(corpora.glob(pattern)):
            counts.update(NOUN.findall(path.read_text(encoding="utf-8", errors="ignore")))
    often = {noun for noun, count in counts.items() if count >= OFTEN}
    fitting = {noun for noun in often - COUNTED - NOT_ABOUT if not noun.endswith(ENDINGS)}
    return sorted(fitting.union(nouns_of(stories, 2)))


def subject_of(story: str) -> str | None:
    """Its hero's kind, or a noun that comes in its beginning and again."""
    main, lower = hero(story), story.lower()
    for noun in ([main[2]] if main else []) + subjects(story)[:2]:
        again = len(re.findall(rf"\b{noun}s?\b", lower)) > 1
        if (follows(opening(story), noun) and again and noun not in ("girl", "boy")) or (
            main and noun == main[2]
        ):
            return noun
    return None


def about(rng: Random, story: str, nouns: Sequence[str]) -> tuple[str, str] | None:
    """A story about another noun, and that noun; None if the story does not allow it."""
    old = subject_of(story)
    if old is None or TELLING.search(story.lower()):
        return None
    new = invented(rng) if rng.random() < UNKNOWN else rng.choice(nouns)
    if re.search(rf"\b{new}s?\b", story.lower()):
        return None
    told = exchange(story, old, new)
    if not follows(opening(told), new):
        return None
    return (swap_names(rng, told) if rng.random() < 0.6 else told), new


def chats_about_anything(
    stories: Sequence[str], nouns: Sequence[str], seed: int, rounds: int
) -> Iterator[list[dict[str, str]]]:
    """Requests and stories, of each story that allows it as many as there are rounds."""
    rng = Random(seed)
    short = [story for story in stories if len(story) < 1000 and not loops(story)]
    for _ in range(rounds):
        rng.shuffle(short)
        for story in short:
            if (pair := about(rng, story, nouns)) is None:
                continue
            told, noun = pair
            asked = vary(rng, rng.choice(ASKS).format(article(noun)))
            yield [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
