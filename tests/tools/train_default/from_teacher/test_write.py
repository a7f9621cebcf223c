"""Which of a teacher's answers stay, and that writing goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.train_default.from_teacher.write import Request, fault, request, words_of, write
from tools.train_default.own.marking import COUNTED, NOUNS

STORY = (
    "Once upon a time, there was a newt. The newt lived in a small pond with a frog. One day, the "
    'sun was very hot and the pond was nearly dry. The frog said, "Let\'s go and look for rain!" '
    "So they went up the hill together, and it rained all night."
)
WORDS = words_of(STORY) | {"purple"}
ASKED = Request(1, "Tell me a story about a newt.", "newt", 0.8)


def test_a_good_story_stays() -> None:
    assert fault(ASKED, STORY, True, WORDS) is None
    assert fault(replace(ASKED, noun=None), STORY, True, WORDS) is None
    assert fault(ASKED, STORY, True, WORDS - {"newt"}) is None, "a word of the request"


@pytest.mark.parametrize(
    ("story", "ended", "why"),
    [
        (STORY, False, "has no end"),
        ("There was a newt. The end.", True, "length"),
        (STORY * 9, True, "length"),
        (STORY[:-1], True, "form"),
        (STORY[0].lower() + STORY[1:], True, "form"),
        (STORY.replace('"', "", 1), True, "form"),
        (STORY.replace("pond", "lagoon"), True, "words"),
        (STORY.replace("hot", "hót"), True, "words"),
        (STORY + " The newt lived in a small pond with a frog.", True, "repetition"),
        (STORY.replace("newt", "frog"), True, "subject"),
    ],
)
def test_others_do_not(story: str, ended: bool, why: str) -> None:
    assert fault(ASKED, story, ended, WORDS) == why


def test_a_number_is_always_the_same_request() -> None:
    asked = [request(seed, NOUNS) for seed in range(200)]
    assert asked == [request(seed, NOUNS) for seed in range(200)]
    assert len({each.text for each in asked}) > 100
    assert not {each.noun for each in asked} & COUNTED
    assert all(0.7 <= each.temperature <= 1.0 for each in asked)


class Teacher:
    """Answers every request with a story about it, or, every third time, not to the end."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.chats: list[Any] = []

    def chat_many(
        self, chats: Sequence[Any], options: Sequence[Any], **fixed: Any
    ) -> list[SimpleNamespace]:
        self.seeds += [each["seed"] for each in options]
        self.chats += chats
        reason = {0: "length", 1: "stop", 2: "stop"}
        return [
            SimpleNamespace(
                text=STORY.replace("newt", request(each["seed"], NOUNS).noun or "newt"),
                finish_reason=reason[each["seed"] % 3],
            )
            for each in options
        ]


def test_requests_name_nouns_of_the_real_stories(tmp_path: Path) -> None:
    real = ["He had a gizmo. It was her gizmo.", "She saw the gizmo."]
    asked = Teacher()
    write(asked, real, range(3000), 3000, 100, tmp_path / "told.jsonl")  # type: ignore[arg-type]
    assert any("gizmo" in chat[0]["content"] for chat in asked.chats)


def test_writing_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    out, whole = tmp_path / "told.jsonl", tmp_path / "whole.jsonl"
    real = [STORY, " ".join(NOUNS)]
    teacher = Teacher()
    for count in (6, 15):
        write(teacher, real, range(10, 10 + count), 4, 100, out)  # type: ignore[arg-type]
        with out.open("a") as file:  # killed before it said so
            file.write(out.read_text())
    write(teacher, real, range(10, 25), 4, 100, out)  # type: ignore[arg-type]
    assert teacher.seeds == list(range(10, 25))
    write(Teacher(), real, range(10, 25), 15, 100, whole)  # type: ignore[arg-type]
    whole.with_suffix(".done").unlink()
    with pytest.raises(ValueError, match="remove it"):
        write(Teacher(), real, range(10, 25), 15, 100, whole)  # type: ignore[arg-type]
    assert out.read_text() == whole.read_text()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert 5 <= len(lines) <= 10, "every third answer has no end"
    assert all(line.startswith("<|user|>") and line.endswith("<|end|>") for line in lines)
