"""How long whole prompts take: the calls that the engine makes, each where it is in the context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edgerun.backends.base import (
    FEW_ROWS,
    Backend,
    CompileOptions,
    Executable,
    Phase,
    Shape,
    Support,
)
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.plan.requests.forecast import Forecast, calls_of
from edgerun.plan.requests.pairs import Tasks
from edgerun.plan.requests.splits import split_of
from edgerun.plan.tasks import Budget, Placed, Task

NODES = ("n0", "n1", "n2")


class Clock(Backend):
    """A node costs a second for each row, and one for each token in the cache."""

    def __init__(self, name: str, profile: DeviceProfile | None = None, call_s: float = 0) -> None:
        self.name, self.profile, self.call_s = name, profile, call_s

    def probe(self) -> Support:
        return Support(True)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        return Support(True)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        return shape.rows + 1000.0 * shape.cached

    def call_seconds(self) -> float:
        return self.call_s

    def device_profile(self) -> DeviceProfile | None:
        return self.profile

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        raise AssertionError("nothing is compiled here")


def graph(count: int) -> Graph:
    nodes = [
        Node("rms_norm", name, (f"v{index}", "w"), (f"v{index + 1}",), {"epsilon": 1e-5})
        for index, name in enumerate(NODES[:count])
    ]
    constants: dict[str, Any] = {"w": np.ones(4, np.float32)}
    return Graph(nodes, ["v0"], [f"v{count}"], constants, shapes={"v0": ValueShape(4)})


def placed(task: Task, backend: Backend) -> Placed:
    return [(node, backend, 0.0) for node in task.graph.nodes]


def test_calls_are_those_of_the_engine() -> None:
    assert list(calls_of(600, 256)) == [(256, 0), (256, 256), (88, 512)]
    assert list(calls_of(256, 256)) == [(256, 0)]
    assert list(calls_of(0, 256)) == []


def forecast(device: Mapping[str, Any]) -> Forecast:
    cpu = Clock("cpu", call_s=0.5)
    npu = Clock("npu", DeviceProfile({"float/int4": (Call(64, 1, 1.0),)}, **device))
    tasks = Tasks.of(graph(3), graph(2), Budget(prompt_tokens=100, call_rows=64))
    split = split_of(tasks, placed(tasks.prompts, npu), placed(tasks.replies, cpu))
    assert split.forecast
    return split.forecast


def test_here_all_nodes_of_all_calls_and_what_calls_cost() -> None:
    whole = forecast({})
    assert whole.seconds_here(64) == 3 * 64 + 0.5
    assert whole.seconds_here(100) == 3 * (64 + 36 + 64_000) + 2 * 0.5


def test_there_what_prompts_need_in_padded_calls_and_the_last_token_here() -> None:
    device = {"call_s": 7.0, "launch_s": 11.0}
    last = 3 * (1 + 99_000) + 0.5
    assert forecast(device).seconds_there(100) == pytest.approx(
        11 + 2 * (64 + 64 + 64_000) + 2 * 7 + last
    )
    assert forecast(device).seconds_there(1) == 3 + 0.5  # nothing goes there


def test_few_rows_stay_with_the_last_token() -> None:
    few = 64 + FEW_ROWS + 1
    stay = 3 * (FEW_ROWS + 1 + 64_000) + 0.5
    assert forecast({}).seconds_there(few) == pytest.approx(2 * 64 + stay)
    assert forecast({}).seconds_there(FEW_ROWS + 1) == forecast({}).seconds_here(FEW_ROWS + 1)
    more = 3 * (1 + 1000.0 * few) + 0.5
    assert forecast({}).seconds_there(few + 1) == pytest.approx(2 * (64 + 64 + 64_000) + more)


def test_a_plan_of_a_request_counts_its_calls_too() -> None:
    cpu = Clock("cpu", call_s=0.5)
    task = Task(graph(3), Shape(Phase.PREFILL, 64, 0), frozenset())
    assert task.change_seconds(None, cpu, 0) == 0.5
    assert task.change_seconds(cpu, cpu, 0) == 0.0
