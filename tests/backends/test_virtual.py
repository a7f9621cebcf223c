"""Laptops that nobody has here: what their plans are, and that all of it is called simulated."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.base import Backend, Phase, Shape
from edgerun.backends.estimates import kept_bytes, node_seconds
from edgerun.backends.registry import find_candidates
from edgerun.backends.virtual import Laptop
from edgerun.cli.main import main
from edgerun.cli.screen.report import stats_lines
from edgerun.errors import InputError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.plan.plans import Plan
from edgerun.plan.requests.correction import Correction
from edgerun.plan.requests.forecast import path_seconds
from edgerun.plan.requests.pairs import Tasks, handover_seconds, launch_seconds, place_together
from edgerun.plan.routes import plan_for, prompt_graph
from edgerun.plan.tasks import Budget, Placed
from tests.support.bundles import bundle_of
from tests.support.shapes import llama_graph

FOLDER = Path(__file__).parents[2] / "tools" / "laptops"
LAPTOPS = sorted(path.stem for path in FOLDER.glob("*.json"))
ONE_B = (16, 2048, 8192, 32, 8)
NO_ROWS = {"rows": 0, "work": 1, "seconds": 1}
SMALL = (3, 256, 512, 4, 2)


def plan(laptop: str, graph: Graph) -> Plan:
    candidates = find_candidates("virtual", str(FOLDER / f"{laptop}.json"), {"threads": 1})
    return plan_for(graph, candidates, Budget(), weighs_all=True)


def where(placement: Plan) -> tuple[set[str], set[str]]:
    """The back-ends of long prompts and of replies."""
    replies = next(reversed(placement.segments.values()))
    prompts = placement.prompts.segments if placement.prompts else replies
    names = [{part.backend.partition(":")[0] for part in parts} for parts in (prompts, replies)]
    return names[0], names[1]


@pytest.fixture(scope="module")
def one_b() -> Graph:
    return llama_graph(*ONE_B)


def test_there_are_four_laptops_and_each_figure_has_a_source() -> None:
    assert LAPTOPS == ["igpu-copies", "igpu-shared", "npu-11-tops", "npu-48-tops"]
    for name in LAPTOPS:
        laptop = Laptop.read(FOLDER / f"{name}.json")
        assert laptop.figures() == set(laptop.sources)
        assert laptop.device.source == "simulated"
        assert "device.calls" in laptop.sources and "host.rates" in laptop.sources


@pytest.mark.parametrize(
    ("laptop", "places"),
    [
        ("npu-48-tops", ({"virtual"}, {"cpu"})),
        ("npu-11-tops", ({"virtual"}, {"cpu"})),
        ("igpu-shared", ({"cpu"}, {"virtual"})),
    ],
)
def test_a_large_model_is_split(
    laptop: str, places: tuple[set[str], set[str]], one_b: Graph
) -> None:
    placement = plan(laptop, one_b)
    assert where(placement) == places
    assert placement.prompts and placement.verdict().startswith("simulated: ")
    split = placement.splits[0]
    tokens = split.from_tokens()
    assert tokens
    for count in range(tokens, 257):
        assert split.seconds_there(count) < split.seconds_here(count)
    assert tokens == 1 or split.seconds_there(tokens - 1) >= split.seconds_here(tokens - 1)


def test_the_break_even_comes_later_the_dearer_the_launch(one_b: Graph, tmp_path: Path) -> None:
    starts = []
    for launch in (0.01, 0.1, 0.5, 5.0):
        text = json.loads((FOLDER / "npu-48-tops.json").read_text())
        text["device"]["launch_s"] = launch
        path = tmp_path / f"{launch}.json"
        path.write_text(json.dumps(text))
        candidates = find_candidates("virtual", str(path), {"threads": 1})
        starts.append(plan_for(one_b, candidates, Budget()).prompts)
    rows = [route.from_rows for route in starts if route]
    assert len(rows) == 3 and rows == sorted(set(rows)) and starts[-1] is None


def test_terms_are_those_of_the_file(one_b: Graph) -> None:
    split = plan("npu-48-tops", one_b).splits[0]
    device = Laptop.read(FOLDER / "npu-48-tops.json").device
    layers, _, _, heads, kv_heads = ONE_B
    dim = ONE_B[1] // heads
    cached_bytes = 4 * 2 * layers * kv_heads * dim
    assert device.store_bytes_s
    assert split.handover_s == pytest.approx(cached_bytes / device.store_bytes_s)
    assert split.launch_s == device.launch_s
    assert list(split.there.calls) == [64, 256]  # calls of 1 and 16 rows are for replies
    assert split.here.seconds(256) > split.here.seconds(1) > 0


def test_the_processor_is_the_laptops_whatever_threads_are_here(one_b: Graph) -> None:
    path = str(FOLDER / "npu-48-tops.json")
    costs = []
    for threads in (1, 2):
        cpu = find_candidates("virtual", path, {"threads": threads}).backends[1]
        costs.append(cpu.cost(one_b, one_b.nodes[1], Shape.of(128)))
    multiplied = 128 * 2048 * 2048 / 330e9
    streamed = 2048 * 2048 * (1 / 2 + 2 / 32) / 45e9  # half precision holds these scales
    starts = (2 + 1 / 1.5) * 5e-6
    assert costs[0] == costs[1] == pytest.approx(multiplied + streamed + starts)


def test_a_device_that_keeps_its_copy_reads_keys_and_values_once(one_b: Graph) -> None:
    node = next(node for node in one_b.nodes if node.op == "attention")
    shape = Shape(Phase.DECODE, 1, 500)
    device = Laptop.read(FOLDER / "igpu-copies.json").device
    assert device.mirrors and device.load_bytes_s
    keeps = node_seconds(device, one_b, node, shape)
    reads = node_seconds(replace(device, mirrors=False), one_b, node, shape)
    assert reads - keeps == pytest.approx(500 * kept_bytes(node) / device.load_bytes_s)


@pytest.mark.parametrize("factor", [3, 1 / 3], ids=["thought slower", "thought faster"])
@pytest.mark.parametrize("laptop", LAPTOPS)
def test_plans_recover_within_twenty_requests_from_a_wrong_profile(
    laptop: str, factor: float, one_b: Graph
) -> None:
    """All prompts then go where they are faster, or lose a tenth there at most."""
    machine = plan(laptop, one_b).splits[0]
    believed = replace(machine, there=machine.there.scaled(factor))
    for seed in range(8):
        rng, correction = np.random.default_rng(seed), Correction(believed)
        for _ in range(20):
            rows, noise = int(rng.integers(17, 256)), rng.uniform(0.95, 1.05)
            if correction.goes_there(rows):
                whole = machine.seconds_there(rows + 1) - machine.launch_s - machine.decode_s
                correction.went_there(rows, whole * noise)
            else:
                correction.stayed_here(rows, machine.seconds_here(rows) * noise)
        taken, best = 0.0, 0.0
        for rows in range(17, 256):
            there, here = machine.seconds_there(rows + 1), machine.seconds_here(rows + 1)
            taken += there if rows >= correction.from_rows else here
            best += there if rows >= Correction(machine).from_rows else here
        assert taken <= 1.1 * best, seed


@pytest.mark.parametrize("laptop", ["npu-11-tops", "npu-48-tops", "igpu-copies"])
def test_a_small_model_stays_on_the_processor(laptop: str) -> None:
    placement = plan(laptop, llama_graph(*SMALL))
    assert where(placement) == ({"cpu"}, {"cpu"})
    assert placement.prompts is None
    assert placement.verdict().startswith("simulated: cpu alone: a prompt of 512 tokens takes ")


@pytest.mark.parametrize("laptop", LAPTOPS)
@pytest.mark.parametrize("sizes", [(1, 256, 512, 4, 2), (1, 2048, 8192, 32, 8)], ids=["s", "l"])
def test_brute_force_finds_nothing_cheaper(laptop: str, sizes: Any) -> None:
    """Over all placements of the nodes up to the first layer's attention, of both phases."""
    graph = llama_graph(*sizes)
    graph = graph.with_nodes([*graph.nodes[:5]])
    graph.outputs = ["a0.y"]
    backends = find_candidates("virtual", str(FOLDER / f"{laptop}.json"), {"threads": 1}).backends
    tasks = Tasks.of(graph, prompt_graph(graph), Budget())

    def placed(choice: tuple[Backend, ...]) -> Placed:
        return [(node, each, 0.0) for node, each in zip(graph.nodes, choice, strict=True)]

    def prompts_s(choice: tuple[Backend, ...]) -> float:
        changes = [choice[0], *(b for a, b in itertools.pairwise(choice) if a is not b)]
        calls = tasks.calls * path_seconds(tasks.prompts, placed(choice))
        return calls + sum(map(launch_seconds, changes))

    choices = list(itertools.product(backends, repeat=len(graph.nodes)))
    prompts = {choice: prompts_s(choice) for choice in choices}
    replies = {choice: 128 * path_seconds(tasks.replies, placed(choice)) for choice in choices}
    cached_bytes = 512 * kept_bytes(graph.nodes[-1])
    best = min(
        prompts[there] + replies[here] + handover_seconds(cached_bytes, there[-1], here[-1])
        for there in choices
        for here in choices
    )
    assert place_together(tasks, backends).seconds == pytest.approx(best, rel=1e-9)


def test_it_computes_what_the_processor_computes_and_adds_up_time() -> None:
    folder, ids = bundle_of("llama", weights="int4"), [3, 5, 7, 11] * 20
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    with edgerun.load(folder, backend="cpu", threads=1) as llm:
        expected = llm.generate(ids, **options).ids
    place = f"prefill=virtual:{FOLDER / 'npu-48-tops.json'}"
    with edgerun.load(folder, place=place, threads=1) as llm:
        completion = llm.generate(ids, **options)
        assert completion.ids == expected
        (report,) = llm.reports()
        line = next(line for line in stats_lines(llm, completion.stats) if "back-ends" in line)
    assert "virtual:npu-48-tops (simulated: all speeds are those of the processor" in line
    assert report.title.endswith("NPU has 48 TOPS: simulated")
    (row,) = report.rows
    assert (row["calls"], row["tokens"]) == (1, 79)
    assert row["simulated ms a call"] > 1


def test_a_device_brings_its_back_end() -> None:
    candidates = find_candidates(device=f"virtual:{FOLDER / 'npu-48-tops.json'}")
    assert [backend.name for backend in candidates.backends] == ["virtual:npu-48-tops", "cpu"]
    assert candidates.preferred is None
    for device, said in [
        ("cosim", "'cosim' was named without a back-end"),
        ("virtual", "'virtual' is a back-end and names no device: write virtual:DEVICE"),
        ("cpu", "'cpu' is a back-end without devices: write --backend cpu"),
        ("virtual:", "'virtual' is a back-end and names no device"),
        ("gpu:0", "no back-end is called 'gpu': there are cpu"),
    ]:
        with pytest.raises(InputError, match=said):
            find_candidates(device=device)
    with pytest.raises(UnsupportedError, match="no laptop was named: --device virtual:FILE"):
        find_candidates("virtual")


def test_nothing_simulated_is_benchmarked(capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle_of("llama", weights="int4")
    place = f"decode=virtual:{FOLDER / 'igpu-shared.json'}"
    assert main(["bench", str(folder), "--place", place, "-n", "2"]) != 0
    assert "is simulated, so there is no speed to measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": 7}, "does not describe a laptop: Expected `str`"),
        ({"host": {}}, "its host needs bandwidth, rates, fork_join_s"),
        (
            {"device": {"calls": {"x": [{"rows": 0, "work": 1, "seconds": 1}]}}},
            "Expected `int` >= 1",
        ),
        ({"sources": {"host.rates": "assumed"}}, "has no source for device.call_s, device.calls"),
    ],
    ids=["title", "host", "device", "sources"],
)
def test_files_that_describe_no_laptop(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    text = json.loads((FOLDER / "igpu-shared.json").read_text())
    path = tmp_path / "laptop.json"
    path.write_text(json.dumps(text | change))
    with pytest.raises(InputError, match=message):
        find_candidates("virtual", str(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        find_candidates("virtual", str(tmp_path / "none.json"))
