"""What training makes of the default model's own replies, and how replies are counted."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.train_default.batches import PAD, Mix, Source, check_mix
from tools.train_default.chats.extract import plural
from tools.train_default.chats.following import SUBJECTS, TURNS, asks, score
from tools.train_default.own.marking import (
    COUNTED,
    EARLY,
    NOUNS,
    Reply,
    marked,
    nouns_of,
    pack,
    repeats,
    requests,
    shares,
    taught,
    towards,
    without_repeats,
)

STORY = "There was a newt. It swam in a pond all day and was happy. The end."


def reply(ids: list[int], **fields: object) -> Reply:
    usual = {"prompt": [7, 8], "text": STORY, "noun": "newt", "greedy": True, "ended": True}
    return Reply(ids=ids, **{**usual, **fields})


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 5))
def test_a_token_repeats_where_its_run_stands_before_as_well(ids: list[int], size: int) -> None:
    runs = [tuple(ids[max(0, at + 1 - size) : at + 1]) for at in range(len(ids))]
    expected = [len(run) == size and run in runs[:at] for at, run in enumerate(runs)]
    assert repeats(ids, size).tolist() == expected


def test_only_the_end_of_a_repeated_run_is_unwanted() -> None:
    ids, targets = marked(reply([1, 2, 3, 4, 1, 2, 3]), repeat=3)
    assert ids.tolist() == [7, 8, 1, 2, 3, 4, 1, 2]
    assert targets.tolist() == [PAD] * 7 + [PAD - 1 - 3]


def test_a_good_reply_is_learned_from_its_first_token_to_its_end() -> None:
    own = list(range(100, 170))
    ids, targets = marked(reply(own, greedy=False), repeat=3)
    assert targets.tolist() == [PAD, *own]
    assert ids.tolist() == [7, 8, *own[:-1]]


def test_good_replies_need_not_be_learned() -> None:
    good = reply(list(range(100, 170)), greedy=False)
    assert pack([marked(good, repeat=3)], context=80)
    assert not pack([marked(good, repeat=3, learn_good=False)], context=80)
    _, targets = marked(reply([*range(100, 170), 100, 101], greedy=False), 2, learn_good=False)
    assert targets[targets != PAD].tolist() == [PAD - 1 - 101]


@pytest.mark.parametrize(
    "fields",
    [
        {"greedy": True},
        {"ended": False},
        {"noun": None},
        {"noun": "toad"},
        {"ids": [5] * 20},
        {"text": f"{STORY} {STORY}"},
        {"text": "One day it rained. It rained all day. Then a newt came."},
    ],
)
def test_what_is_not_good_is_not_learned(fields: dict[str, object]) -> None:
    usual = {"ids": list(range(70)), "greedy": False}
    assert reply(**usual).is_good
    assert not reply(**{**usual, **fields}).is_good


def test_rows_hold_every_marked_reply_once() -> None:
    replies = [reply([n, n, n, n]) for n in range(20)] + [reply([1, 2, 3, 4])]
    rows = pack((marked(each, repeat=2) for each in replies), context=12)
    assert len(rows) == 10  # two replies of five ids in each
    unwanted = np.concatenate([PAD - 1 - targets[targets < PAD] for _, targets in rows])
    assert sorted(unwanted.tolist()) == sorted([*range(20), *range(20)])
    for ids, targets in rows:
        assert ids[:5].tolist() == [7, 8, *[PAD - 1 - targets[3]] * 3]
        assert ids[10:].tolist() == targets[10:].tolist() == [PAD, PAD]


def test_no_request_names_what_is_counted_in_the_end() -> None:
    assert COUNTED.isdisjoint(NOUNS) and len(NOUNS) > 400
    for text, noun in requests(Random(1), 500):
        assert noun is None or noun in text.lower() or plural(noun) in text.lower()
        assert COUNTED.isdisjoint(text.lower().strip(".!?").split())


def test_unlisted_subjects_are_in_no_word_list() -> None:
    assert COUNTED.issuperset(SUBJECTS["unlisted"]) and len(SUBJECTS["unlisted"]) == 10
    from tools.train_default.chats.tables import WORDS

    listed = {word for words in WORDS.values() for word in words}
    assert listed.isdisjoint(SUBJECTS["unlisted"])


def test_documents_that_are_not_read_are_left_out_in_every_epoch() -> None:
    source = Source(np.arange(12), np.arange(0, 13, 2))
    source.documents = np.array([1, 3, 4])
    read = [source.next(np.random.default_rng(n))[0, 0] for n in range(9)]
    assert sorted(read) == [2, 2, 2, 6, 6, 6, 8, 8, 8]
    mix = Mix({"all": source}, seed=1)
    mix.rows({"all": 1.0}, 1, 5)
    other = Mix({"all": Source(np.arange(12), np.arange(0, 13, 2))}, seed=1)
    other.restore(mix.state())
    assert other.sources["all"].order.size == 0, "its documents are others: a new epoch"
    other.sources["all"].documents = source.documents
    other.restore(mix.state())
    assert other.sources["all"].order.tolist() == source.order.tolist()


@pytest.mark.parametrize("whole", [True, False])
def test_whole_documents_are_never_cut(whole: bool) -> None:
    lengths = [3, 9, 14, 30, 6, 11]
    documents = [[number, *[100] * (length - 1)] for number, length in enumerate(lengths)]
    starts = np.cumsum([0, *lengths])
    source = Source(np.concatenate(documents), starts)
    rows = Mix({"all": source}, seed=1, pool_size=4, whole=whole).rows({"all": 1.0}, 40, 16)
    counted = {number: [] for number in range(len(lengths))}
    for row in rows:
        heads = [*np.flatnonzero((row != 100) & (row != PAD)), int((row != PAD).sum())]
        for begin, end in zip(heads, heads[1:], strict=False):
            counted[row[begin]].append(end - begin)
    cut = any(length != lengths[n] for n, seen in counted.items() for length in seen)
    assert cut is not whole
    assert (counted[3] == []) is whole


@pytest.mark.parametrize("whole", [True, False])
def test_a_source_has_its_share_of_tokens_whichever_of_its_documents_are_read(whole: bool) -> None:
    lengths = np.array([4] * 10 + [16] * 30 + [60] * 10)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    sources = {name: Source(np.full(starts[-1], at), starts) for at, name in enumerate("ab")}
    sources["a"].documents = np.concatenate([np.arange(10), np.arange(40, 45)])
    rows = Mix(sources, seed=3, whole=whole).rows({"a": 0.75, "b": 0.25}, 3000, 32)
    counts = np.bincount(rows[rows != PAD])
    assert counts[0] / counts.sum() == pytest.approx(0.75, abs=0.03)


def test_a_mix_is_of_sources_that_are_there_and_tokens_that_the_model_has() -> None:
    sources = {"a": Source(np.arange(12), np.arange(0, 13, 2))}
    check_mix(["a"], sources, 12)
    with pytest.raises(ValueError, match="the mix names b, c, and --tokens has a"):
        check_mix(["c", "a", "b"], sources, 12)
    with pytest.raises(ValueError, match="a has a token 11, and the model's vocabulary is 11"):
        check_mix(["a"], sources, 11)


def test_a_source_of_which_nothing_fits_is_an_error() -> None:
    short, long = (
        Source(np.zeros(30), np.arange(0, 31, 3)),
        Source(np.ones(63), np.array([0, 31, 63])),
    )
    sources = {"short": short, "long": long}
    weights = {"short": 0.9, "long": 0.1}
    with pytest.raises(ValueError, match="no document of long fits into a row of 17 tokens.* 31:"):
        Mix(sources, seed=1, whole=True).rows(weights, 1, 16)
    with pytest.raises(ValueError, match="no document of long"):
        Mix(sources, seed=1, whole=True).rows({"long": 1.0}, 1, 16)
    rows = Mix(sources, seed=1, whole=True).rows({"short": 1.0, "long": 0.0}, 9, 16)
    assert set(rows.flat) == {0, PAD}
    assert (Mix(sources, seed=1).rows(weights, 60, 16) == 1).any()


def test_replies_are_counted_by_what_they_say() -> None:
    def answer(said: list[str], seed: int) -> tuple[str, bool]:
        if said[0] == asks("cat"):
            return "One two three four five six. A cat. One two three four five six.", False
        about = next((noun for noun in COUNTED if said == [asks(noun)]), None)
        if about:
            return f"It rained. It snowed. Then a {about} came.", True
        return " ".join(sorted(TURNS[seed][len(said) // 2].words)) if seed else "", True

    counts = score(answer)
    assert counts["requests"] == counts["follows"] == 70
    assert (counts["early"], counts["loops"], counts["ends"]) == (1, 1, 69)
    assert counts["unlisted_of_10"] == 10
    assert counts["chats_of_20"] == 19


@given(st.lists(st.integers(0, 2), max_size=20), st.integers(2, 4), st.integers(0, 9))
def test_a_teacher_never_says_what_came_before(ids: list[int], size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = np.stack([rng.permutation(4)[:3] for _ in ids]) if ids else np.empty((0, 3), int)
    log_p = np.log(rng.dirichlet(np.ones(4), len(ids))[:, :3])
    likeliest, said = without_repeats(ids, tokens, log_p, size)
    for at in range(len(ids)):
        start = at + 1
        for token, before, after in zip(tokens[at], log_p[at], said[at], strict=True):
            again = [*ids[:start], int(token)]
            assert np.isneginf(after) == repeats(again, size)[-1]
            assert np.isneginf(after) or after >= before - 1e-6
        if np.isfinite(said[at]).any():
            assert np.exp(said[at]).sum() == pytest.approx(np.exp(log_p[at]).sum())
            assert likeliest[at] == tokens[at][said[at].argmax()]
        else:
            assert likeliest[at] == PAD


def test_what_a_teacher_says_counts_more_where_a_reply_repeats_itself() -> None:
    ids = [1, 2, 3, 4, 1, 2, 3, 5, 6]
    tokens, log_p = np.array([[7, 8]] * 8), np.log(np.array([[0.5, 0.25]] * 8))
    _, said = without_repeats(ids, tokens, log_p, size=2, weight=4.0)
    weights = np.exp(said).sum(-1) / 0.75
    np.testing.assert_allclose(weights, [1, 1, 1, 1, 4, 4, 1, 1])  # before 2 and 3


def test_a_teacher_says_something_of_every_token_of_a_reply_and_of_no_request() -> None:
    tokens = np.array([[1, 2], [3, 4], [4, 5], [5, 6], [4, 9], [4, 9]])
    log_p = np.log(np.array([[0.6, 0.3]] * 6)).astype(np.float16)
    ids, targets, soft_ids, said = taught(reply([3, 4, 3, 4]), tokens, log_p, repeat=2)
    assert ids.tolist() == [7, 8, 3, 4, 3]
    assert targets.tolist() == [PAD, 3, 4, 5, 9]  # 4 would come after 3 again
    assert np.array_equal(soft_ids, tokens[:-1])
    silent = [[True, True], *[[False, False]] * 3, [True, False]]
    assert np.isneginf(said).tolist() == silent
    ids = [*range(100, 150), 100, 101, 99, 102]
    late = taught(reply(ids), np.tile(tokens[:1], (56, 1)), np.tile(log_p[:1], (56, 1)), 2)[1]
    asked = np.flatnonzero(late != PAD) - 1  # of the reply: its beginning, and 101 after 100 again
    assert asked.tolist() == [*range(EARLY), 51]
    good = reply(list(range(100, 170)), greedy=False)
    said_of_all = np.tile(tokens[:1], (72, 1)), np.tile(log_p[:1], (72, 1))
    assert taught(good, *said_of_all, repeat=2)[1].tolist() == [PAD, *good.ids]
    assert set(taught(good, *said_of_all, 2, learn_good=False)[1].tolist()) == {PAD, 1}


def test_where_a_teacher_has_nothing_new_to_say_nothing_is_asked() -> None:
    tokens, log_p = np.tile([[3, 4]], (8, 1)), np.log(np.full((8, 2), 0.4))
    _, targets, _, said = taught(reply([1, 3, 1, 4, 1, 5]), tokens, log_p, repeat=2)
    assert targets.tolist() == [PAD, 3, 3, 3, 4, 3, PAD]  # 3 and 4 came after 1
    assert np.isneginf(said[-1]).all() and not np.isnan(said).any()


def test_a_reply_could_have_begun_with_its_subject() -> None:
    tokens, log_p = np.array([[9, 2]] * 4), np.log(np.array([[0.6, 0.2]] * 4))
    _, targets, *_ = taught(reply([5, 6], names=frozenset({2})), tokens, log_p, 4, subject=6.0)
    assert targets.tolist() == [PAD, 2, 2]


def test_a_reply_of_one_token_is_read() -> None:
    tokens, log_p = np.array([[9, 1], [2, 3], [4, 5]]), np.log(np.full((3, 2), 0.4))
    ids, targets, soft_ids, said = taught(reply([6]), tokens, log_p, repeat=4)
    assert (ids.tolist(), targets.tolist()) == ([7, 8], [PAD, 2])
    assert soft_ids.tolist() == [[9, 1], [2, 3]]
    np.testing.assert_allclose(np.exp(said), [[0, 0], [0.4, 0.4]], rtol=1e-6)


def test_rows_have_what_a_teacher_says_beside_its_tokens() -> None:
    tokens, log_p = np.arange(12).reshape(6, 2), np.log(np.full((6, 2), 0.4))
    read = taught(reply([3, 4, 5, 6]), tokens, log_p, repeat=4)
    ((ids, targets, soft_ids, said),) = pack([read], context=7)
    for array, part in zip((ids, targets, soft_ids, said), read, strict=True):
        assert np.array_equal(array[:5], part)
    assert (ids[5:] == PAD).all() and (targets[5:] == PAD).all()
    assert soft_ids.shape == said.shape == (7, 2) and np.isneginf(said[5:]).all()


def test_a_share_is_of_the_replies_that_it_is_about() -> None:
    drawn = reply(list(range(100, 170)), greedy=False)
    replies = [drawn, reply([1], text=f"{STORY} {STORY}", ended=False), reply([1], noun="toad")]
    expected = {
        "greedy_loops": 1 / 2,
        "drawn_loops": 0,
        "ends": 2 / 3,
        "follows": 2 / 3,
        "good": 1 / 3,
    }
    assert shares(replies) == pytest.approx(expected)
    assert shares([reply([1], noun=None)]) == {"greedy_loops": 0, "ends": 1, "good": 0}


def test_a_teacher_says_the_subject_sooner() -> None:
    tokens = np.array([[1, 2]] * 60)
    log_p = np.log(np.array([[0.6, 0.2]] * 60))
    ids = [3] * 10 + [2] + [3] * 49
    said = np.exp(towards(reply(ids, names=frozenset({2})), tokens, log_p, 6.0))
    np.testing.assert_allclose(said[:11], [[0.8 * 0.6 / 1.8, 0.8 * 1.2 / 1.8]] * 11)
    np.testing.assert_allclose(said[11:], np.exp(log_p[11:]))
    never = towards(reply([3] * 60, names=frozenset({2})), tokens, log_p, 6.0)
    assert (never[:EARLY, 1] > never[:EARLY, 0]).all()
    np.testing.assert_array_equal(never[EARLY:], log_p[EARLY:])
    np.testing.assert_allclose(towards(reply(ids), tokens, log_p, 6.0), log_p)


def test_nouns_of_texts_are_those_that_end_a_clause_often() -> None:
    texts = ["He saw the newt. It was the blue newt."] * 5 + [
        "Here is a newt! And a cat, the sky, his end."
    ] * 5
    rare = ["He met a dodo. It was the dodo."] * 4
    extra = set(nouns_of([*texts, *rare, *["It was the back."] * 5])).difference(NOUNS)
    assert extra == {"newt", "end", "sky"} - set(NOUNS), "not back: no story is about that"
    assert COUNTED.isdisjoint(nouns_of(texts))
