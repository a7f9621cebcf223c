"""How much faster replies are that are drafted (``edgerun/engine/drafting``).

    python -m tools.bench.drafts MODEL [--words-of OTHER] [--tokens 200] [--rounds 3]

Two copies of the model take turns, with ``draft="lookup"`` and ``"none"``, over four kinds of
questions, each about a text of this repository or about none: rewriting a text, summing it up,
changing code, and chatting. With ``--words-of`` the model says what another one, of a vocabulary
that is no larger, replied: so a model with random weights takes its time, and the words are real.
The table has tokens of a reply a second, behind the first one, without drafts and with them, the
median of the ratios in a round, the least and the most, tokens a call, and how many of the tokens
that were drafted were right.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import edgerun
from edgerun import Completion
from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.processor import Filter, Processor
from edgerun.model.chat.format import ChatFormat

ROOT = Path(__file__).parents[2]
REWRITE, SUM_UP, CODE = (
    "Correct the grammar of this text and return all of it:\n\n",
    "Sum this text up in five sentences:\n\n",
    "Add docstrings to this Python code and return all of it:\n\n",
)
CHATS = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a dragon who is afraid of fire.",
    "List ten fruits with a sentence about each.",
)


def questions(characters: int = 1500) -> dict[str, list[str]]:
    """Some of each kind."""
    prose = [(ROOT / "docs" / name).read_text("utf-8") for name in ("fpga.md", "chat.md")]
    code = [(ROOT / "edgerun/engine" / name).read_text("utf-8") for name in ("slots.py", "call.py")]
    return {
        "rewriting": [REWRITE + text[300 : 300 + characters] for text in prose],
        "summing up": [SUM_UP + text[300 : 300 + characters] for text in prose],
        "code": [CODE + text[:characters] for text in code],
        "chatting": list(CHATS),
    }


@dataclass(frozen=True)
class Script(Processor):
    """Leaves the ids of a text to choose from, one after the other."""

    order: ClassVar[int] = 99
    ids: tuple[int, ...] = ()

    @property
    def is_active(self) -> bool:
        return bool(self.ids)

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        return _Reading(self.ids)


class _Reading:
    def __init__(self, ids: tuple[int, ...]) -> None:
        self._ids, self._place = ids, 0

    def apply(self, candidates: Candidates) -> Candidates:
        return candidates.take(np.array([self._ids[self._place]], np.int64))

    def accept(self, id_: int) -> None:
        self._place += 1

    def undo(self, id_: int) -> None:
        self._place -= 1


@dataclass(frozen=True)
class Task:
    """A question as ids, and how it is answered."""

    kind: str
    prompt: list[int]
    sampling: dict[str, Any]


def tasks_of(model: str, temperature: float, tokens: int, words_of: str | None) -> list[Task]:
    """All questions, as the model's chat format has them, or those of who gives the words."""
    tasks = []
    with edgerun.load(words_of or model, draft="none") as llm:
        chats = ChatFormat(llm.tokenizer, llm.model.template)
        for kind, texts in questions().items():
            for text in texts:
                messages = [{"role": "user", "content": text}]
                (chat,) = chats.encode_many([messages], context=llm.model.context)
                sampling: dict[str, Any] = {
                    "temperature": temperature,
                    "seed": 1,
                    "max_tokens": tokens,
                }
                if words_of:
                    said = llm.generate(chat.ids, **sampling).ids
                    script = Script(ids=tuple(said))
                    sampling = {"processors": [script], "max_tokens": max(1, len(said))}
                tasks.append(Task(kind, chat.ids, sampling))
    return tasks


def main() -> None:
    """Measures what the command line names and prints a table for each temperature."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--words-of", metavar="MODEL")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 0.7])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    for temperature in given.temperatures:
        tasks = tasks_of(given.model, temperature, given.tokens, given.words_of)
        sys.stdout.write(f"\nTemperature {temperature:g}:\n\n")
        for line in table(given, tasks):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def table(given: argparse.Namespace, tasks: list[Task]) -> list[str]:
    """A row for each kind of question.

    Raises:
        SystemExit: a draft changed a text.
    """
    lines = [
        "| | tokens/s | drafted | times as fast | tokens a call | drafted tokens right |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with (
        edgerun.load(given.model, threads=given.threads, draft="none") as plain,
        edgerun.load(given.model, threads=given.threads, draft="lookup") as drafting,
    ):
        for kind in dict.fromkeys(task.kind for task in tasks):
            rounds = []
            for _ in range(given.rounds):
                pairs = [
                    (answer(plain, task), answer(drafting, task))
                    for task in tasks
                    if task.kind == kind
                ]
                if any(without.ids != drafted.ids for without, drafted in pairs):
                    raise SystemExit(f"{kind}: a draft changed a text")
                rounds.append(pairs)
            lines.append(row(kind, rounds))
    return lines


def answer(llm: edgerun.LLM, task: Task) -> Completion:
    """A reply to a question that was asked before, so that its time is that of the reply."""
    return llm.generate(task.prompt, **task.sampling)


def row(kind: str, rounds: list[list[tuple[Completion, Completion]]]) -> str:
    """The figures of one kind of question."""
    speeds = [tuple(speed([pair[side] for pair in pairs]) for side in (0, 1)) for pairs in rounds]
    ratios = [drafted / without for without, drafted in speeds]
    stats = [drafted.stats for pairs in rounds for _, drafted in pairs]
    tokens, calls = sum(each.decode_tokens for each in stats), sum(s.decode_steps for s in stats)
    guessed, right = (
        sum(each.drafted_tokens for each in stats),
        sum(each.accepted_tokens for each in stats),
    )
    middle = [statistics.median(each[side] for each in speeds) for side in (0, 1)]
    return (
        f"| {kind} | {middle[0]:.1f} | {middle[1]:.1f} | {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f}–{max(ratios):.2f}) | {tokens / max(1, calls):.2f} | "
        f"{right} of {guessed} |"
    )


def speed(replies: list[Completion]) -> float:
    """Tokens behind the first a second."""
    stats = [reply.stats for reply in replies]
    return sum(each.decode_tokens for each in stats) / sum(each.decode_s for each in stats)


if __name__ == "__main__":
    main()
