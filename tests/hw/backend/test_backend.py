"""The FPGA back-end in a plan: what it takes, what it leaves, and how the command line shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edgerun import env
from edgerun.backends import CompileOptions, Phase, Shape, make_backend
from edgerun.backends.observe import ObservedExecutable
from edgerun.backends.registry import absent_backends, find_candidates
from edgerun.cli.main import main
from edgerun.errors import InputError, UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.model.bundle import open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.backend.tally import Tally, cycles_report, part_of
from edgerun_hw.devices.registry import DEVICES, find_device
from edgerun_hw.overlay.port import Counters
from tests.hw.support.overlays import fake_overlay, normal, random_weight, replace_fake
from tests.support.bundles import SMALL_MODEL, bundle_of

FAKE = ["--backend", "fpga", "--device", "fake"]
SPEC = same_attention(1, 1, 16)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch):
    """Sets variables and lets them be read anew."""

    def change(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        env.settings.cache_clear()

    yield change
    monkeypatch.undo()
    env.settings.cache_clear()


def fpga(device: str = "fake") -> FpgaBackend:
    backend = FpgaBackend()
    backend.use_device(device)
    return backend


def linear(
    weight: PackedWeight | np.ndarray, activations: str = "int8_row", inputs: tuple[str, ...] = ()
) -> tuple[Graph, Node]:
    node = Node("linear", "layer", ("x", "w", *inputs), ("y",), {"activations": activations})
    return Graph([node], ["x"], ["y"], {"w": weight}), node


@pytest.mark.parametrize(
    ("change", "activations", "reason"),
    [
        ({}, "int8_row", ""),
        ({}, "int8_block", ""),
        ({}, "float", "not quantised"),
        ({"zeros": np.zeros((20, 1), np.uint8)}, "int8_row", "zero points"),
    ],
)
def test_packed_weights_and_rounded_activations_are_supported(change, activations, reason):
    weight = random_weight(np.random.default_rng(0), "int4", (20, 64), 32)
    graph, node = linear(replace(weight, **change), activations)
    support = fpga().supports(graph, node, Shape.of(1))
    assert support.ok == (not reason)
    assert reason in support.reason


def test_what_is_not_a_packed_linear_is_left_to_others():
    graph, node = linear(np.zeros((20, 64), np.float32))
    assert "not packed" in fpga().supports(graph, node, Shape.of(1)).reason
    other = Node("rms_norm", "norm", ("x", "w"), ("y",), {"epsilon": 1e-5})
    assert "linear layers and attention only" in fpga().supports(graph, other, Shape.of(1)).reason


def test_an_overlay_without_a_mode_gets_no_weights_for_it():
    overlay = fake_overlay()
    overlay._capabilities = replace(overlay.capabilities, multiples=False)
    session = SimpleNamespace(capabilities=overlay.capabilities)
    backend = fpga()
    backend._session = session  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    for name, able in (("ternary", True), ("int4", False), ("int8", False)):
        graph, node = linear(random_weight(rng, name, (20, 64), 32))
        support = backend.supports(graph, node, Shape.of(1))
        assert support.ok == able
        assert able or "no mode for weights" in support.reason


def test_weights_of_two_bits_cost_what_they_are_multiplied_as():
    """A code that is not ternary takes five activations a beat, as wider ones do."""
    rng, backend, costs = np.random.default_rng(0), fpga("fake:decode-300"), {}
    for name in ("ternary", "int2", "int4"):
        weight = random_weight(rng, name, (2560, 1920), 1920, row_scales=True)
        costs[name] = backend.cost(*linear(weight), Shape.of(1))
    assert costs["ternary"] < costs["int2"] == costs["int4"]
    backend.close()


@pytest.mark.parametrize("name", ["ternary", "int2", "int4", "int8"])
@pytest.mark.parametrize("activations", ["int8_row", "int8_block"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_layer_with_bias_and_residual_agrees_with_its_definition(name, activations, rows):
    rng = np.random.default_rng(3)
    weight = random_weight(rng, name, (70, 64), 32, row_scales=activations == "int8_row")
    graph, _ = linear(weight, activations, ("b", "r"))
    graph = replace(graph, inputs=["x", "r"], constants={"w": weight, "b": normal(rng, 1, 70)[0]})
    backend, values = (
        fpga("fake:tiny-prefill"),
        {"x": normal(rng, rows, 64), "r": normal(rng, rows, 70)},
    )
    batch, cache = Batch.of(list(range(rows)), 0, 0), SequenceStore(SPEC, 64)
    executable = ObservedExecutable(
        backend, graph, Shape.of(rows), CompileOptions(SPEC), checks=True
    )
    by_fpga = executable(batch, cache, values)["y"].copy()
    executable.close()
    cpu = make_backend("cpu")
    expected = cpu.compile(graph, Shape.of(rows), CompileOptions(SPEC))
    by_cpu = expected(batch, cache, values)["y"]
    if activations == "int8_row":
        np.testing.assert_array_equal(by_fpga, by_cpu)
    np.testing.assert_allclose(by_fpga, by_cpu, rtol=1e-5, atol=1e-4)
    expected.close()
    cpu.close()


@pytest.mark.parametrize("rows", [1, 5])
def test_blocks_of_activations_are_scaled_each_by_its_own(rows):
    """Even where all blocks of a weight's rows have the same scale."""
    rng = np.random.default_rng(6)
    weight = random_weight(rng, "ternary", (40, 96), 32, row_scales=True)
    graph, _ = linear(weight, "int8_block")
    values = {"x": normal(rng, rows, 96) * np.repeat(np.float32([1, 20, 400]), 32)}
    batch, cache = Batch.of(list(range(rows)), 0, 0), SequenceStore(SPEC, 64)
    outputs = []
    for backend in (fpga("fake:tiny-prefill"), make_backend("cpu")):
        executable = backend.compile(graph, Shape.of(rows), CompileOptions(SPEC))
        outputs.append(executable(batch, cache, values)["y"].copy())
        executable.close()
        backend.close()
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-3)


def test_layers_that_read_one_another_run_in_turn():
    rng = np.random.default_rng(4)
    weights = {f"w{i}": random_weight(rng, "ternary", (64, 64), 64) for i in range(3)}
    attrs = {"activations": "int8_row"}
    nodes = [
        Node("linear", "a", ("x", "w0"), ("u",), attrs),
        Node("linear", "b", ("x", "w1"), ("v",), attrs),
        Node("linear", "c", ("u", "w2", "", "v"), ("y",), attrs),
    ]
    graph = Graph(nodes, ["x"], ["u", "v", "y"], dict(weights))
    backend = fpga("fake:tiny")
    executable = ObservedExecutable(backend, graph, Shape.of(1), CompileOptions(SPEC), checks=True)
    executable(Batch.of([1], 0, 0), SequenceStore(SPEC, 64), {"x": normal(rng, 1, 64)})
    report = backend.report()
    assert report is not None
    assert report.notes[-1].startswith(f"{2 + 2} commands")  # two to test the device, a|b and c
    executable.close()


def test_asked_for_by_name_it_takes_every_linear_layer_and_the_cpu_the_rest():
    graph = open_bundle(SMALL_MODEL).graph
    candidates = find_candidates("fpga", "fake")
    assert [backend.name for backend in candidates.backends] == ["fpga", "cpu"]
    plan = make_plan(graph, candidates.backends, candidates.preferred)
    for phase in Phase:
        for segment in plan.segments[phase]:
            ops = set(segment.count_ops())
            assert (segment.backend == "fpga") == (ops == {"linear"})
    sizes = [len(s.graph.nodes) for s in plan.segments[Phase.DECODE] if s.backend == "fpga"]
    assert sizes == [3, 1, 2, 1] * 5 + [1]
    reasons = [refusal.reason for refusal in plan.refusals[Phase.DECODE]]
    assert "the fabric runs linear layers and attention only (38 nodes)" in reasons
    assert "this overlay has no attention unit (5 nodes)" in reasons
    assert "300 MHz assumed" in plan.bases["fpga"]
    candidates.backends[0].close()


def test_a_device_in_the_environment_lets_it_take_part_by_cost(environment):
    environment(EDGERUN_FPGA_DEVICE="fake")
    candidates = find_candidates()
    assert candidates.preferred is None
    assert "fpga" in [backend.name for backend in candidates.backends]
    plan = make_plan(open_bundle(SMALL_MODEL).graph, candidates.backends)
    names = {segment.backend for segment in plan.segments[Phase.DECODE]}
    assert names == {"cpu"}
    reasons = [
        refusal.reason for refusal in plan.refusals[Phase.DECODE] if refusal.backend == "fpga"
    ]
    assert any("slower by estimate" in reason and "36 nodes" in reason for reason in reasons)
    for backend in candidates.backends:
        backend.close()


def test_the_environment_alone_can_ask_for_it(environment):
    environment(EDGERUN_BACKEND="fpga", EDGERUN_FPGA_DEVICE="fake:tiny")
    candidates = find_candidates()
    assert candidates.preferred == "fpga"
    assert "fake:tiny" in str(candidates.backends[0]._device)
    assert "EDGERUN_FPGA_DEVICE" in absent_backends(find_candidates("cpu"))["fpga"]


def test_without_a_device_it_takes_no_part_and_costs_nothing(environment):
    code = (
        "import sys; from edgerun.llm.loading import prepare; "
        "from edgerun.llm.options import LoadOptions; "
        "prepare(None, LoadOptions(threads=1)); "
        "sys.exit(any(name.startswith('edgerun_hw') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    environment()
    candidates = find_candidates()
    assert "fpga" not in [backend.name for backend in candidates.backends]
    assert "not asked for" in absent_backends(candidates)["fpga"]


def test_a_device_that_cannot_be_used_is_said_and_left_out(environment, monkeypatch, caplog):
    kind = replace(DEVICES["fake"], obstacle=lambda argument: "needs something")
    monkeypatch.setattr("edgerun_hw.devices.registry.DEVICES", {**DEVICES, "fake": kind})
    environment(EDGERUN_FPGA_DEVICE="fake")
    candidates = find_candidates()
    assert candidates.absent["fpga"] == "needs something"
    assert "needs something" in caplog.text
    with pytest.raises(UnsupportedError, match="needs something"):
        find_candidates("fpga")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "fpga"], "no device was named"),
        (["--backend", "fpga", "--device", "cosmi"], "did you mean 'cosim'?"),
        (["--backend", "fpga", "--device", "fake:huge"], "no geometry is called 'huge'"),
        pytest.param(
            ["--backend", "fpga", "--device", "cosim:tiny,sram"],
            "no memory called 'sram'",
            marks=pytest.mark.fpga,
        ),
        (["--backend", "cpu", "--device", "fake"], "has no devices"),
        (["--device", "fake"], "add --backend"),
    ],
)
def test_a_wrong_device_is_one_line(arguments, message, capfd):
    assert main(["run", str(SMALL_MODEL), "-p", "Hello", "-n", "2", *arguments]) == 2
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_every_device_says_what_it_is():
    for name, kind in DEVICES.items():
        assert kind.summary
        assert kind.counted in ("simulated", "measured", "made up")
        assert find_device(name).kind is kind


def test_the_command_line_reports_cycles_by_part(capfd):
    arguments = ["run", str(SMALL_MODEL), "-p", "Tell me a story", "-n", "4", "--temperature", "0"]
    assert main([*arguments, "--json", *FAKE]) == 0
    reply = json.loads(capfd.readouterr().out)
    assert main([*arguments, "--json"]) == 0
    assert reply["ids"] == json.loads(capfd.readouterr().out)["ids"]
    (report,) = reply["devices"]
    assert "made up; no board was measured" in report["title"]
    decode = {row["part"]: row for row in report["rows"] if row["phase"] == "decode"}
    assert list(decode) == ["q/k/v", "o", "gate/up", "down", "lm_head", "all"]
    # 18 tiles of 26 beats, and so on; 5 layers.
    assert decode["q/k/v"]["lookups"] == 5 * 18 * 26
    assert decode["down"]["lookups"] == 5 * 35 * 13
    assert sum(row["lookups"] for row in decode.values()) == 2 * decode["all"]["lookups"]
    assert main([*arguments, "--stats", *FAKE]) == 0
    err = capfd.readouterr().err
    assert "cycles per token on the FPGA device 'fake'" in err
    assert "at an assumed 300 MHz" in err


def test_plan_explains_the_fabrics_segments(capfd):
    assert main(["plan", str(SMALL_MODEL), "--explain", *FAKE]) == 0
    out = capfd.readouterr().out
    assert "5 times: 3 linear" in out
    assert "linear layers and attention only" in out
    assert main(["plan", str(SMALL_MODEL), "--explain"]) == 0
    assert "not asked for: --backend fpga" in capfd.readouterr().out


PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], list(range(10, 40)), [5, 3]]


@pytest.mark.parametrize("name", ["bitnet-offline", "mistral"])
def test_a_joined_batch_equals_separate_ones(name, monkeypatch):
    """Rows of several sequences, of which some want logits, through segments on two back-ends."""
    replace_fake(monkeypatch, lambda: fake_overlay("tiny-prefill"))
    options = {} if name.startswith("bitnet") else {"weights": "int4"}
    bundle = open_bundle(bundle_of(name, **options))
    config = bundle.config
    spec = states_of(bundle.graph, config, "fp32")
    candidates = find_candidates("fpga", "fake")
    plan = make_plan(bundle.graph, candidates.backends, candidates.preferred)
    assert {"fpga", "cpu"} == {segment.backend for segment in plan.segments[Phase.PREFILL]}
    programs = compile_plan(plan, candidates.backends, [Shape.of(64)], CompileOptions(spec))
    run = programs.run
    cache = SequenceStore(spec, 64, 2 * len(PROMPTS))
    pairs = [(ids, cache.open()) for ids in PROMPTS]
    alone = [(ids, cache.open()) for ids in PROMPTS]
    for ids, sequence in (*pairs, *alone):
        cache.reserve(sequence, len(ids))
    selections = ["all", "last", "none", "last"]
    parts = [Batch.of(i, 0, s, logits=w) for (i, s), w in zip(pairs, selections, strict=True)]
    joined = run(Batch.join(parts), cache)["logits"].copy()
    separate = [
        run(Batch.of(i, 0, s, logits=w), cache)["logits"].copy()
        for (i, s), w in zip(alone, selections, strict=True)
    ]
    assert [len(logits) for logits in separate] == [7, 1, 0, 1]
    np.testing.assert_allclose(joined, np.concatenate(separate), atol=2e-4)
    programs.close()
    for backend in candidates.backends:
        backend.close()


def test_parts_are_named_after_their_layers():
    def segment(*names: str) -> Graph:
        return Graph([Node("linear", name, (), ()) for name in names], [], [], {})

    layer = "/model/layers.3"
    assert (
        part_of(segment(f"{layer}/mlp/gate_proj/MatMul", f"{layer}/mlp/up_proj/MatMul"))
        == "gate/up"
    )
    assert part_of(segment("/lm_head/MatMulNBits")) == "lm_head"
    assert part_of(segment("odd")) == "odd"


def test_cycles_add_up_over_layers_and_wrap_around():
    tallies = [Tally(Phase.DECODE, "o", tokens=4), Tally(Phase.DECODE, "o", tokens=4)]
    before = Counters(2**32 - 10, 0, 0, 0, 0, 0, 0, 0)
    after = Counters(90, 80, 40, 8, 4, 4, 0, 0)
    for tally in tallies:
        tally.add(before, after)
    report = cycles_report("fake", "simulated", tallies)
    assert report is not None
    assert report.rows[0] == {
        "phase": "decode",
        "part": "o",
        "segments": 2,
        "busy": 40,
        "lookups": 20,
        "stall weights": 4,
        "stall tables": 2,
        "stall output": 2,
        "start and drain": 12,
    }
    assert tallies[0].counts["cycles"] == 100
    assert cycles_report("fake", "simulated", [Tally(Phase.DECODE, "o")]) is None


def test_closing_the_last_program_closes_the_device(monkeypatch):
    overlay = fake_overlay()
    closed: list[bool] = []
    monkeypatch.setattr(overlay.port, "close", lambda: closed.append(True))
    replace_fake(monkeypatch, lambda: overlay)
    graph, _ = linear(random_weight(np.random.default_rng(0), "ternary", (20, 64), 64))
    backend = fpga()
    executables = [backend.compile(graph, Shape.of(rows), CompileOptions(SPEC)) for rows in (1, 16)]
    executables[0].close()
    executables[0].close()
    assert not closed
    executables[1].close()
    assert closed == [True]
    backend.close()


def test_a_back_end_that_is_no_accelerator_stands_alone():
    candidates = find_candidates("reference")
    assert ([backend.name for backend in candidates.backends], candidates.preferred) == (
        ["reference"],
        None,
    )
    with pytest.raises(InputError, match="no back-end"):
        find_candidates("nothing")
