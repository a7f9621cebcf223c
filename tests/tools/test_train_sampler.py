"""What a model is to learn of a sampler that keeps it from repetitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.sampling.dry import Dry
from tools.train_default.batches import PAD
from tools.train_default.own.marking import Reply
from tools.train_default.own.sampler import Sampler
from tools.train_default.recipe import Recipe

BEGIN, LINE, WORDS = 0, 1, 7  # ids: of a document's beginning, of a breaker; how many there are
EVERY = np.arange(WORDS)


class Letters:
    """A vocabulary of single letters."""

    control_ids = frozenset([BEGIN])

    def token_bytes(self, id_: int) -> bytes:
        return b"" if id_ == BEGIN else b"\n" if id_ == LINE else b"abcdef"[id_ - 2 : id_ - 1]


DRY = Dry(dry_multiplier=2.0, dry_allowed_length=2).with_vocabulary(Letters())
SAMPLER = Sampler(DRY)


def longest_run(before: list[int], token: int) -> int:
    """How many tokens at the end stood somewhere before in a line, with `token` behind them."""
    starts = [at + 1 for at, each in enumerate(before) if each in (BEGIN, LINE)]
    most = len(before) - max(starts, default=0)
    lengths = [0]
    for place in (at for at, each in enumerate(before) if each == token):
        same = 0
        while same < min(place, most) and before[place - 1 - same] == before[-1 - same]:
            same += 1
        lengths.append(same)
    return max(lengths)


@given(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=40))
def test_what_was_said_is_less_likely_to_come_again(ids: list[int]) -> None:
    amounts = SAMPLER.penalties(np.array(ids), np.tile(EVERY, (len(ids), 1)))
    for at, row in enumerate(amounts):
        lengths = [longest_run(ids[: at + 1], token) for token in range(2, WORDS)]
        expected = [2.0 * 1.75 ** (n - 2) if n >= 2 else 0.0 for n in lengths]
        np.testing.assert_allclose(row[2:], expected, rtol=1e-5)
        assert not row[:2].any(), "a breaker may always come"


def test_the_model_learns_what_the_sampler_leaves_of_its_reply() -> None:
    rng = np.random.default_rng(0)
    reply = Reply([BEGIN], [2, 3, 4, 2, 3, 4], "", None, True, False)
    tokens = np.argsort(rng.random((7, WORDS)), axis=1)[:, :-1]  # one is not among the likeliest
    p = rng.dirichlet(np.ones(WORDS), 7)[:, :-1]
    tokens[5], p[5] = [4, 2, 3, 0, 1, 5], [0.9, 0.02, 0.02, 0.02, 0.02, 0.01]
    ids, targets, said_tokens, said = SAMPLER.reply(reply, tokens, np.log(p), rng)
    assert ids.tolist() == [BEGIN, 2, 3, 4, 2, 3]
    assert all(target in row for target, row in zip(targets, tokens, strict=False))
    assert np.array_equal(said_tokens, tokens[:-1])
    np.testing.assert_allclose(said[:5], np.log(p[:5]), atol=1e-5)
    left = p[5] * np.where(tokens[5] == 4, np.exp(-2.0), 1.0)
    np.testing.assert_allclose(np.exp(said[5]), left / (left.sum() + 0.01), rtol=1e-4)


def test_nothing_is_asked_of_the_prompt_and_repetitions_count_more() -> None:
    rng = np.random.default_rng(1)
    reply = Reply([BEGIN, 5, 6], [2, 3, 4, 2, 3, 4], "", "cat", True, False, frozenset({4}))
    tokens = np.tile(EVERY, (9, 1))
    log_p = np.log(np.full((9, WORDS), 1 / WORDS))
    _, targets, _, said = Sampler(DRY, 4.0).reply(reply, tokens, log_p, rng, subject=3.0)
    assert (targets[:2] == PAD).all() and (targets[2:] != PAD).all()
    assert np.isneginf(said[:2]).all()
    np.testing.assert_allclose(np.exp(said[2:]).sum(-1), [1, 1, 1, 1, 1, 4], rtol=1e-4)
    np.testing.assert_allclose(np.exp(said[2]) * 9, [1, 1, 1, 1, 3, 1, 1], rtol=1e-4)


def test_targets_are_drawn_by_what_is_left() -> None:
    rng = np.random.default_rng(2)
    reply = Reply([BEGIN], [2, 3, 4, 2, 3, 4], "", None, True, False)
    tokens, log_p = np.tile(EVERY, (7, 1)), np.log(np.full((7, WORDS), 1 / WORDS))
    drawn = [SAMPLER.reply(reply, tokens, log_p, rng)[1][[0, 5]] for _ in range(3000)]
    first, again = (np.bincount(column, minlength=WORDS) / 3000 for column in np.transpose(drawn))
    np.testing.assert_allclose(first, np.full(WORDS, 1 / WORDS), atol=0.03)
    left = np.where(EVERY == 4, np.exp(-2.0), 1.0)
    np.testing.assert_allclose(again, left / left.sum(), atol=0.03)


def test_a_reply_that_goes_round_in_circles_is_asked_where_the_sampler_takes_part() -> None:
    rng = np.random.default_rng(5)
    circle = [2, 3, 4, 5, 6, 2, 4]
    reply = Reply([BEGIN], [*circle, *circle, 3], "", None, True, False)
    tokens = np.tile(EVERY, (16, 1))
    p = np.full((16, WORDS), 1 / WORDS)
    p[13, [2, 4]] = 1e-4, 2 / WORDS - 1e-4  # what would go on with the circle is not said there
    p[14, 2], p[14, 4] = 1e-4, 2 / WORDS - 1e-4
    _, targets, _, _ = SAMPLER.reply(reply, tokens, np.log(p), rng)
    amounts = SAMPLER.penalties(np.array([BEGIN, *reply.ids])[:-1], tokens[:-1])
    lost = (p[:-1] * -np.expm1(-amounts)).sum(-1)
    is_circle = np.arange(15) >= 12  # the sixth token that came before is the reply's thirteenth
    assert np.array_equal(targets == PAD, is_circle & (lost <= 0.01))
    assert (targets[is_circle] == PAD).any() and (targets[is_circle] != PAD).any()


def test_a_sampler_needs_the_model_as_it_was() -> None:
    with pytest.raises(ValueError, match="dry needs own_taught"):
        Recipe(dry=1.0)
