"""Small talk of the default model, drawn from `talk.txt` and `facts.txt`."""

from __future__ import annotations

from random import Random

from tools.train_default.chats.tables import NAMES, WORDS, read_rows

Exchange = tuple[str, str]

TALK = read_rows("talk.txt")  # pairs: what a user may say, what may be answered
FACTS = [line.split("|") for line in read_rows("facts.txt")[0]]
NUMBERS = WORDS["numbers"]
FEELINGS = (
    "I like to talk with you.",
    "Would you like to hear a story?",
    "What would you like to do today?",
)


def vary(rng: Random, text: str) -> str:
    """The ways people type: as written, without the final mark, or all in lower case."""
    kind = rng.random()
    if kind < 0.12:
        return text.lower()
    return text.rstrip("?.!") if kind < 0.2 else text


def pick(rng: Random, options: str) -> str:
    return rng.choice(options.split("|"))


def talk(rng: Random) -> Exchange:
    question, answer = rng.choice(TALK)
    return pick(rng, question), pick(rng, answer)


def fact(rng: Random) -> Exchange:
    question, answer = rng.choice(FACTS)
    return vary(rng, question), answer


def sum_of_two(rng: Random) -> Exchange:
    a, b = rng.randint(0, 6), rng.randint(0, 6)
    question = rng.choice(
        (f"What is {a} plus {b}?", f"{a} + {b}?", f"What is {NUMBERS[a]} plus {NUMBERS[b]}?")
    )
    return question, f"{NUMBERS[a].capitalize()} plus {NUMBERS[b]} is {NUMBERS[a + b]}."


def counting(rng: Random) -> Exchange:
    top = rng.choice((3, 5, 10))
    words = NUMBERS[1 : top + 1]
    return f"Count to {rng.choice((str(top), NUMBERS[top]))}.", ", ".join(words).capitalize() + "."


def introduction(rng: Random) -> list[Exchange]:
    """The user's name, and most times the question whether it was remembered."""
    name = rng.choice(NAMES)
    phrase = rng.choice(
        (f"My name is {name}.", f"I am {name}.", f"Hi, I am {name}!", f"Hello, my name is {name}.")
    )
    reply = rng.choice(
        (f"Nice to meet you, {name}!", f"Hello, {name}! It is nice to meet you.", f"Hi, {name}!")
    )
    turns = [
        (vary(rng, phrase) if rng.random() < 0.3 else phrase, f"{reply} {rng.choice(FEELINGS)}")
    ]
    if rng.random() < 0.3:
        turns.append(talk(rng))
    if rng.random() < 0.7:
        turns.append(
            (
                rng.choice(("What is my name?", "Do you remember my name?", "Who am I?")),
                f"Your name is {name}.",
            )
        )
    return turns


def small_talk(rng: Random) -> list[Exchange]:
    """One to four exchanges about nothing much."""
    if rng.random() < 0.15:
        return introduction(rng)
    makers = (talk, talk, talk, fact, sum_of_two, counting)
    weights = (8, 8, 8, 5, 2, 1)
    return [rng.choices(makers, weights)[0](rng) for _ in range(rng.choice((1, 1, 2, 3, 4)))]
