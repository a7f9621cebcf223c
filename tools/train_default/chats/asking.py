"""What a request for a given story may say: the nouns, the hero, what happens, the place."""

from __future__ import annotations

import re
from random import Random

from tools.train_default.chats.extract import article, hero, plural, subjects
from tools.train_default.chats.smalltalk import vary
from tools.train_default.chats.tables import WORDS

ASKS = (
    "Tell me a story about {}.",
    "Tell me a story about {}.",
    "Tell me a story about {}.",
    "Tell me a story about {}!",
    "Can you tell me a story about {}?",
    "Please tell me a story about {}.",
    "I want to hear a story about {}.",
    "Write a story about {}.",
    "A story about {}, please.",
    "Write a short story about {}.",
    "Tell me a short story about {}.",
    "Do you know a story about {}?",
    "Could you tell me a story about {}?",
    "I would like a story about {}.",
    "Make up a story about {}.",
    "Tell me about {}.",
    "Give me a story about {}.",
    "story about {}",
)
ASKS_ANY = (
    "Tell me a story.",
    "Tell me a story!",
    "Can you tell me a story?",
    "Please tell me a story.",
    "I want to hear a story.",
    "Write a story.",
    "Do you know a story?",
    "Tell me a short story.",
    "A story, please.",
    "Tell me a bedtime story.",
    "tell me something",
)
MORE = (
    "Tell me another story.",
    "Another one, please.",
    "One more story!",
    "Can you tell me another story?",
    "More!",
)
MORE_ABOUT = (
    "Now tell me a story about {}.",
    "Tell me another story about {}.",
    "And now a story about {}?",
)
ONLY_ONE = frozenset(WORDS["only one"])
DEEDS = (
    r"(?:loved|liked|wanted) to [^.,!?\"]{3,30}",
    r"(?:found|saw|lost|had|met) (?:an?|his|her|its) [^.,!?\"]{3,30}",
)


def named(rng: Random, story: str, noun: str) -> str:
    """`a cat`, `the cat`, `cats`, or `a small cat` where the story begins with that."""
    if noun in ONLY_ONE:
        return f"the {noun}"
    before = re.search(rf"\ban? ((?:[a-z]+,? )?[a-z]+ {noun})\b", story[:250])
    if before and rng.random() < 0.3:
        return article(before[1])
    return article(noun) if rng.random() < 0.8 else rng.choice((f"the {noun}", plural(noun)))


def deed(rng: Random, story: str, main: tuple[str, str, str]) -> str | None:
    """`a cat who found a key`, by a sentence whose subject is the hero."""
    name, _, noun = main
    for pattern in rng.sample(DEEDS, len(DEEDS)):
        match = re.search(rf"\b(?:{name}|He|She) ({pattern})[.,]", story[:500])
        if match:
            return f"{article(noun)} {rng.choice(('who', 'who', 'that'))} {match[1]}"
    return None


def about(rng: Random, story: str) -> str | None:
    """What a request for this story could name; None where nothing comes early and often."""
    nouns, main = subjects(story), hero(story)
    if main and main[2] not in story[:250]:
        main = None
    kind = rng.random()
    if main and kind < 0.2:
        name, adjectives, noun = main
        called = rng.choice(("named", "named", "called"))
        phrase = rng.choice((noun, adjectives))
        return f"{article(phrase)} {called} {name}"
    if main and kind < 0.3 and (what := deed(rng, story, main)):
        return what
    heads = ([main[2]] if main else []) + [noun for noun in nouns if not main or noun != main[2]]
    if not heads:
        return None
    if len(heads) > 1 and kind < 0.5:
        return f"{named(rng, story, heads[0])} and {named(rng, story, rng.choice(heads[1:3]))}"
    # A girl and a boy are in most stories: name the rarer noun.
    head = heads[1] if len(heads) > 1 and heads[0] in ("girl", "boy", "man") else heads[0]
    phrase = named(rng, story, head)
    place = re.search(rf"\b(?:in|to) the ({'|'.join(WORDS['places'])})\b", story[:400])
    return f"{phrase} in the {place[1]}" if place and rng.random() < 0.1 else phrase


def request(rng: Random, story: str, later: bool, subject: str | None = None) -> str:
    """A request that this story answers; `later`: after another story; `subject`: if known."""
    subject = subject or about(rng, story)
    if subject is None or rng.random() < 0.1:
        return vary(rng, rng.choice(MORE if later else ASKS_ANY))
    asks = MORE_ABOUT if later and rng.random() < 0.5 else ASKS
    return vary(rng, rng.choice(asks).format(subject))
