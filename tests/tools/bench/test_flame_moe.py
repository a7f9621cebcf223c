"""Routing traces of FLAME-MoE: as documented they become ours, else a sentence says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import InputError
from edgerun.offload.trace_file import read_trace
from tools.bench.traces import flame_moe
from tools.bench.traces.flame_moe import EXPERTS, TOP_K, Rows, convert, layer_files

TOKENS = 20


def rows(seed: int, tokens: int = TOKENS) -> Rows:
    """What a layer's file holds: falling probabilities, experts each once."""
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.dirichlet(np.ones(EXPERTS), tokens)[:, :TOP_K], axis=1)[:, ::-1]
    experts = np.array([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)], np.int16)
    return scores.astype(np.float16), experts


def folder(tmp_path: Path, layers: tuple[int, ...] = (2, 3, 10)) -> Path:
    """A point of training, with files that nobody looks into."""
    path = tmp_path / "flame-moe-290m" / "actives" / "iter_0540"
    path.mkdir(parents=True)
    for layer in layers:
        (path / f"layer_{layer:02}.parquet").touch()
    (path / "notes.txt").touch()
    return path


def reader(path: Path, skip: int, tokens: int) -> Rows:
    scores, experts = rows(int(path.stem[-2:]))
    return scores[skip : skip + tokens], experts[skip : skip + tokens]


def test_choices_of_all_layers_stand_beside_each_other(tmp_path: Path) -> None:
    trace = convert(folder(tmp_path), 3, 10, reader)
    assert (trace.layers, trace.experts, trace.tokens) == ((2, 3, 10), EXPERTS, 10)
    assert trace.model == "FLAME-MoE flame-moe-290m/actives/iter_0540"
    for place, layer in enumerate(trace.layers):
        scores, experts = rows(layer)
        np.testing.assert_array_equal(trace.choices["expert"][:, place], experts[3:13])
        np.testing.assert_array_equal(trace.choices["weight"][:, place], scores[3:13])


def twice(scores: Any, experts: Any) -> None:
    experts[4, 1] = experts[4, 0]


def beyond(scores: Any, experts: Any) -> None:
    experts[4, 1] = EXPERTS


def negative(scores: Any, experts: Any) -> None:
    experts[4, 1] = -1


def rising(scores: Any, experts: Any) -> None:
    scores[4] = scores[4, ::-1]


def no_number(scores: Any, experts: Any) -> None:
    scores[4, 5] = np.nan


def too_much(scores: Any, experts: Any) -> None:
    scores[4] = 0.2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (twice, "tokens that go to an expert twice"),
        (beyond, "experts beyond 0 to 63"),
        (negative, "experts beyond 0 to 63"),
        (rising, "scores that do not fall"),
        (no_number, "scores that are no probabilities"),
        (too_much, "scores that are no probabilities"),
    ],
)
def test_what_is_not_as_documented_is_refused(
    tmp_path: Path, change: Callable[[Any, Any], None], said: str
) -> None:
    def read(path: Path, skip: int, tokens: int) -> Rows:
        scores, experts = reader(path, skip, tokens)
        if path.stem == "layer_03":
            change(scores, experts)
        return scores, experts

    with pytest.raises(InputError, match=f"layer_03.parquet has {said}"):
        convert(folder(tmp_path), 0, TOKENS, read)


def test_layers_of_unlike_length_are_not_of_one_recording(tmp_path: Path) -> None:
    def read(path: Path, skip: int, tokens: int) -> Rows:
        return reader(path, skip, tokens - (path.stem == "layer_10"))

    with pytest.raises(InputError, match="not of one recording"):
        convert(folder(tmp_path), 0, TOKENS, read)


@pytest.mark.parametrize(("skip", "tokens"), [(-1, 4), (0, 0)])
def test_no_tokens_are_refused(tmp_path: Path, skip: int, tokens: int) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        convert(folder(tmp_path), skip, tokens, reader)


def test_a_folder_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no layer_NN.parquet"):
        layer_files(tmp_path)
    with pytest.raises(InputError, match="cannot look into"):
        layer_files(tmp_path / "none")


class Recording:
    """Parquet files of two layers, 2 and 3, and what the program makes of them."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrow = pytest.importorskip("pyarrow")
        self.parquet = pytest.importorskip("pyarrow.parquet")
        self.path, self.output = folder(tmp_path, (2, 3)), tmp_path / "out.trace"
        self._monkeypatch, self.contents = monkeypatch, {layer: rows(layer) for layer in (2, 3)}
        for layer, (scores, experts) in self.contents.items():
            self.write(
                layer,
                scores=self.arrow.array(list(scores), self.arrow.list_(self.arrow.float16())),
                indices=self.arrow.array(list(experts), self.arrow.list_(self.arrow.int16())),
            )

    def write(self, layer: int, **columns: Any) -> None:
        path = self.path / f"layer_{layer:02}.parquet"
        self.parquet.write_table(self.arrow.table(columns), path, row_group_size=7)

    def convert(self, *more: str) -> int:
        argv = ["flame_moe", str(self.path), "-o", str(self.output), *more]
        self._monkeypatch.setattr("sys.argv", argv)
        return flame_moe.main()


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    return Recording(tmp_path, monkeypatch)


def test_parquet_files_of_the_documented_form_become_a_trace(recording: Recording) -> None:
    assert recording.convert("--tokens", "12", "--skip", "5") == 0
    trace = read_trace(recording.output)
    for place, (scores, experts) in enumerate(recording.contents.values()):
        np.testing.assert_array_equal(trace.choices["expert"][:, place], experts[5:17])
        np.testing.assert_array_equal(trace.choices["weight"][:, place], scores[5:17])


def test_outputs_that_are_there_and_files_that_end_early_are_refused(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    recording.output.touch()
    assert recording.convert() == 1
    assert recording.convert("--force", "--skip", str(TOKENS)) == 1
    recording.write(3, token_id=recording.arrow.array([1, 2], recording.arrow.int32()))
    assert recording.convert("--force") == 1
    (recording.path / "layer_03.parquet").write_bytes(b"PAR1 and no more")
    assert recording.convert("--force") == 1
    said = capsys.readouterr().err.splitlines()
    parts = ("exists", f"ends before token {TOKENS}", "has no column 'scores'", "as Parquet")
    assert len(said) == len(parts)
    assert all(part in line for line, part in zip(said, parts, strict=True)), said


REST = [*range(1, TOP_K)]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("scores", 0.5, "has double in the column 'scores', where lists of 6 floating numbers"),
        ("scores", ["a"] * TOP_K, "string> in the column 'scores'"),
        ("scores", [0.5, 0.1], f"tokens that go to other than {TOP_K} experts"),
        ("indices", [0.5, *REST], "double> in the column 'indices', where lists of 6 integer"),
        ("indices", [None, *REST], "lacks some of its numbers"),
        ("indices", [1 << 16, *REST], "experts beyond 0 to 63"),
    ],
)
def test_columns_of_something_else_are_refused(
    column: str, value: Any, said: str, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"scores": recording.contents[3][0][0].tolist(), "indices": [0, *REST]}
    columns[column] = value
    recording.write(3, **{name: recording.arrow.array([row]) for name, row in columns.items()})
    assert recording.convert() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {recording.path / 'layer_03.parquet'} ") and said in line
