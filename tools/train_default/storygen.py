"""A small grammar of children's stories: every story fits the subject that was asked for.

The plots stand in `plots.txt`: steps with slots in braces; the slots are filled once a story, so
that the hero, the place and the thing stay the same through it.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from extract import ANIMALS, article
from tables import NAMES, WORDS, read_rows

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

OPENINGS = (
    "Once upon a time, there was a {adj} {hero} named {name}. {name} lived near a {place}.",
    "Once upon a time, a {adj} {hero} named {name} lived by the {place}.",
    "One day, a {adj} {hero} named {name} went to the {place}. It was a {weather} day.",
    "There once was a {adj} {hero} named {name}. Every day, {name} liked to go to the {place}.",
    "In a small house near the {place}, there lived a {adj} {hero} called {name}.",
)
PLOTS = read_rows("plots.txt")
CLOSINGS = (
    "{name} learned that {lesson}.",
    "That day, {name} learned that {lesson}.",
    "And they all lived happily ever after.",
    "{name} went home with a big smile.",
    "The end.",
)


class Story(NamedTuple):
    text: str
    qa: list[tuple[str, str]]


def make_story(rng: Random, hero: str | None = None, name: str | None = None) -> Story:
    """A story of 90 to 170 words about `hero` (an animal or a child; drawn where not given)."""
    hero = hero or rng.choice((*ANIMALS, "girl", "boy", "girl", "boy"))
    people = rng.sample([other for other in NAMES if other != name], 2)
    helper = rng.choice([animal for animal in ANIMALS[:40] if animal != hero])
    *plot, lesson, qa = rng.choice(PLOTS)
    slots = {
        "hero": hero,
        "name": name or people[0],
        "friend": people[1],
        "helper": helper,
        "lesson": lesson[2:],
        "place": rng.choice(PLACES),
        "adj": rng.choice(WORDS["adjectives"]),
        "thing": rng.choice(WORDS["story things"]),
        "color": rng.choice(WORDS["colors"]),
        "weather": rng.choice(WEATHER),
        "treat": rng.choice(TREATS),
    }
    parts = [rng.choice(part.split("|")) for part in plot]
    cut = rng.randint(2, 4)
    closing = rng.choice(CLOSINGS)
    paragraphs = (
        " ".join((rng.choice(OPENINGS), parts[0])),
        " ".join(parts[1:cut]),
        " ".join((*parts[cut:], closing)),
    )
    text = "\n".join(part for part in paragraphs if part).format(**slots)
    asked, answer = qa[2:].format(**slots).split("|")
    lines = [
        (asked, answer),
        ("Who was the story about?", f"The story was about {article(hero)} named {slots['name']}."),
        (f"Who is {slots['friend']}?", f"{slots['friend']} is {article(helper)}."),
        (
            f"Who did {slots['name']} meet?",
            f"{slots['name']} met {article(helper)} named {slots['friend']}.",
        ),
    ]
    return Story(_articles(text), lines)


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
