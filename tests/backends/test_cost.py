"""What the CPU back-end's estimates count: the bytes and the speed of what will really run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import edgerun.backends.cpu as cpu
import edgerun.kernels.isa as isa_module
from edgerun.backends.base import Phase, Shape
from edgerun.backends.cpu.emit import attention as emitters
from edgerun.backends.cpu.emit.attention import seen_in_pages
from edgerun.backends.cpu.emit.linear import BLOCK_STARTS, READERS
from edgerun.backends.cpu.families import family_of, paths_of, paths_taken, weight_bytes
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Constant, Graph, Node, ValueShape
from edgerun.kernels.lang.isa import ISAS
from edgerun.machine.profile import FAST_TIMES, MachineProfile
from edgerun.plan.calibration.loads import random_weight
from edgerun.plan.planner import make_plan
from edgerun.plan.tasks import TYPICAL
from edgerun.state.paged import PAGE_TOKENS

# Multiplication so fast that only memory counts, or the other way round; instructions are free.
MEMORY = MachineProfile(bandwidth={1: 1e9}, rates={"x": {1: 1e30}}, fork_join_s={1: 1e-30})
RATES = {
    "int8_row/ternary": {1: 1e9, 128: 8e9},
    "int8_row/trits": {1: 2e9, 128: 16e9},
    "int8_block/int4": {1: 4e9, 128: 32e9},
    "float/float32": {1: 5e9, 128: 5e9},
}
CORES = MachineProfile(bandwidth={1: 1e30}, rates=RATES, fork_join_s={1: 1e-30})
K, N = 256, 64


def linear(weight: Constant, activations: str) -> Graph:
    node = Node("linear", "layer", ("x", "w"), ("y",), {"activations": activations})
    return Graph([node], ["x"], ["y"], {"w": weight})


def cost(
    monkeypatch: pytest.MonkeyPatch,
    profile: MachineProfile,
    graph: Graph,
    rows: int,
    *,
    trits: bool = False,
    threads: int = 1,
    prefill: str = "exact",
    attention: str = "exact",
) -> float:
    monkeypatch.setattr(cpu, "machine_profile", lambda: profile)
    backend = cpu.make()
    pack = "trits" if trits else "two_bits"
    forms = {"prefill": prefill, "attention": attention}
    backend.configure({"threads": threads, "pack": pack, **forms})
    return backend.cost(graph, graph.nodes[0], Shape.of(rows))


@pytest.mark.parametrize(
    ("weights", "activations", "trits", "bits", "scales"),
    [
        ("ternary", "int8_row", False, 2, N),
        ("ternary", "int8_row", True, 1.6, N),
        ("ternary", "int8_block", True, 2, N * K // 32),
        ("int4", "int8_row", True, 4, N),
        ("int4", "int8_block", False, 4, N * K // 32),
        ("float32", "float", True, 32, 0),
    ],
)
def test_the_bytes_are_those_that_will_be_read(
    monkeypatch: pytest.MonkeyPatch,
    weights: str,
    activations: str,
    trits: bool,
    bits: float,
    scales: int,
) -> None:
    graph = linear(random_weight(weights, (K, N), 0), activations)
    expected = K * N * bits / 8 + 4 * scales
    seconds = cost(monkeypatch, MEMORY, graph, 1, trits=trits)
    assert seconds * 1e9 == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("weights", "activations", "trits", "family"),
    [
        ("ternary", "int8_row", False, "int8_row/ternary"),
        ("ternary", "int8_row", True, "int8_row/trits"),
        ("ternary", "int8_block", True, "int8_block/int2"),
        ("int2", "int8_row", True, "int8_row/int2"),
        ("int4", "float", False, "float/int4"),
        ("float32", "int8_row", False, "float/float32"),
    ],
)
def test_the_family_is_that_of_the_kernels(
    weights: str, activations: str, trits: bool, family: str
) -> None:
    weight = random_weight(weights, (K, N), 0)
    assert family_of(weight, activations, trits=trits) == family


def test_scales_that_differ_within_a_row_are_blocks() -> None:
    weight = random_weight("ternary", (K, N), 0)
    assert isinstance(weight, PackedWeight)
    weight.scales[:, 1] *= 2
    assert family_of(weight, "int8_row", trits=True) == "int8_block/int2"
    assert weight_bytes(weight, "int8_row", trits=True) == weight.nbytes


def test_scales_in_half_precision_are_read_as_such() -> None:
    weight = random_weight("int4", (K, N), 0)
    assert isinstance(weight, PackedWeight)
    weight.scales[:] = weight.scales.astype(np.float16)
    read = weight_bytes(weight, "int8_block", trits=False)
    assert weight.nbytes - read == weight.scales.nbytes / 2
    for others in ("float", ""):  # "": not multiplied, a table of embeddings
        assert weight_bytes(weight, others, trits=False) == weight.nbytes
    weight.scales[0, 0] = 1 + 2**-12
    assert weight_bytes(weight, "int8_block", trits=False) == weight.nbytes


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("trits", [False, True])
def test_the_speed_is_that_of_the_packing_and_the_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int, trits: bool
) -> None:
    graph = linear(random_weight("ternary", (K, N), 0), "int8_row")
    rate = RATES["int8_row/trits" if trits else "int8_row/ternary"][rows]
    seconds = cost(monkeypatch, CORES, graph, rows, trits=trits)
    assert seconds == pytest.approx(K * N * rows / rate)
    assert cost(monkeypatch, CORES, graph, rows, trits=trits, threads=2) == pytest.approx(
        seconds / 2
    )


def test_the_head_of_a_prompt_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[tuple[Phase, str], int] = {}

    class Asked(cpu.CpuBackend):
        def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
            asked[shape.phase, node.name] = shape.rows
            return 1.0

    weight: Any = np.ones((K, K), np.float32)
    attributes = {"activations": "float"}
    nodes = [
        Node("linear", "body", ("x", "w"), ("h",), attributes),
        Node("select_rows", "select", ("h",), ("s",)),
        Node("linear", "head", ("s", "w"), ("logits",), attributes),
    ]
    make_plan(Graph(nodes, ["x"], ["logits", "h"], {"w": weight}), [Asked()])
    assert asked[Phase.PREFILL, "body"] == TYPICAL[0].rows
    assert asked[Phase.PREFILL, "head"] == 1
    assert {rows for (phase, _), rows in asked.items() if phase is Phase.DECODE} == {1}


def test_paths_come_from_the_instruction_set_and_from_the_kernels() -> None:
    assert paths_of(ISAS["avx2"]) == paths_of(ISAS["portable"]) == ("multiply", "lookup")
    assert paths_of(ISAS["avx512vnni"]) == ("multiply",)
    # Where tables are not usual, times of the machine may say that they are faster.
    assert paths_of(ISAS["avxvnni"]) == paths_of(ISAS["i8mm"]) == ("multiply", "lookup")
    assert paths_of(ISAS["amx"]) == ("multiply", "amx")
    assert paths_taken(["rms_norm", "linear_row", "lookup_row"]) == ("lookup", "multiply")
    assert paths_taken(["amx_block", "linear_block"]) == ("amx", "multiply")


@pytest.mark.parametrize(
    "partial",
    [
        MachineProfile(fork_join_s={2: 5e-3}),  # what a bench beside other programs once stored
        MachineProfile(bandwidth={1: 1e6}),
        MachineProfile(bandwidth={1: 1e6}, fork_join_s={1: 5e-3}),
        MachineProfile(rates=RATES),
    ],
)
@pytest.mark.parametrize("rows", [1, 128])
def test_a_profile_with_gaps_changes_no_cost(
    monkeypatch: pytest.MonkeyPatch, partial: MachineProfile, rows: int
) -> None:
    weight: Any = np.ones((N, K), np.float32)
    add = Graph([Node("add", "sum", ("x", "y"), ("z",))], ["x", "y"], ["z"], {})
    for graph in (linear(weight, "float"), add):
        nominal = cost(monkeypatch, MachineProfile(), graph, rows, threads=2)
        assert cost(monkeypatch, partial, graph, rows, threads=2) == nominal
    assert cpu.basis(partial, 2).startswith("nominal speeds")


def test_what_multiplies_no_weights_costs_what_was_measured_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    attributes = {"layer": 0, **sizes, "scale": 0.25, "window": 0, "softcap": 0.0}
    attends = Node("attention", "a", ("q", "k", "v"), ("y",), attributes)
    adds = Node("rms_norm", "n", ("q", "w"), ("y",), {"epsilon": 1e-5})
    shapes = {"q": ValueShape(64), "k": ValueShape(32), "v": ValueShape(32)}
    others = {"attention": {1: 1e6, 128: 2e6}, "elements": {1: 1e6, 128: 4e6}}
    measured = replace(CORES, other_rates=others)
    graph = Graph([attends], ["q", "k", "v"], ["y"], {}, shapes=shapes)
    macs = 2 * 4 * 16 * (64 * 64 + 64 * 128)  # of the pages in which each row's tokens lie
    written = 128 * (32 + 32)
    assert cost(monkeypatch, measured, graph, 128) == pytest.approx(macs / 2e6 + written / 4e6)
    assert cost(monkeypatch, CORES, graph, 128) == pytest.approx(macs / 5e9)  # the slowest known
    graph = Graph([adds], ["q"], ["y"], {"w": np.ones(64, np.float32)}, shapes=shapes)
    assert cost(monkeypatch, measured, graph, 128) == pytest.approx(128 * 64 / 4e6)
    assert cost(monkeypatch, CORES, graph, 128) == pytest.approx(9e-30)  # as many starts
    gate = Node("gate", "g", ("q", "q"), ("y",), {"activation": "silu"})
    graph = Graph([gate], ["q"], ["y"], {}, shapes=shapes)
    assert cost(monkeypatch, measured, graph, 128) == pytest.approx(128 * 64 / 4e6)
    slower = replace(measured, other_rates={**others, "gate": {64: 1e6}})
    assert cost(monkeypatch, slower, graph, 128) == pytest.approx(128 * 64 / 1e6)


def test_attention_in_bfloat16_costs_what_it_takes_where_it_is_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(
        profile: MachineProfile, rows: int, *, fast: bool, head_dim: int = 64, multiplier: str = "x"
    ) -> float:
        monkeypatch.setattr(emitters, "bfloat16_multiplier", lambda isa: multiplier)
        sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": head_dim}
        attributes = {"layer": 0, **sizes, "scale": 0.25, "window": 0, "softcap": 0.0}
        node = Node("attention", "a", ("q", "k", "v"), ("y",), attributes)
        graph = Graph([node], ["q", "k", "v"], ["y"], {}, shapes={})
        return cost(monkeypatch, profile, graph, rows, attention="fast" if fast else "exact")

    exact = replace(CORES, other_rates={"attention": {64: 2e9}})
    assert of(exact, 128, fast=True) == pytest.approx(of(exact, 128, fast=False) / FAST_TIMES)
    measured = replace(exact, other_rates={**exact.other_rates, "attention_bfloat16/64": {64: 5e9}})
    assert of(measured, 128, fast=True) == pytest.approx(of(exact, 128, fast=False) * 2 / 5)
    for options in ({"head_dim": 48}, {"multiplier": ""}):
        same = of(measured, 128, fast=False, **options)  # type: ignore[arg-type]
        assert of(measured, 128, fast=True, **options) == same  # type: ignore[arg-type]
    assert of(measured, 16, fast=True) == of(measured, 16, fast=False)
    starts = replace(measured, fork_join_s={1: 1.0}, bandwidth={1: 1e30})
    assert of(starts, 128, fast=True) - of(starts, 128, fast=False) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({}, "taken for 1.5 times as fast as exact, `edgerun doctor --calibrate` measures it"),
        ({"attention_bfloat16/64": {64: 5e9}}, "; attention in bfloat16 measured"),
    ],
)
def test_the_plan_says_what_the_cost_of_attention_in_bfloat16_stands_on(
    others: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "machine_profile", lambda: replace(CORES, other_rates=others))
    backend = cpu.make()
    backend.configure({"attention": "fast"})
    assert backend.cost_basis().endswith(words)
    backend.configure({})
    assert "bfloat16" not in backend.cost_basis()


def test_pages_are_attended_to_as_a_whole_and_windows_end_them() -> None:
    for cached, rows in [(0, 1), (0, 64), (63, 2), (100, 300), (4000, 17)]:
        seen = sum(-(-(cached + row + 1) // PAGE_TOKENS) * PAGE_TOKENS for row in range(rows))
        assert seen_in_pages(cached, rows, 0) == seen
    assert seen_in_pages(1000, 64, 128) == 64 * (128 + PAGE_TOKENS)


def test_one_row_is_multiplied_while_weights_stream_and_more_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = linear(random_weight("int4", (K, N), 0), "int8_block")
    rates = {"int8_block/int4": {1: 1e9}}
    machine = MachineProfile(bandwidth={1: 1e9}, rates=rates, fork_join_s={1: 1e-30})
    streamed = (K * N / 2 + 4 * K * N / 32) / 1e9
    assert cost(monkeypatch, machine, graph, 1) == pytest.approx(max(streamed, K * N / 1e9))
    assert cost(monkeypatch, machine, graph, 4) == pytest.approx(streamed + 4 * K * N / 1e9)
    fast = replace(machine, bandwidth={1: 1e30})
    assert cost(monkeypatch, fast, graph, 4) == pytest.approx(4 * K * N / 1e9)
    sums = replace(fast, other_rates={"outputs/int8_block/int4": {64: 1e6}})
    assert cost(monkeypatch, sums, graph, 4) == pytest.approx(4 * K * N / 1e9 + 4 * N / 1e6)
    starts = replace(fast, fork_join_s={1: 1.0})
    assert cost(monkeypatch, starts, graph, 4) == pytest.approx(1 + 1 / READERS, rel=1e-3)
    assert cost(monkeypatch, starts, graph, 64) == pytest.approx(
        BLOCK_STARTS + 1 / READERS + 64 * K * N / 1e9
    )


def test_weights_that_fit_the_cache_stay_there_from_token_to_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = linear(random_weight("int4", (K, N), 0), "int8_block")
    rates = {"int8_block/int4": {1: 1e12}}
    small = MachineProfile(bandwidth={1: 1e6}, rates=rates, fork_join_s={1: 1e-30})
    nbytes = graph.constants["w"].nbytes
    for cache_bytes, streams in ((0, True), (2 * nbytes - 2, True), (2 * nbytes, False)):
        machine = replace(small, cache_bytes=cache_bytes)
        streamed = nbytes / 1e6 if streams else K * N / 1e12
        assert cost(monkeypatch, machine, graph, 1) == pytest.approx(streamed, rel=1e-3)
        assert cost(monkeypatch, machine, graph, 4) == pytest.approx(nbytes / 1e6, rel=1e-3)


def test_prompts_by_other_weights_cost_what_those_do(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = replace(isa_module.selected_isa(), regroups=True)
    monkeypatch.setattr(isa_module, "selected_isa", lambda: isa)
    graph = linear(random_weight("int4", (K, N), 0), "int8_block")
    rates = {"int8_block/int4": {1: 1e9}, "int8_block/int8_128": {1: 4e9}}
    machine = MachineProfile(bandwidth={1: 1e6}, rates=rates, fork_join_s={1: 1e-30})
    other_bytes = N * (K + 4 * K // 128)
    assert cost(monkeypatch, machine, graph, 64, prefill="fast") == pytest.approx(
        other_bytes / 1e6 + 64 * K * N / 4e9
    )
    for rows, prefill in ((64, "exact"), (16, "fast")):
        assert cost(monkeypatch, machine, graph, rows, prefill=prefill) == pytest.approx(
            graph.constants["w"].nbytes / 1e6 + rows * K * N / 1e9
        )
    before = replace(machine, rates={"int8_block/int4": {1: 1e9}})  # measured when there were none
    assert cost(monkeypatch, before, graph, 64, prefill="fast") == pytest.approx(
        other_bytes / 1e6 + 64 * K * N / 1e9
    )


def test_what_was_rounded_once_is_read_by_several_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = linear(random_weight("int4", (K, N), 0), "int8_block")
    rates = {"int8_block/int4": {1: 1e30}}
    rounding = {"rounding/int8_block": {64: 1e6}, "rounding/int8_row": {64: 1e9}}
    machine = MachineProfile(
        bandwidth={1: 1e30}, rates=rates, fork_join_s={1: 1e-30}, other_rates=rounding
    )
    assert cost(monkeypatch, machine, graph, 8) == pytest.approx(8 * K / 1e6 / READERS)


@pytest.mark.parametrize(("differ", "rate"), [(False, 1e9), (True, 1e6)])
def test_rows_that_are_rounded_whole_have_sums_by_block_where_scales_are_blocks(
    monkeypatch: pytest.MonkeyPatch, differ: bool, rate: float
) -> None:
    weight = random_weight("ternary", (K, N), 0)
    assert isinstance(weight, PackedWeight)
    weight.scales[:, 1] *= 1 + differ
    rounding = {"rounding/int8_block": {64: 1e6}, "rounding/int8_row": {64: 1e9}}
    rates = {"int8_row/ternary": {1: 1e30}, "int8_block/int2": {1: 1e30}}
    machine = MachineProfile(
        bandwidth={1: 1e30}, rates=rates, fork_join_s={1: 1e-30}, other_rates=rounding
    )
    seconds = cost(monkeypatch, machine, linear(weight, "int8_row"), 8)
    assert seconds == pytest.approx(8 * K / rate / READERS)
