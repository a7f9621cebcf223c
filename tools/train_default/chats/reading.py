"""Two models read blindly: pairs of stories in random order, a key kept apart, and marks.

    python -m tools.train_default.chats.reading pairs --old OLD_BUNDLE --new NEW_BUNDLE --out FOLDER
    python -m tools.train_default.chats.reading tally --out FOLDER

`pairs` writes `pairs.md`, which a reader gets, and `key.json`, which no reader sees. The reader
gives each story 1 to 5 for grammar, sense, subject and ending, a line of `marks.txt` for each:
number, A or B, four marks. Replies are drawn as `edgerun run` draws them, by the bundle's own
sampling settings and a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import mean

from tools.train_default.chats.following import SUBJECTS, asks

COUNT = 40
SIDES = ("A", "B")
MARKS = ("grammar", "sense", "subject", "ending")
_LINE = re.compile(rf"(\d+)\s+([AB])((?:\s+[1-5]){{{len(MARKS)}}})")
Marks = Mapping[tuple[int, str], Sequence[int]]


def chosen_subjects(seed: int, count: int = COUNT) -> list[str]:
    """`count` of the subjects that `following` asks for, in random order."""
    return Random(seed).sample([noun for nouns in SUBJECTS.values() for noun in nouns], count)


def shuffled(
    old: Sequence[str], new: Sequence[str], seed: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """Stories A and B of each pair, and which side has the new model's."""
    new_sides = [Random(f"{seed} {number}").choice(SIDES) for number in range(len(old))]
    pairs = [
        (after, before) if side == "A" else (before, after)
        for before, after, side in zip(old, new, new_sides, strict=True)
    ]
    return pairs, new_sides


def read_marks(text: str) -> dict[tuple[int, str], list[int]]:
    """Marks by pair and side.

    Raises:
        ValueError: a line is not a number, A or B, and four marks from 1 to 5, or comes twice.
    """
    marks: dict[tuple[int, str], list[int]] = {}
    for line in filter(str.strip, text.splitlines()):
        match = _LINE.fullmatch(line.strip())
        if match is None or (int(match[1]), match[2]) in marks:
            raise ValueError(
                f"expected a line `NUMBER A|B` and four marks from 1 to 5, once each: {line!r}"
            )
        marks[int(match[1]), match[2]] = [int(mark) for mark in match[3].split()]
    return marks


def tally(marks: Marks, new_sides: Sequence[str]) -> dict[str, float]:
    """Mean marks of both models, and the share of pairs in which the new one has more in all.

    A tie counts as half a pair.

    Raises:
        ValueError: a story has no marks.
    """
    result: dict[str, float] = {}
    sides = {"new": new_sides, "old": ["B" if side == "A" else "A" for side in new_sides]}
    read = {(number, side) for number in range(1, len(new_sides) + 1) for side in SIDES}
    if missing := sorted(read - set(marks)):
        raise ValueError(f"story {missing[0][1]} of pair {missing[0][0]} has no marks")
    given = {
        name: [marks[number, side] for number, side in enumerate(of, 1)]
        for name, of in sides.items()
    }
    for name, rows in given.items():
        for at, mark in enumerate(MARKS):
            result[f"{mark}_{name}"] = round(mean(row[at] for row in rows), 2)
    gains = [sum(new) - sum(old) for new, old in zip(given["new"], given["old"], strict=True)]
    result["new_better"] = mean(1.0 if gain > 0 else 0.5 if gain == 0 else 0.0 for gain in gains)
    return result


def stories(bundle: Path, nouns: Sequence[str], seed: int) -> list[str]:
    import edgerun

    with edgerun.load(bundle) as llm:
        return [
            llm.chat([{"role": "user", "content": asks(noun)}], seed=seed + at, max_tokens=300).text
            for at, noun in enumerate(nouns)
        ]


def write_pairs(old: Path, new: Path, out: Path, seed: int) -> None:
    nouns = chosen_subjects(seed)
    pairs, new_sides = shuffled(stories(old, nouns, seed), stories(new, nouns, seed), seed)
    lines = ["# Pairs of stories"]
    for number, (noun, pair) in enumerate(zip(nouns, pairs, strict=True), 1):
        lines += ["", f"## {number}: {asks(noun)}"]
        for side, story in zip(SIDES, pair, strict=True):
            lines += ["", f"**{side}:** {' '.join(story.split())}"]
    out.mkdir(parents=True, exist_ok=True)
    (out / "pairs.md").write_text("\n".join(lines) + "\n")
    (out / "key.json").write_text(json.dumps(new_sides))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    pairs = commands.add_parser("pairs")
    pairs.add_argument("--old", type=Path, required=True)
    pairs.add_argument("--new", type=Path, required=True)
    pairs.add_argument("--seed", type=int, default=1)
    for command in (pairs, commands.add_parser("tally")):
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "pairs":
        write_pairs(args.old, args.new, args.out, args.seed)
        return
    marks = read_marks((args.out / "marks.txt").read_text())
    print(json.dumps(tally(marks, json.loads((args.out / "key.json").read_text()))))


if __name__ == "__main__":
    main()
