"""Prompts and replies are placed together: brute force finds nothing cheaper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgerun.backends.base import Backend, CompileOptions, Executable, Phase, Shape, Support
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.plan.requests.pairs import Pair, Tasks, place_alone, place_together
from edgerun.plan.tasks import SWITCH_BYTES_A_SECOND, SWITCH_SECONDS, Budget

WIDTH, LENGTH, PROMPT_LENGTH = 16, 4, 3
ROW_BYTES, KEPT_BYTES = 4 * WIDTH, 4 * 2 * WIDTH
BUDGET = Budget(prompt_tokens=128, reply_tokens=20, call_rows=64)
CALLS = 2  # of a prompt


class Costly(Backend):
    """Nodes cost what a table says, by phase."""

    def __init__(
        self, name: str, costs: dict[Phase, Sequence[float]], profile: DeviceProfile | None = None
    ) -> None:
        self.name, self.costs, self.profile = name, costs, profile
        self.able = True

    def probe(self) -> Support:
        return Support(True)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        return Support(self.able or node.name != "n1", "not this one")

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        return self.costs[shape.phase][int(node.name[1:])]

    def device_profile(self) -> DeviceProfile | None:
        return self.profile

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        raise AssertionError("nothing is compiled here")


def random_graph(rng: np.random.Generator) -> Graph:
    """A chain in which some nodes keep keys and values."""
    sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": WIDTH // 2}
    attention = {**sizes, "scale": 1.0, "window": 0, "softcap": 0.0}
    nodes = []
    for index, attends in enumerate(rng.integers(0, 2, LENGTH)):
        names, out = (f"v{index}",), (f"v{index + 1}",)
        if attends:
            attributes = {"layer": index, **attention}
            nodes.append(Node("attention", f"n{index}", names * 3, out, attributes))
        else:
            nodes.append(Node("rms_norm", f"n{index}", (*names, "w"), out, {"epsilon": 1e-5}))
    constants = {"w": np.ones(WIDTH, np.float32)}
    shapes = {f"v{index}": ValueShape(WIDTH) for index in range(LENGTH + 1)}
    return Graph(nodes, ["v0"], [f"v{LENGTH}"], dict(constants), shapes=shapes)


def random_backends(rng: np.random.Generator, count: int) -> list[Costly]:
    """A processor and devices that were measured."""
    backends: list[Costly] = []
    slower = rng.choice([1.0, 10.0])
    for index in range(count):
        costs = {
            Phase.PREFILL: (rng.uniform(1e-4, 1e-3, LENGTH) * slower**index).tolist(),
            Phase.DECODE: (rng.uniform(1e-5, 1e-4, LENGTH) * slower**index).tolist(),
        }
        profile = DeviceProfile(
            {"float/int4": (Call(32, 1, 1.0),)},
            call_s=rng.uniform(0, 3e-4),
            launch_s=rng.uniform(0, 5e-4),
            load_bytes_s=rng.choice([1e7, 1e9]),
            store_bytes_s=rng.choice([1e7, 1e9]),
            mirrors=bool(rng.integers(0, 2)),
        )
        backends.append(Costly(str(index), costs, profile if index else None))
    return backends


def tasks_of(graph: Graph) -> Tasks:
    prompts = replace(graph, outputs=[]).with_nodes(graph.nodes[:PROMPT_LENGTH])
    return Tasks.of(graph, prompts, BUDGET)


def path_seconds(path: Sequence[Costly], phase: Phase) -> float:
    """Of a call, from the terms and nothing else."""
    rows = BUDGET.call_rows if phase is Phase.PREFILL else 1
    calls = rows // 32 or 1
    total, before = 0.0, None
    for index, backend in enumerate(path):
        total += backend.costs[phase][index]
        if backend is not before:
            nbytes = ROW_BYTES * rows if index else 0
            entered, left = backend.profile, before.profile if before else None
            if entered:
                total += calls * entered.call_s + nbytes / (entered.load_bytes_s or 1)
            if left:
                total += nbytes / (left.store_bytes_s or 1)
            if before and not entered and not left:
                total += SWITCH_SECONDS + nbytes / SWITCH_BYTES_A_SECOND
        before = backend
    return total


def launches(path: Sequence[Costly]) -> float:
    changes = [path[0], *(b for a, b in itertools.pairwise(path) if a is not b)]
    return sum(each.profile.launch_s for each in changes if each.profile)


def handover(node: Node, prompts: Costly, replies: Costly) -> float:
    if node.op != "attention":
        return 0.0
    nbytes, seconds = BUDGET.prompt_tokens * KEPT_BYTES, 0.0
    if prompts.profile:
        seconds += nbytes / (prompts.profile.store_bytes_s or 1)
    if replies.profile and replies.profile.mirrors and replies is not prompts:
        seconds += nbytes / (replies.profile.load_bytes_s or 1)
    return seconds


def total(graph: Graph, prompts: Sequence[Costly], replies: Sequence[Costly]) -> float:
    pairs = zip(graph.nodes, prompts, replies, strict=False)
    return (
        launches(prompts)
        + CALLS * path_seconds(prompts, Phase.PREFILL)
        + BUDGET.reply_tokens * path_seconds(replies, Phase.DECODE)
        + sum(handover(*pair) for pair in pairs)
    )


def paths(pair: Pair) -> tuple[list[Backend], list[Backend]]:
    return [each for _, each, _ in pair.prompts], [each for _, each, _ in pair.replies]


def test_brute_force_finds_nothing_cheaper_for_500_graphs() -> None:
    kinds: set[str] = set()
    for seed in range(500):
        rng = np.random.default_rng(seed)
        graph, backends = random_graph(rng), random_backends(rng, 3 if seed % 25 == 0 else 2)
        pair = place_together(tasks_of(graph), backends)
        best = min(
            total(graph, prompts, replies)
            for prompts in itertools.product(backends, repeat=PROMPT_LENGTH)
            for replies in itertools.product(backends, repeat=LENGTH)
        )
        assert pair.seconds == pytest.approx(best, rel=1e-9)
        alone = place_alone(tasks_of(graph), backends)
        if alone is not None:
            assert (alone.prompts, alone.replies) == (pair.prompts, pair.replies)
            assert alone.seconds == pytest.approx(pair.seconds, rel=1e-12)
            kinds.add("dominated")
        prompts, replies = paths(pair)
        assert total(graph, prompts, replies) == pytest.approx(best, rel=1e-9)  # type: ignore[arg-type]
        kinds.add("alone" if len({*prompts, *replies}) == 1 else "mixed")
        kinds.add("same" if prompts == replies[:PROMPT_LENGTH] else "apart")
    assert kinds == {"alone", "mixed", "same", "apart", "dominated"}


def two(prompt_s: float, reply_s: float, profile: DeviceProfile) -> list[Costly]:
    """A processor whose nodes take 1 ms in each phase, and a device."""
    here = {Phase.PREFILL: [1e-3] * LENGTH, Phase.DECODE: [1e-3] * LENGTH}
    there = {Phase.PREFILL: [prompt_s] * LENGTH, Phase.DECODE: [reply_s] * LENGTH}
    return [Costly("cpu", here), Costly("device", there, profile)]


FREE = DeviceProfile({"float/int4": (Call(32, 1, 1.0),)})


def names(pair: Pair) -> tuple[set[str], set[str]]:
    prompts, replies = paths(pair)
    return {each.name for each in prompts}, {each.name for each in replies}


def attending() -> Graph:
    sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": WIDTH // 2}
    nodes = [
        Node(
            "attention",
            f"n{index}",
            (f"v{index}",) * 3,
            (f"v{index + 1}",),
            {"layer": index, **sizes, "scale": 1.0, "window": 0, "softcap": 0.0},
        )
        for index in range(LENGTH)
    ]
    shapes = {f"v{index}": ValueShape(WIDTH) for index in range(LENGTH + 1)}
    return Graph(nodes, ["v0"], [f"v{LENGTH}"], {}, shapes=shapes)


@pytest.mark.parametrize(
    ("prompt_s", "reply_s", "expected"),
    [
        (1e-4, 1e-2, ({"device"}, {"cpu"})),
        (1e-2, 1e-4, ({"cpu"}, {"device"})),
        (1e-2, 1e-2, ({"cpu"}, {"cpu"})),
        (1e-4, 1e-4, ({"device"}, {"device"})),
    ],
)
def test_each_phase_goes_where_it_is_fast(
    prompt_s: float, reply_s: float, expected: tuple[set[str], set[str]]
) -> None:
    assert names(place_together(tasks_of(attending()), two(prompt_s, reply_s, FREE))) == expected


def test_what_must_be_handed_over_keeps_phases_together() -> None:
    """A device that decodes a little faster does not, if it had to read all keys and values."""
    slow_prompts = two(1.1e-3, 0.9e-3, FREE)
    assert names(place_together(tasks_of(attending()), slow_prompts)) == ({"cpu"}, {"device"})
    mirror = replace(FREE, mirrors=True, load_bytes_s=4e6)
    together = two(1.1e-3, 0.9e-3, mirror)
    assert names(place_together(tasks_of(attending()), together)) == ({"device"}, {"device"})
    dear = two(1.1e-2, 0.9e-3, mirror)
    _, replies = paths(place_together(tasks_of(attending()), dear))
    # The last node keeps nothing of prompts.
    assert [each.name for each in replies] == ["cpu", "cpu", "cpu", "device"]


def test_a_processor_that_is_hardly_slower_anywhere_needs_no_search() -> None:
    tasks = tasks_of(attending())
    assert place_alone(tasks, two(2e-3, 1e-3, FREE)) is not None
    assert place_alone(tasks, two(2e-3, 0.9e-3, FREE)) is None
    assert place_alone(tasks, two(0.9e-3, 2e-3, FREE)) is None
    # The nodes of a reply gain 0.4 ms together: a little more than a call costs, or a little less.
    assert place_alone(tasks, two(0.9e-3, 0.9e-3, replace(FREE, call_s=0.39e-3))) is None
    entered = two(0.9e-3, 0.9e-3, replace(FREE, call_s=0.41e-3))
    assert place_alone(tasks, entered) is not None
    entered[0].able = False
    assert place_alone(tasks, entered) is None
    assert place_alone(tasks, [entered[1], entered[1]]) is None


def test_a_node_that_nobody_runs_is_named() -> None:
    backends = two(1.0, 1.0, FREE)
    for backend in backends:
        backend.able = False
    with pytest.raises(UnsupportedError, match="no back-end runs the node n1"):
        place_together(tasks_of(attending()), backends)
