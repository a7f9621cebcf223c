"""Which layers are queued whole: not those that the unit cannot run, or of which others read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgerun.graph.ir import Graph, Node
from edgerun_hw.backend.native.chain import search
from tests.hw.support.overlays import normal, random_weight
from tests.hw.support.queued_layers import (
    WIDTH,
    MakeBoard,
    layers,
    make_boards,
    run,
)

pytestmark = pytest.mark.fpga


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBoard:
    return make_boards(tmp_path, monkeypatch)


def with_reader(graph: Graph, inputs: tuple[str, ...]) -> Graph:
    """The graph with one more linear layer, which reads these, as its first output."""
    weight = random_weight(np.random.default_rng(6), "ternary", (WIDTH, WIDTH), 32, row_scales=True)
    operands = (inputs[0], "more.w", "", *inputs[1:])
    node = Node("linear", "more", operands, ("more.y",), {"activations": "int8_row"})
    constants = {**graph.constants, "more.w": weight}
    return replace(
        graph, nodes=[*graph.nodes, node], outputs=["more.y", *graph.outputs], constants=constants
    )


@pytest.mark.parametrize(
    ("inputs", "chains"),
    [(("o0.y",), 0), (("o1.y",), 0), (("down0.y",), 0), (("down1.y",), 2), (("next1.y",), 2)],
)
def test_what_others_read_too_does_not_stay_on_the_device(
    board: MakeBoard, inputs: tuple[str, ...], chains: int
) -> None:
    """A sum within a layer or between two; what is behind the last one is written in any case."""
    graph = with_reader(layers(np.random.default_rng(4), "silu", True), inputs)
    board()
    queued = run(graph, chains=chains)
    board(preset="attention-300")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() <= (0.2 if chains else 0) * np.abs(plain).max()


def test_a_sum_behind_the_last_layer_is_the_processors(board: MakeBoard) -> None:
    """The matrix behind the last norm is queued with the layer, but not with a residual."""
    whole = layers(np.random.default_rng(4), "silu", True)
    graph = with_reader(replace(whole, outputs=[]), ("next1.y", "down1.y"))
    board()
    queued = run(graph)
    board(preset="attention-300")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() < 0.2 * np.abs(plain).max()


def with_bias(graph: Graph, name: str) -> Graph:
    bias = normal(np.random.default_rng(6), 1, graph.matrix(f"{name}.w").shape[0])[0]
    nodes = [
        node.replace(inputs=(*node.inputs[:2], "bias", *node.inputs[3:]))
        if node.name == name
        else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=nodes, constants={**graph.constants, "bias": bias})


def with_attribute(graph: Graph, name: str, key: str, value: object) -> Graph:
    nodes = [
        node.replace(attrs={**node.attrs, key: value}) if node.name == name else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=nodes)


UNFIT: dict[str, Callable[[Graph], Graph]] = {
    "a bias behind attention": lambda graph: with_bias(graph, "o0"),
    "a bias of the gate": lambda graph: with_bias(graph, "gate1"),
    "a bias of queries": lambda graph: with_bias(graph, "q1"),
    "another gate in a layer": lambda graph: with_attribute(graph, "act1", "activation", "relu2"),
    "another epsilon": lambda graph: with_attribute(graph, "inner1", "epsilon", 1e-2),
    "another epsilon before queries": lambda graph: with_attribute(graph, "next0", "epsilon", 1e-2),
}


@pytest.mark.parametrize("name", UNFIT)
def test_layers_that_do_not_fit_are_the_processors(board: MakeBoard, name: str) -> None:
    graph = UNFIT[name](layers(np.random.default_rng(4), "silu", True))
    board()
    queued = run(graph, chains=0)
    board(preset="attention-300")
    np.testing.assert_array_equal(queued, run(graph, chains=0))


def test_norm_behind_the_last_layer_with_another_epsilon_is_the_processors(
    board: MakeBoard,
) -> None:
    graph = layers(np.random.default_rng(4), "silu", True)
    graph = with_attribute(graph, "next1", "epsilon", 10.0)
    board()
    queued = run(graph, chains=2)
    board(preset="attention-300")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() < 0.2 * np.abs(plain).max()


def test_rows_longer_than_the_unit_takes_are_the_processors(
    board: MakeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = layers(np.random.default_rng(4), "silu", True)
    board()
    monkeypatch.setattr(search, "MAX_GLUE_LENGTH", WIDTH - 4)
    queued = run(graph, chains=0)
    board(preset="attention-300")
    np.testing.assert_array_equal(queued, run(graph, chains=0))


def test_rows_that_end_within_a_beat_are_the_processors(board: MakeBoard) -> None:
    """Their last block of weights is cut short."""
    graph = layers(np.random.default_rng(4), "silu", True, hidden=94)
    board()
    queued = run(graph, chains=0)
    board(preset="attention-300")
    np.testing.assert_array_equal(queued, run(graph, chains=0))


def test_norms_of_parts_of_a_row_are_the_processors(board: MakeBoard) -> None:
    """The unit's are of whole rows; a norm between two layers, so none is queued whole."""
    graph = layers(np.random.default_rng(4), "silu", True)
    half = {"next0.w": normal(np.random.default_rng(6), 1, WIDTH // 2)[0]}
    graph = replace(graph, constants={**graph.constants, **half})
    board()
    queued = run(graph, chains=0)
    board(preset="attention-300")
    np.testing.assert_array_equal(queued, run(graph, chains=0))


@pytest.mark.parametrize(("hidden", "chains"), [(96, 2), (128, 0)])
def test_matrices_are_not_cut_in_the_middle_of_a_beat(
    board: MakeBoard, hidden: int, chains: int
) -> None:
    """With one port rows come in fives: of 256 the second command would write from the 126th on."""
    graph = layers(np.random.default_rng(4), "silu", True, hidden)
    board(preset="tiny-glue")
    queued = run(graph, chains=chains)
    board(preset="tiny-prefill")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() <= (0.2 if chains else 0) * np.abs(plain).max()
