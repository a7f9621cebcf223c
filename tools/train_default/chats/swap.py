"""The same story about something else: nouns and names exchanged for others of their kind.

A few thousand stories teach what a dog does, but not that the request decides whether it is a dog.
With the noun drawn anew every time, nothing but the request tells it.
"""

from __future__ import annotations

import re
from random import Random

from tools.train_default.chats.extract import (
    ANIMAL_KINDS,
    HEROES,
    THING_KINDS,
    article,
    hero,
    plural,
    subjects,
)
from tools.train_default.chats.tables import WORDS

GIRLS, BOYS = WORDS["girls"], WORDS["boys"]
KINDS = tuple(WORDS[kind] for kind in (*HEROES, *ANIMAL_KINDS, *THING_KINDS))
# What only some animals do: a story that says so keeps its animal.
TELLING = re.compile(
    r"\b(?:bark|woof|meow|purr|quack|moo|oink|chirp|tweet|roar|buzz|hiss|neigh|ribbit|whisker|trunk"
    r"|mane|wool|tusk|kitty|kitties|doggy|birdie)"
)


def partners(noun: str) -> list[str]:
    """The nouns that may stand for `noun`; empty where it is of no known kind."""
    if noun == "girl":
        return [*WORDS["she heroes"], *WORDS["walkers"]]
    if noun == "boy":
        return [*WORDS["he heroes"], *WORDS["walkers"]]
    return [other for kind in KINDS if noun in kind for other in kind if other != noun]


def exchange(story: str, old: str, new: str) -> str:
    """Every `old` becomes `new`: singular and plural, capital letters and `a`/`an` fitted."""
    for before, after in ((old, new), (plural(old), plural(new))):
        story = re.sub(rf"\b{before}\b", after, story)
        story = re.sub(rf"\b{before.capitalize()}\b", after.capitalize(), story)
    right = article(new).split(" ")[0]
    story = re.sub(rf"\ban? (?={new}\b)", f"{right} ", story)
    return re.sub(rf"\bAn? (?={new}\b)", f"{right.capitalize()} ", story)


def swap_names(rng: Random, story: str) -> str:
    """Each name of our lists becomes another one of its gender, or stays."""
    taken = {name for name in (*GIRLS, *BOYS) if re.search(rf"\b{name}\b", story)}
    fresh: dict[str, str] = {}
    for names in (GIRLS, BOYS):
        free = [name for name in names if name not in taken]
        rng.shuffle(free)
        for name in sorted(taken.intersection(names)):
            if rng.random() < 0.7 and name.lower() not in ("spot", "rose", "daisy", "mark"):
                fresh[name] = free.pop()
    if not fresh:
        return story
    return re.sub(rf"\b(?:{'|'.join(fresh)})\b", lambda match: fresh[match[0]], story)


def swap_subject(rng: Random, story: str) -> str:
    """The hero's kind, or what the story is most about, becomes another of its kind."""
    main = hero(story)
    nouns = ([main[2]] if main else []) + subjects(story)[:3]
    lower = story.lower()
    for noun in nouns:
        free = [new for new in partners(noun) if not re.search(rf"\b{new}s?\b", lower)]
        if free and not (TELLING.search(lower) and noun in WORDS["animals"]):
            return exchange(story, noun, rng.choice(free))
    return story


def vary_story(rng: Random, story: str) -> str:
    """As it is, or with other names, another subject, or both."""
    if rng.random() < 0.65:
        story = swap_subject(rng, story)
    return swap_names(rng, story) if rng.random() < 0.6 else story
