"""Stories about anything: the request's noun is the story's, and nothing that is counted with."""

import re
from random import Random

import pytest

from tools.train_default.chats.anything import (
    SYLLABLES,
    chats_about_anything,
    invented,
    nouns_of_books,
    subject_of,
)
from tools.train_default.chats.following import follows, opening
from tools.train_default.own.marking import COUNTED

DOG = "One day, a dog went to the park. The dog saw a ball. Dogs like balls. It was a big day."
LILY = "Once upon a time, there was a little girl named Lily. Lily had a hat. The girl was happy."
STORIES = [DOG, LILY, "It rained. It rained all day.", DOG.replace("dog", "duck") + " Quack!"]
NOUNS = ["anchor", "xylophone"]


@pytest.fixture(scope="module")
def told():
    return list(chats_about_anything(STORIES, NOUNS, seed=3, rounds=40))


def test_the_subject_is_taken_out_everywhere_and_the_request_names_the_new_one(told):
    assert len(told) > 60
    for asked, answered in told:
        story = answered["content"]
        noun = re.search(r"about an? ([a-z]+)", asked["content"], re.IGNORECASE)[1].lower()
        assert follows(opening(story), noun)
        assert not re.search(r"\b(?:dogs?|girl)\b", story, re.IGNORECASE)


def test_words_of_books_and_words_that_nobody_knows(told):
    said = " ".join(answered["content"] for _, answered in told)
    of_books = len(re.findall("anchor|xylophone", said))
    assert 0 < of_books < 2 * len(told)
    assert "an anchor" in said
    assert "a anchor" not in said


def test_the_same_seed_says_the_same(told):
    assert told == list(chats_about_anything(STORIES, NOUNS, seed=3, rounds=40))
    assert told != list(chats_about_anything(STORIES, NOUNS, seed=4, rounds=40))


def test_stories_that_do_not_allow_it_stay_out(told):
    said = " ".join(answered["content"] for _, answered in told)
    assert "rained" not in said  # about nothing
    assert "Quack" not in said  # only ducks do
    assert subject_of(STORIES[2]) is None


def test_nouns_come_often_and_are_not_those_that_are_counted_with(tmp_path):
    counted = min(COUNTED)
    (tmp_path / "stories").mkdir()
    text = f"a harpoon. a {counted}, the running. her kindness! an oar. " * 3 + "a rarity. " * 2
    (tmp_path / "stories" / "fables_mit.jsonl").write_text(text)
    nouns = nouns_of_books(tmp_path, ["He had a gizmo.", "It was her gizmo, and a doodad."])
    assert {"harpoon", "oar", "gizmo"} <= set(nouns)
    assert not {counted, "running", "kindness", "rarity", "doodad"} & set(nouns)


def test_invented_words_are_words():
    words = {invented(Random(seed)) for seed in range(300)}
    assert len(words) > 250
    assert all(re.fullmatch("[a-z]{2,20}", word) for word in words)
    many = {invented(Random(seed)) for seed in range(20_000)}
    assert not many & COUNTED
    assert not [word for word in many if any(part in word for part in SYLLABLES["not said"])]
