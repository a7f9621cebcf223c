"""What a story is about, and questions that it answers: found by patterns, without a model."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

from tools.train_default.chats.tables import WORDS


def nouns_of(*kinds: str) -> list[str]:
    """The words of some lists, each once."""
    return list(dict.fromkeys(noun for kind in kinds for noun in WORDS[kind]))


ANIMAL_KINDS = ("walkers", "fliers", "swimmers")
HEROES = ("she heroes", "he heroes")
THING_KINDS = (
    *("kept things", "vehicles", "flying things", "foods"),
    *("buildings", "plants", "landscapes", "toys", "furniture"),
)
ANIMALS = nouns_of("animals", "more animals", *ANIMAL_KINDS)
PEOPLE = nouns_of("people", "more people", *HEROES)
THINGS = nouns_of("things", "more things", *THING_KINDS)
NOUNS = frozenset((*ANIMALS, *PEOPLE, *THINGS))
NOT_ABOUT = frozenset(WORDS["not about"])
PLURALS = {
    "mouse": "mice",
    "goose": "geese",
    "wolf": "wolves",
    "leaf": "leaves",
    "shelf": "shelves",
    "elf": "elves",
    "calf": "calves",
    "thief": "thieves",
    **{noun: noun for noun in WORDS["one as many"]},
}
KIND = r"(?P<kind>(?:[a-z]+ ){0,3}?(?P<noun>[a-z]+))"
NAMED = re.compile(rf"\b(?:an?|the) {KIND},? (?:named|called) (?P<name>[A-Z][a-z]+)")
OPENING = re.compile(r"there (?:was|lived) (an? (?:[a-z]+ ){0,2}[a-z]+)[.,]")
ABOUT = (
    "Who was the story about?",
    "What was the story about?",
    "Who is the story about?",
    "Who was in the story?",
)
PLACES = rf"(?:to|in|into) the (?:[a-z]+ )?(?:{'|'.join(WORDS['places'])})"
FEELINGS = "happy|sad|scared|angry|proud|excited|surprised|tired|hungry"
SHE = frozenset(WORDS["she"])
HE = frozenset(WORDS["he"])
Exchange = tuple[str, str]


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' and not noun.startswith(('uni', 'use')) else 'a'} {noun}"


def plural(noun: str) -> str:
    if noun in PLURALS:
        return PLURALS[noun]
    if noun.endswith("man"):
        return f"{noun[:-2]}en"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"


def subjects(story: str) -> list[str]:
    """Nouns of the story that a child would say it is about, most mentioned first.

    Such a noun comes early (in the first 50 words) and at least twice, or three times in all.
    """
    words = re.findall(r"[a-z]+", story.lower())
    counted, opening = Counter(words), set(words[:50])
    subjects_by_noun = {}
    for noun in NOUNS.intersection(words).difference(NOT_ABOUT):
        count = counted[noun] + counted[plural(noun)] * (plural(noun) != noun)
        if count >= 2 and noun in opening:
            subjects_by_noun[noun] = count
    return sorted(subjects_by_noun, key=lambda noun: (-subjects_by_noun[noun], noun))


def hero(story: str) -> tuple[str, str, str] | None:
    """(name, kind with adjectives, noun) of the first `a little girl named Lily`."""
    match = NAMED.search(story)
    if not match or story.count(match["name"]) < 2:
        return None
    return match["name"], match["kind"], match["noun"]


def pronoun(noun: str, story: str, name: str) -> str:
    if noun in SHE or noun in HE:
        return "She" if noun in SHE else "He"
    after = re.findall(rf"{name}[^.]*\. (She|He|It)\b", story)
    return after[0] if after else name


def _who(rng: Random, name: str, kind: str, noun: str, it: str) -> list[Exchange]:
    other = rng.choice([animal for animal in ANIMALS[:30] if animal != noun])
    own = {"She": "Her", "He": "His", "It": "Its"}.get(it, f"The {noun}'s")
    about = f"The story was about {article(kind)} named {name}."
    return [
        (
            rng.choice(
                (
                    f"What was the name of the {noun}?",
                    f"What was the {noun}'s name?",
                    f"what is the {noun} called?",
                )
            ),
            f"{own} name was {name}." if rng.random() < 0.5 else f"The {noun}'s name was {name}.",
        ),
        (rng.choice(ABOUT), about),
        (f"Who is {name}?", f"{name} is {article(kind)}."),
        (
            rng.choice((f"Was {name} {article(noun)}?", f"Is {name} {article(noun)}?")),
            f"Yes, {name} was {article(kind)}.",
        ),
        (f"Was {name} {article(other)}?", f"No, {name} was {article(kind)}."),
    ]


def _did(rng: Random, story: str, name: str, noun: str, it: str) -> list[Exchange]:
    """Questions about what the hero did, by sentences whose subject is the name or the pronoun."""
    subject = rf"(?:{name}|{it})"
    rows = (
        (
            rf"\b{subject} (?:loved|liked) to ([^.,!?\"]+)",
            f"What did {name} like to do?",
            "{} liked to {}.",
        ),
        (
            rf"\b{subject} (?:went|ran|walked|came) ({PLACES})\b",
            f"Where did {name} go?",
            "{} went {}.",
        ),
        (rf"\b{subject} lived (in [^.,!?\"]+)", f"Where did {name} live?", "{} lived {}."),
        (rf"\b{subject} saw (an? [^.,!?\"]+)", f"What did {name} see?", "{} saw {}."),
        (rf"\b{subject} found (an? [^.,!?\"]+)", f"What did {name} find?", "{} found {}."),
        (rf"\b{subject} met (an? [^.,!?\"]+)", f"Who did {name} meet?", "{} met {}."),
        (
            rf"\b{subject} wanted to ([^.,!?\"]+)",
            f"What did {name} want to do?",
            "{} wanted to {}.",
        ),
        (
            rf"\b{subject} lost ((?:his|her|its) [^.,!?\"]+)",
            f"What did {name} lose?",
            "{} lost {}.",
        ),
        (
            rf"\b{subject} had (an? [^.,!?\"]+)",
            f"What did {name} have?",
            "{} had {}.",
        ),
        (
            rf"\b{subject} (?:felt|was) (?:so |very )?({FEELINGS})\b",
            f"How did {name} feel?",
            "{} felt {}.",
        ),
    )
    exchanges = []
    for pattern, question, answer in rows:
        match = re.search(pattern, story)
        if match and len(match[1]) < 70:
            wording = question if rng.random() < 0.6 else question.replace(name, f"the {noun}")
            exchanges.append((wording, answer.format(rng.choice((name, it)), match[1].strip())))
    return exchanges


def _ending(rng: Random, story: str) -> list[Exchange]:
    sentences = re.split(r"(?<=[.!?])\s+", story.strip())
    last = sentences[-1]
    if last.lower().startswith("the end") and len(sentences) > 1:
        last = sentences[-2]
    exchanges = []
    if '"' not in last and 20 < len(last) < 160:
        exchanges.append(
            (
                rng.choice(
                    ("How did the story end?", "What happened at the end?", "How does it end?")
                ),
                last,
            )
        )
    lesson = re.search(r"learned (?:that|to) [^.!?\"]{10,110}[.!]", story)
    if lesson:
        wording = rng.choice(
            (
                "What is the lesson of the story?",
                "What can we learn from the story?",
                "What is the moral?",
            )
        )
        text = re.sub(r"^learned ", "We can learn ", lesson[0])
        exchanges.append(
            (wording, re.sub(r"\b(she|he|they) (should|could|can|must)\b", r"we \2", text))
        )
    return exchanges


def questions(rng: Random, story: str) -> list[Exchange]:
    """All question and answer pairs that the patterns find, in random order."""
    exchanges = _ending(rng, story)
    main = hero(story)
    if main:
        name, kind, noun = main
        it = pronoun(noun, story, name)
        exchanges += _who(rng, name, kind, noun, it) + _did(rng, story, name, noun, it) * 2
    else:
        first = OPENING.search(story)
        if first:
            exchanges.append((rng.choice(ABOUT), f"The story was about {first[1]}."))
    rng.shuffle(exchanges)
    return list(dict.fromkeys(exchanges))
