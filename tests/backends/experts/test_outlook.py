"""What layers will need by native guesses, beside the gates in NumPy; and what is at hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.gate import Gate
from edgerun.backends.cpu.experts.outlook import Coded, Outlook, _is_native
from edgerun.backends.cpu.experts.prefetch import REACH
from edgerun.backends.cpu.experts.protocol import Post
from edgerun.backends.cpu.experts.words import SharedWords
from edgerun.kernels.run.residency import (
    COUNT,
    EXPERTS,
    HAS_INPUT,
    LOG,
    LOG_ENTRIES,
    POSTED,
    SEQUENCE,
)
from edgerun.ops.route import Groups

LAYERS, TOP_K = REACH + 2, 3


class World:
    """Layers with gates, and posts; all experts are in memory."""

    def __init__(self, experts: int = 10, width: int = 100, padded: int = 104, seed: int = 0):
        self.chance = np.random.default_rng(seed)
        self.words = SharedWords(np.zeros((2, 64), np.uint8), 1.0)
        self.outlook = Outlook(self.words)
        self.gates: list[Gate] = []
        for _ in range(LAYERS):
            layer = self.words.add_layer(experts, width)
            layer.table[:] = 1
            weight = np.zeros((experts, padded), np.float32)
            weight[:, :width] = self.chance.standard_normal((experts, width))
            norm = self.chance.uniform(0.5, 2, width).astype(np.float32)
            bias = self.chance.standard_normal(experts).astype(np.float32)
            self.give(len(self.gates), Gate(weight, bias, norm, TOP_K))

    def give(self, number: int, gate: Gate) -> None:
        self.gates[number : number + 1] = [gate]
        self.outlook.add(self.words.layers[number], gate)

    def post(self, layer: int, number: int, experts: tuple[int, ...] = (0, 1)) -> Post:
        words = self.words.layers[layer]
        words.input[:] = self.chance.standard_normal(len(words.input))
        words.post[EXPERTS : EXPERTS + len(experts)] = experts
        words.post[[COUNT, HAS_INPUT, SEQUENCE]] = len(experts), 1, number
        self.words.control[LOG + number % LOG_ENTRIES] = layer
        self.words.control[POSTED] = number
        return Post(layer, experts, (1.0,) * len(experts), number, has_input=True)

    def expected(self, post: Post, layer: int) -> list[int]:
        """By the definition, of weights in 8 bits."""
        here, there = self.gates[post.layer], self.gates[layer]
        rounded = replace(there, weight=decoded(there.weight), ratios={})
        return rounded.guess(self.words.layers[post.layer].input, here)


def decoded(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    coded = Coded.of(weight)
    values = coded.codes[:, : weight.shape[1]] * coded.scales[:, None]
    return values.astype(np.float32)


@pytest.mark.parametrize(("experts", "width"), [(10, 100), (3, 1), (33, 64), (4, 65), (5, 128)])
def test_native_guesses_are_those_of_the_gates(experts: int, width: int) -> None:
    world = World(experts, width, -(-width // 8) * 8)
    for number in range(1, 40):
        post = world.post(0, number)
        for layer in (1, REACH):
            assert world.outlook.guess(post, layer) == world.expected(post, layer)


def test_a_gate_may_have_no_bias_no_norm_and_zeros_in_its_norm() -> None:
    world = World()
    plain = replace(world.gates[1], bias=None, norm=None, ratios={})
    zeros = np.where(np.arange(100) % 3 == 0, 0, 2).astype(np.float32)
    for here in (world.gates[0], replace(world.gates[0], norm=zeros, ratios={})):
        world.give(0, here)
        for there in (plain, world.gates[2]):
            world.give(1, there)
            post = world.post(0, 1 + world.words.posted())
            assert world.outlook.guess(post, 1) == world.expected(post, 1)


def test_what_is_no_number_is_the_smallest_and_of_equal_ones_the_first_is_chosen() -> None:
    world = World(experts=4)
    bias = np.array([np.nan, 1, 2, 1], np.float32)
    weight = np.zeros((4, 104), np.float32)
    weight[3, 5] = np.inf  # what 8 bits cannot say
    world.give(1, Gate(weight, bias, None, 4))
    assert world.outlook.guess(world.post(0, 1), 1) == [2, 1, 3, 0]


def test_codes_are_as_near_as_255_steps_allow() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 70)).astype(np.float32)
    weight[3] = 0
    coded = Coded.of(weight)
    assert coded.codes.shape == (6, 128) and not coded.codes[:, 70:].any()
    assert (np.abs(decoded(weight) - weight) <= coded.scales[:, None] * 0.5001).all()
    assert (np.abs(coded.codes).max(axis=1) == [127, 127, 127, 0, 127, 127]).all()


def test_gates_that_native_code_does_not_know_are_asked_in_numpy() -> None:
    world, post = World(), None
    biased = replace(world.gates[1], selection_bias=np.arange(10, dtype=np.float32), ratios={})
    grouped = replace(world.gates[1], groups=Groups(5, 2, 1), ratios={})
    for there in (biased, grouped):
        world.give(1, there)
        post = world.post(0, 1)
        row = world.words.layers[0].input
        assert world.outlook.guess(post, 1) == there.guess(row, world.gates[0])
        assert not world.outlook.is_at_hand()
        world.post(1, 2)
        assert not world.outlook.is_at_hand()
    assert post is not None
    world.words.layers[0].post[SEQUENCE] = 2
    assert world.outlook.guess(post, 1) == (), "another row has taken its place"


def test_of_a_layer_without_a_gate_nothing_is_guessed() -> None:
    words = SharedWords(np.zeros((2, 64), np.uint8), 1.0)
    for _ in range(2):
        words.add_layer(6, 8)
    outlook = Outlook(words)
    assert outlook.guess(Post(0, (1,), (1.0,), 1, has_input=True), 1) == ()
    assert outlook.guess(Post(0, (1,), (1.0,), 1, needs_most=True), 1) == range(6)
    assert not outlook.is_at_hand()


def test_all_is_at_hand_until_something_that_is_or_will_be_needed_is_not() -> None:
    world = World()
    layers = world.words.layers
    assert not world.outlook.is_at_hand(), "nothing was posted"
    post = world.post(0, 1, (4, 7))
    assert world.outlook.is_at_hand()
    needed = {
        0: {4, 7},
        **{layer: {*world.expected(post, layer)} for layer in range(1, REACH + 1)},
    }
    for layer in range(LAYERS):
        for expert in range(10):
            layers[layer].table[expert] = 0
            is_looked_at = layer in (0, 1, REACH) and expert in needed[layer]
            assert world.outlook.is_at_hand() == (not is_looked_at), (layer, expert)
            layers[layer].table[expert] = 1


def test_nothing_is_said_of_posts_without_input_or_that_are_written_or_of_other_layers() -> None:
    world = World()
    post = world.post(0, 1)
    words = world.words.layers[0].post
    for place in (HAS_INPUT, SEQUENCE):
        words[place], before = 0, words[place]
        assert not world.outlook.is_at_hand()
        words[place] = before
    assert world.outlook.is_at_hand()
    assert world.outlook.guess(post, 1) == world.expected(post, 1)
    world.post(LAYERS - 1, 2)
    assert world.outlook.is_at_hand(), "no layer comes after it"
    late = world.words.add_layer(10, 100)
    late.table[:] = 1
    world.post(late.number, 3)
    assert not world.outlook.is_at_hand(), "its gate is not known yet"


def test_layers_of_unlike_widths_read_no_memory_that_is_not_theirs() -> None:
    world = World(width=16, padded=16)
    wide = world.words.add_layer(10, 4096)
    wide.table[:] = 1
    weight = world.chance.standard_normal((10, 4096)).astype(np.float32)
    world.give(LAYERS, Gate(weight, None, None, TOP_K))
    post = world.post(LAYERS - 1, 1)
    row = np.zeros(4096, np.float32)
    row[:16] = world.words.layers[LAYERS - 1].input
    plain = Gate(decoded(weight), None, None, TOP_K)
    assert world.outlook.guess(post, LAYERS) == plain.guess(row, plain)


def test_gates_that_do_not_fit_their_layer_are_no_business_of_native_code() -> None:
    layer = SharedWords(np.zeros((2, 64), np.uint8), 1.0).add_layer(10, 100)
    weight, vector = np.ones((10, 104), np.float32), np.ones(100, np.float32)
    fits = Gate(weight, vector[:10], vector, 3)
    assert _is_native(fits, layer)
    for odd in (
        replace(fits, weight=weight[:9], bias=None),
        replace(fits, weight=weight[:, :99]),
        replace(fits, top_k=11),
        replace(fits, bias=vector[:9]),
        replace(fits, norm=vector[:99]),
        replace(fits, norm=vector.astype(np.float64)),  # type: ignore[arg-type]
        replace(fits, norm=np.ones((100, 2), np.float32)[:, 0]),
    ):
        assert not _is_native(odd, layer)
