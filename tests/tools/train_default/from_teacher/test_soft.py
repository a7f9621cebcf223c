"""What a teacher said is found again at the tokens it was said of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.train_default.batches import PAD, Mix, Source, load_sources
from tools.train_default.from_teacher.soft import SoftTargets, files, open_targets

K = 3


def write_source(folder: Path, name: str, documents: list[list[int]]) -> None:
    starts = np.cumsum([0, *map(len, documents)])
    np.savez(folder / f"{name}.npz", ids=np.concatenate(documents).astype(np.uint16), starts=starts)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Source]:
    rng = np.random.default_rng(0)
    for name, low in (("chats", 100), ("stories", 500)):
        documents = [rng.integers(low, low + 300, rng.integers(2, 9)).tolist() for _ in range(12)]
        write_source(tmp_path, name, documents)
    return load_sources(tmp_path)


def say(folder: Path, name: str, source: Source) -> None:
    """A teacher whose likeliest next token is the present one plus 1."""
    ids, log_p = open_targets(folder, name, len(source.ids), K)
    ids[:] = source.ids[:, None] + [1, 2, 3]
    log_p[:] = [-0.5, -2, -4]
    ids.flush()
    log_p.flush()


def test_rows_find_what_was_said_of_their_tokens(
    sources: dict[str, Source], tmp_path: Path
) -> None:
    for name, source in sources.items():
        say(tmp_path / "targets", name, source)
    soft = SoftTargets(tmp_path / "targets", sources)
    rows = Mix(sources, seed=3).placed_rows({"chats": 0.5, "stories": 0.5}, 20, 16)
    tokens, places = rows[:, 0], rows[:, 1]
    assert (tokens == PAD).any() and (tokens > 500).any() and (tokens < 400).any()
    ids, log_p = soft.at(places)
    assert ids.shape == log_p.shape == (*tokens.shape, K)
    inside = tokens != PAD
    np.testing.assert_array_equal(ids[inside], tokens[inside][:, None] + [1, 2, 3])
    assert np.isneginf(log_p[~inside]).all() and np.isfinite(log_p[inside]).all()


def test_sources_without_targets_are_silent(sources: dict[str, Source], tmp_path: Path) -> None:
    say(tmp_path / "targets", "stories", sources["stories"])
    soft = SoftTargets(tmp_path / "targets", sources)
    chats, stories = sources["chats"].first, sources["stories"].first
    _, log_p = soft.at(np.array([chats, stories - 1, stories, stories + 1]))
    assert np.isneginf(log_p).all(axis=-1).tolist() == [True, True, False, False]


def test_targets_begin_silent_and_stay_when_opened_again(tmp_path: Path) -> None:
    ids, log_p = open_targets(tmp_path, "stories", 5, K)
    assert np.isneginf(log_p).all()
    ids[2], log_p[2] = [7, 8, 9], [-1, -2, -3]
    ids.flush()
    log_p.flush()
    ids, log_p = open_targets(tmp_path, "stories", 5, K)
    assert ids[2].tolist() == [7, 8, 9] and log_p[2].tolist() == [-1, -2, -3]
    assert [path.exists() for path in files(tmp_path, "stories")] == [True, True]


def test_targets_of_other_tokens_are_refused(sources: dict[str, Source], tmp_path: Path) -> None:
    open_targets(tmp_path / "targets", "stories", len(sources["stories"].ids) + 1, K)
    with pytest.raises(ValueError, match="not"):
        SoftTargets(tmp_path / "targets", sources)
    with pytest.raises(ValueError, match="remove it"):
        open_targets(tmp_path / "targets", "stories", 9, K)
    with pytest.raises(ValueError, match="no targets of chats, stories"):
        SoftTargets(tmp_path / "none", sources)
