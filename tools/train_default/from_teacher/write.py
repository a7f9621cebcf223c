"""Have a teacher answer requests for stories, and keep the good answers: more text of the style.

    python -m tools.train_default.from_teacher.write --bundle teacher-bundle/ --words train.txt \\
        --count 20000 --out text/told.jsonl

The teacher is an exported bundle, and edgerun runs it; no torch. A request has a number, which is
the seed of its words, of its temperature and of its answer, so that the same numbers give the same
text on the same machine. The file has a line for every answer that stays, and beside it, in
`<out>.done`, stands how many requests were answered and the bytes of what stayed; the same command
goes on from there, and drops what a kill left behind them.

An answer stays that ended by itself, is of a story's length, spelled with words of the real stories
and of the request, says no six words in a row twice, and names its subject in the first sentences.
No request names a subject that is counted with; those that do not stand in this project's lists are
nouns of the real stories.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import edgerun
from edgerun import LLM
from tools.train_default.chats.following import follows, loops, opening
from tools.train_default.own.marking import nouns_of, requests
from tools.train_default.tokenizer import render_chat

TEMPERATURES = 0.7, 1.0
MIN_P = 0.05
DRY_MULTIPLIER, DRY_LENGTH = 0.8, 3  # without, most of what does not stay repeats itself
LENGTHS = 200, 2000  # characters
OFTEN = 2  # stories that speak of a noun which requests name


@dataclass(frozen=True)
class Request:
    """A request for a story, the noun that it names, if any, and how it is answered."""

    seed: int
    text: str
    noun: str | None
    temperature: float


def request(seed: int, nouns: Sequence[str]) -> Request:
    """That of a number."""
    rng = Random(seed)
    ((text, noun),) = requests(rng, 1, nouns)
    return Request(seed, text, noun, rng.uniform(*TEMPERATURES))


def words_of(text: str) -> set[str]:
    """Lower-case words."""
    return set(re.findall(r"[a-z]+", text.lower()))


def fault(asked: Request, story: str, ended: bool, words: set[str]) -> str | None:
    """Why an answer does not stay; None if it does."""
    if not ended:
        return "has no end"
    if not LENGTHS[0] <= len(story) <= LENGTHS[1]:
        return "length"
    if story[-1] not in '.!?"' or not story[0].isupper() or story.count('"') % 2:
        return "form"
    if not story.isascii() or not words_of(story) <= words | words_of(asked.text):
        return "words"
    if loops(story):
        return "repetition"
    if asked.noun is not None and not follows(opening(story), asked.noun):
        return "subject"
    return None


def answers(llm: LLM, asked: Sequence[Request], max_tokens: int) -> list[tuple[str, bool]]:
    """Text of each answer, and whether it ended by itself."""
    completions = llm.chat_many(
        [[{"role": "user", "content": each.text}] for each in asked],
        [{"seed": each.seed, "temperature": each.temperature} for each in asked],
        max_tokens=max_tokens,
        top_p=0.95,
        min_p=MIN_P,
        repetition_penalty=1.0,
        dry_multiplier=DRY_MULTIPLIER,
        dry_allowed_length=DRY_LENGTH,
    )
    return [(each.text.strip(), each.finish_reason == "stop") for each in completions]


def put_down(note: Path, done: int, size: int) -> None:
    """Notes how many requests were answered, and the bytes of the answers that stayed."""
    note.with_suffix(".new").write_text(f"{done} {size}")
    os.replace(note.with_suffix(".new"), note)


def write(
    llm: LLM,
    real: Sequence[str],
    numbers: range,
    batch: int,
    max_tokens: int,
    out: Path,
) -> None:
    """Answers the requests of some numbers, so many at a time.

    Args:
        real: stories whose words are allowed, and whose nouns are asked for.

    Raises:
        ValueError: there is a file of answers, but no note of how many requests they are of.
    """
    note = out.with_suffix(".done")
    if not note.exists():
        if out.exists():
            raise ValueError(f"{out} has no {note.name} beside it: remove it, or name another file")
        put_down(note, 0, 0)
    done, size = map(int, note.read_text().split())
    out.touch()
    os.truncate(out, size)
    words, nouns = words_of(" ".join(real)), nouns_of(real, OFTEN)
    began, stayed, asked_before, faults = time.time(), 0, done, dict[str, int]()
    while done < len(numbers):
        asked = [request(seed, nouns) for seed in numbers[done : done + batch]]
        lines = []
        for each, (story, ended) in zip(asked, answers(llm, asked, max_tokens), strict=True):
            why = fault(each, story, ended, words)
            if why is not None:
                faults[why] = faults.get(why, 0) + 1
                continue
            pair = ({"role": "user", "content": each.text}, {"role": "assistant", "content": story})
            lines.append(json.dumps(render_chat(list(pair))) + "\n")
        with out.open("a", encoding="utf-8") as file:
            file.writelines(lines)
            size = file.tell()
        done, stayed = done + len(asked), stayed + len(lines)
        put_down(note, done, size)
        hours = (time.time() - began) / 3600
        share, speed = stayed / (done - asked_before), stayed / hours
        print(f"{done} answered, {share:.0%} stay, {speed:.0f} an hour; {faults}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument(
        "--words",
        type=Path,
        required=True,
        help="real stories: words, nouns",
    )
    parser.add_argument("--count", type=int, default=20_000, help="requests in all")
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--batch", type=int, default=256, help="answered together")
    parser.add_argument("--max-tokens", type=int, default=450)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    real = args.words.read_text(encoding="utf-8").split("<|endoftext|>")
    numbers = range(args.first, args.first + args.count)
    with edgerun.load(args.bundle, max_sessions=args.batch) as llm:
        write(llm, real, numbers, args.batch, args.max_tokens, args.out)


if __name__ == "__main__":
    main()
