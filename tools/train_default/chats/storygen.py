"""A small grammar of children's stories: every story fits the subject that was asked for.

The plots stand in `plots.txt`: steps with slots in braces; the slots are filled once a story, so
that the hero, the place and the thing stay the same through it.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from tools.train_default.chats.extract import ANIMALS, HE, SHE, plural
from tools.train_default.chats.tables import NAMES, WORDS, read_rows

PLACES = (
    "park",
    "forest",
    "garden",
    "beach",
    "farm",
    "lake",
    "hill",
    "field",
    "river",
    "meadow",
    "playground",
    "yard",
)
WEATHER = ("sunny", "warm", "windy", "cold", "bright", "quiet", "rainy", "nice")
TREATS = (
    "apples",
    "cookies",
    "berries",
    "soup",
    "honey",
    "bread",
    "cake",
    "carrots",
    "pie",
    "milk",
)

INSTRUMENTS = ("drum", "piano", "guitar", "flute", "horn")
OPENINGS = (
    "Once upon a time, there was a {adj} {hero} named {name}. {name} lived near a {place}.",
    "Once upon a time, a {adj} {hero} named {name} lived by the {place}.",
    "One day, a {adj} {hero} named {name} went to the {place}. It was a {weather} day.",
    "There once was a {adj} {hero} named {name}. Every day, {name} liked to go to the {place}.",
    "In a small house near the {place}, there lived a {adj} {hero} called {name}.",
    "{name} was a {adj} {hero}. {He} lived near the {place} with {his} mom.",
    "Once there was a {hero} named {name}. {He} was very {adj}.",
    "Once upon a time, in a {place}, there lived a {adj} {hero}. {His} name was {name}.",
)
THING_OPENINGS = (
    "This is a story about a {color} {thing} and a {adj} {hero} named {name}.",
    "Once upon a time, there was a {color} {thing}. A {hero} named {name} will never forget it.",
    "Once upon a time, there was a {hero} named {name} who loved every {thing} in the world.",
    "{name} the {hero} liked nothing better than a {thing}.",
)
OBJECT_OPENINGS = (
    "Once upon a time, there was a {adj} {hero} named {name}.",
    "Once upon a time, there was a {color} {hero} near a {place}. It was called {name}.",
    "There once was a {adj} little {hero}. Its name was {name}.",
    "Far away, behind the {place}, there was a {hero} named {name}.",
)
CLOSINGS = (
    "{name} learned that {lesson}.",
    "That day, {name} learned that {lesson}.",
    "From then on, {name} knew that {lesson}.",
    "And they all lived happily ever after.",
    "{name} went home with a big smile.",
    "The end.",
)
HERO_SUBJECTS = (
    *["a {hero}"] * 5,
    "the {hero}",
    "{heroes}",
    "a {adj} {hero}",
    "a {hero} named {name}",
    "a {hero} called {name}",
    "a {adj} {hero} named {name}",
    "a {hero} and a {helper}",
)
ANY, THING, OBJECT = "", "thing", "object"


class Plot(NamedTuple):
    kind: str
    steps: list[list[str]]
    lessons: list[str]
    questions: list[list[str]]
    clauses: list[str]


class Story(NamedTuple):
    text: str
    qa: list[tuple[str, str]]
    asked: str  # what a request for it may name


def read_plots() -> list[Plot]:
    plots = []
    for block in read_rows("plots.txt"):
        marked = {mark: [line[2:] for line in block if line[0] == mark] for mark in "=?~@"}
        steps = [line.split("|") for line in block if line[0] not in marked]
        questions = [line.split("|") for line in marked["?"]]
        clauses = [clause for line in marked["~"] for clause in line.split("|")]
        plots.append(Plot(*(marked["@"] or [ANY]), steps, marked["="], questions, clauses))
    return plots


PLOTS = read_plots()
PERSONS = (*WORDS["he heroes"], *WORDS["she heroes"], "girl", "boy", "girl", "boy")


def pronouns(name: str, prefix: str = "") -> dict[str, str]:
    """Slots he, his, him, He, His, Him by the gender of the name, with `prefix` before each."""
    words = ("she", "her", "her") if name in WORDS["girls"] else ("he", "his", "him")
    slots = dict(zip(("he", "his", "him"), words, strict=True))
    slots |= {slot.capitalize(): word.capitalize() for slot, word in slots.items()}
    return {f"{prefix}{slot}": word for slot, word in slots.items()}


def draw_hero(rng: Random, kind: str) -> tuple[str, str]:
    """A hero and a name that fits it."""
    if kind == OBJECT:
        return rng.choice(WORDS["object heroes"]), rng.choice(NAMES)
    hero = rng.choice(ANIMALS if rng.random() < 0.5 else PERSONS)
    female, male = hero in SHE, hero in HE
    names = WORDS["girls"] if female else WORDS["boys"] if male else NAMES
    return hero, rng.choice(names)


def draw_slots(rng: Random, plot: Plot) -> dict[str, str]:
    hero, name = draw_hero(rng, plot.kind)
    friend = rng.choice([other for other in NAMES if other != name])
    places = [place for place in PLACES if place != hero]
    things = WORDS["story things"] + (WORDS["kept things"] if plot.kind == THING else [])
    return {
        "hero": hero,
        "heroes": plural(hero),
        "name": name,
        "friend": friend,
        "helper": rng.choice([animal for animal in ANIMALS if animal != hero]),
        "lesson": rng.choice(plot.lessons),
        "place": rng.choice(places),
        "adj": rng.choice(WORDS["adjectives"]),
        "thing": rng.choice([thing for thing in things if thing != hero]),
        "color": rng.choice(WORDS["colors"]),
        "weather": rng.choice(WEATHER),
        "treat": rng.choice(TREATS),
        "instrument": rng.choice(INSTRUMENTS),
        **pronouns(name),
        **pronouns(friend, "f"),
    }


def subject(rng: Random, plot: Plot, by_thing: bool) -> str:
    """What a request for the plot names, with its slots."""
    if by_thing:
        return rng.choice(("a {thing}", "a {thing}", "a {color} {thing}", "a {hero} and a {thing}"))
    if plot.clauses and rng.random() < 0.25:
        return "a {hero} " + rng.choice(plot.clauses)
    return rng.choice(HERO_SUBJECTS)


def holds(text: str, asked: str, slots: dict[str, str]) -> bool:
    """Whether the story says what `asked` takes for given: not all wordings name all slots."""
    needed = (slot for slot in ("helper", "friend", "place") if f"{{{slot}}}" in asked)
    return all(slots[slot] in text for slot in needed)


def make_story(rng: Random) -> Story:
    """A story of 90 to 200 words, questions that it answers, and what it is about."""
    plot = rng.choice(PLOTS)
    slots = draw_slots(rng, plot)
    by_thing = plot.kind == THING and rng.random() < 0.5
    openings = OBJECT_OPENINGS if plot.kind == OBJECT else THING_OPENINGS if by_thing else OPENINGS
    parts = [rng.choice(step) for step in plot.steps]
    cut = rng.randint(2, 4)
    closing = rng.choice(CLOSINGS)
    paragraphs = (
        " ".join((rng.choice(openings), parts[0])),
        " ".join(parts[1:cut]),
        " ".join((*parts[cut:], closing)),
    )
    text = "\n".join(paragraphs).format(**slots)
    hero, name = slots["hero"], slots["name"]
    pairs = [
        *((asked, answer) for asked, answer in plot.questions),
        ("Who was the story about?", "The story was about a {hero} named {name}."),
        ("What was the {hero}'s name?", "The {hero}'s name was {name}."),
        ("What is the {hero} called?", "The {hero} is called {name}."),
        ("What is the name of the {hero}?", "The name of the {hero} is {name}."),
        ("Who is {friend}?", "{friend} is a {helper}."),
        ("Who did {name} meet?", "{name} met a {helper} named {friend}."),
        ("Was {name} a {hero}?", "Yes, {name} was a {hero}."),
        ("Was {name} a {helper}?", "No, {name} was a {hero}."),
    ]
    if "lesson" in closing:
        pairs.append(("What is the lesson of the story?", "We can learn that {lesson}."))
        pairs.append((f"What did {name} learn?", "{name} learned that {lesson}."))
    if slots["place"] in text and plot.kind != OBJECT and "lived" in paragraphs[0]:
        pairs.append((f"Where did the {hero} live?", "{name} lived near the {place}."))
    asked = [
        (_articles(q.format(**slots)), _articles(a.format(**slots)))
        for q, a in pairs
        if holds(text, q + a, slots)
    ]
    hero_text = subject(rng, plot, by_thing)
    hero_text = hero_text if holds(text, hero_text, slots) else "a {hero}"
    return Story(_articles(text), asked, _articles(hero_text.format(**slots)))


def _articles(text: str) -> str:
    """`a elephant` -> `an elephant`: slots do not know what follows them."""
    words = text.split(" ")
    for i, word in enumerate(words[:-1]):
        if (
            word in ("a", "A")
            and words[i + 1][0] in "aeiou"
            and not words[i + 1].startswith(("uni", "use"))
        ):
            words[i] = word + "n"
    return " ".join(words)
