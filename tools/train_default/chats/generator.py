"""Chats of the default model: requests for stories, questions about them, and small talk. Seeded.

Stories come from three places: real ones, the teacher's, and our own grammar. A request names what
the story at hand is about, so that the model learns to keep to the subject that it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from tools.train_default.chats.asking import request
from tools.train_default.chats.extract import hero, questions
from tools.train_default.chats.smalltalk import Exchange, small_talk, talk, vary
from tools.train_default.chats.storygen import make_story

CONTINUE = (
    "Continue this story:",
    "Continue the story:",
    "Go on:",
    "What happens next?",
    "Finish this story:",
)
SYSTEM = (
    "You are a friendly storyteller.",
    "You are a helpful assistant.",
    "You tell stories to children.",
    "You are edgerun's small story model.",
    "You are a kind and helpful story model. Answer in simple words.",
)
PRAISE = (
    "I liked that story.",
    "That was a nice story!",
    "What a good story!",
    "That was great, thank you!",
)
PRAISE_ANSWERS = (
    "I am glad that you liked it!",
    "Thank you! Would you like another story?",
    "I am happy that you liked it.",
)
UNKNOWN = (
    "I am not sure. The story does not say.",
    "The story does not tell us that.",
    "I do not know. The story did not say.",
)
UNKNOWN_ASKS = (
    "How old was {}?",
    "What is the last name of {}?",
    "What did {} eat for breakfast?",
    "What color are the eyes of {}?",
)


def follow_up(rng: Random, story: str, exchanges: Sequence[Exchange] = ()) -> list[Exchange]:
    """Questions about the story just told; now and then one that it does not answer, or praise."""
    pairs = [*exchanges, *questions(rng, story)]
    rng.shuffle(pairs)
    turns = pairs[: rng.choice((1, 1, 2, 2, 3))]
    main = hero(story)
    if main and rng.random() < 0.05:
        turns.append((rng.choice(UNKNOWN_ASKS).format(main[0]), rng.choice(UNKNOWN)))
    if rng.random() < 0.12:
        turns.append((rng.choice(PRAISE), rng.choice(PRAISE_ANSWERS)))
    return [(vary(rng, asked), answer) for asked, answer in turns]


def continuation(rng: Random, story: str) -> Exchange | None:
    """The user begins a story and the model goes on."""
    first, _, following = story.partition(". ")
    if not 30 < len(first) < 150 or len(following) < 200 or "\n" in first or '"' in first:
        return None
    return f"{rng.choice(CONTINUE)} {first}.", following


def story_chat(rng: Random, stories: Sequence[str], own_share: float) -> list[Exchange]:
    """A chat around the first story or one of our own; sometimes another of the stories follows."""
    turns = [talk(rng)] if rng.random() < 0.15 else []
    own = make_story(rng) if rng.random() < own_share else None
    story = own.text if own else stories[0]
    begun = continuation(rng, story) if rng.random() < 0.06 else None
    asked = request(rng, story, later=False, subject=own.asked if own else None)
    turns.append(begun or (asked, story))
    if rng.random() < 0.7:
        turns += follow_up(rng, story, own.qa if own else ())
    if len(story) < 800 and rng.random() < 0.2:
        second = rng.choice(stories)
        if len(second) < 800:
            turns.append((request(rng, second, later=True), second))
    elif rng.random() < 0.1:
        turns.append(talk(rng))
    return turns


def to_messages(rng: Random, turns: Sequence[Exchange]) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": rng.choice(SYSTEM)}] if rng.random() < 0.08 else []
    for asked, answer in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return messages


def chats(
    stories: Sequence[str],
    seed: int,
    own_share: float = 0.15,
    small_share: float = 0.35,
    change: Callable[[Random, str], str] | None = None,
) -> Iterator[list[dict[str, str]]]:
    """One chat around every story, in a seeded order, with small talk between them.

    `change` makes another story of a story (`swap.vary_story`), before requests are made for it.
    """
    rng = Random(seed)
    order = list(range(len(stories)))
    rng.shuffle(order)
    for i in order:
        while rng.random() < small_share:
            yield to_messages(rng, small_talk(rng))
        drawn = [stories[i], stories[rng.randrange(len(stories))]]
        if change:
            drawn = [change(rng, story) for story in drawn]
        yield to_messages(rng, story_chat(rng, drawn, own_share))
