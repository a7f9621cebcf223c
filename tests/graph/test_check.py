"""Nothing reaches a back-end that does not fit together, and every refusal is one sentence."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from edgerun.errors import BundleError, InputError
from edgerun.graph import constants
from edgerun.graph.check import check
from edgerun.graph.geometry import confirm, geometry
from edgerun.graph.ir import Graph
from edgerun.llm.loading import prepare
from edgerun.llm.options import LoadOptions
from edgerun.model.bundle import open_bundle
from edgerun.ops.registry import OPS
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

LAYER = "model.layers.0"
NAN, INFINITE = np.float32("nan"), np.float32("inf")


def manifest(**sizes):
    return lambda bundle: bundle.manifest["model"].update(sizes)


def resize(projection, **sizes):
    return lambda bundle: bundle.resize(projection, **sizes)


def put(name, values):
    return lambda bundle: bundle.put(name, values)


def poke(name, value):
    def change(bundle):
        values = bundle.array(name).copy()
        values.flat[values.size // 2] = value
        bundle.put(name, values)

    return change


def long_inv_freq(bundle):
    """8 MB that would become tables of gigabytes."""
    half = 2**21
    bundle.put("model.rotary.inv_freq", np.full(half, 1e-4, np.float32))
    bundle.put("constants/int64_11", np.array([half], np.int64))


def few_rows(bundle):
    for part in ("codes", "scales"):
        name = f"model.embed_tokens.weight.{part}"
        bundle.put(name, bundle.array(name)[:4])


def another_past(bundle):
    past = bundle.model.graph.input.add()
    past.CopyFrom(bundle.model.graph.input[-2])
    past.name = "past_key_values.7.value"


# What is altered, and what the one sentence must say.
CASES = {
    "wider gate": (resize("layers.0/mlp/gate_proj", n=4096), "mlp/Mul'.*width = 64.*4096"),
    "narrower up": (resize("layers.0/mlp/up_proj", n=32), "mlp/Mul'.*width = 32.*64"),
    "wider down": (resize("layers.0/mlp/down_proj", n=4096), "N = 64.*4096"),
    "longer down": (resize("layers.1/mlp/down_proj", k=4096), "down_proj.*4096.*64"),
    "narrower q": (resize("layers.0/self_attn/q_proj", n=32), "bias.*N = 64.*32"),
    "wider head": (resize("lm_head", n=100_000), "vocab_size 264 and 100000"),
    "fewer kv heads": (manifest(num_kv_heads=1), r"num_kv_heads 1, but its graph has 2"),
    "smaller heads": (manifest(head_dim=2), r"head_dim 2, but its graph has 16"),
    "more words": (manifest(vocab_size=8388608), r"vocab_size 8388608, but its graph has 264"),
    "fewer layers": (manifest(num_layers=1), r"num_layers 1, but its graph has 2"),
    "more layers": (manifest(num_layers=9), r"num_layers 9, but its graph has 2"),
    "other heads": (manifest(num_heads=8), r"num_heads 8, but its graph has 4"),
    "other width": (manifest(hidden_size=128), r"hidden_size 128, but its graph has 64"),
    "other gates": (manifest(intermediate_size=65), r"intermediate_size 65, but its graph has 64"),
    "four rows": (few_rows, "vocab_size 4 and 264"),
    "long tables": (long_inv_freq, "heads of 16 elements are turned by angles for 4194304"),
    "fast rotation": (
        poke("model.rotary.inv_freq", np.float32(3e38)),
        "inv_freq.* reaches 3e\\+38; expected at most 65536",
    ),
    "a state that no layer reads": (
        another_past,
        r"takes past_key_values\.7\.value, which no layer reads",
    ),
    "NaN scale": (poke(f"{LAYER}.mlp.up_proj.weight.scales", NAN), "scales that are infinite"),
    "infinite scale": (poke("lm_head.weight.scales", INFINITE), "scales that are infinite"),
    "NaN row": (poke("model.embed_tokens.weight.scales", NAN), "scales that are infinite"),
    "NaN norm": (poke("model.norm.weight", NAN), "'model.norm.weight' has elements that"),
    "NaN bias": (poke(f"{LAYER}.self_attn.q_proj.bias", -INFINITE), "q_proj.bias' has elements"),
    "NaN frequency": (poke("model.rotary.inv_freq", NAN), "inv_freq' has elements"),
    "long norm": (put("model.norm.weight", np.ones(4096, np.float32)), "multiple of group 4096"),
    "short norm": (put("model.norm.weight", np.ones(32, np.float32)), "64 by a weight of 32"),
    "double norm": (put("model.norm.weight", np.ones(64)), "float64.*expected float32"),
    "half norm": (put("model.norm.weight", np.ones(64, np.float16)), "float16.*expected float32"),
    "no norm": (put("model.norm.weight", np.ones(0, np.float32)), r"is float32 \(0,\); expected"),
    "number of norms": (put("model.norm.weight", np.float32(1)), r"is float32 \(\); expected"),
    "matrix of norms": (put("model.norm.weight", np.ones((8, 8), np.float32)), r"\(8, 8\)"),
    "short bias": (put(f"{LAYER}.self_attn.q_proj.bias", np.ones(8, np.float32)), "N = 8.*64"),
}


def write(alteration, folder):
    bundle = AlteredBundle(bundle_of("llama", weights="int4"), folder)
    alteration(bundle)
    return bundle.save()


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_is_refused_in_one_sentence(name, tmp_path):
    alteration, expected = CASES[name]
    with pytest.raises(BundleError, match=expected) as caught:
        open_bundle(write(alteration, tmp_path / "bundle"))
    assert "\n" not in str(caught.value) and "Error(" not in str(caught.value)


GENERATE = """
import json, sys
import edgerun
from edgerun.errors import EdgerunError
for folder in sys.argv[1:]:
    try:
        llm = edgerun.load(folder, threads=2, max_sessions=1)
        text = llm.generate([200, 5, 263], max_tokens=8, seed=0)
        print(json.dumps(["text", str(text)]), flush=True)
    except EdgerunError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


def test_nothing_altered_generates(tmp_path):
    """In a process of its own, which must live: these wrote outside their memory."""
    folders = [write(change, tmp_path / str(i)) for i, (change, _) in enumerate(CASES.values())]
    folders.append(bundle_of("llama", weights="int4"))
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *refused, good = [json.loads(line) for line in done.stdout.splitlines()]
    assert good[0] == "text" and good[1]
    assert [kind for kind, _ in refused] == ["BundleError"] * len(CASES)


@pytest.fixture(scope="module")
def lowered():
    """A graph with a norm per head."""
    graph = open_bundle(bundle_of("qwen3", weights="int4")).graph
    return graph


def with_node(graph: Graph, op: str, **changes) -> Graph:
    """A copy in which the first node of an op is another."""
    place = next(index for index, node in enumerate(graph.nodes) if node.op == op)
    changed = copy.copy(graph)
    changed.nodes = list(graph.nodes)
    changed.nodes[place] = graph.nodes[place].replace(**changes)
    return changed


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1e-6),
        ("epsilon", float("inf")),
        ("scale", float("inf")),
        ("scale", 1e39),
        ("window", -1),
        ("window", 2**31),
        ("layer", 10**400),
        ("head_dim", 0),
        ("factor", float("-inf")),
    ],
)
def test_numbers_outside_their_range_are_refused(lowered, attribute, value):
    op, attrs = next((node.op, node.attrs) for node in lowered.nodes if attribute in node.attrs)
    with pytest.raises(BundleError, match=f"{attribute} = .*; expected .* from"):
        check(with_node(lowered, op, attrs={**attrs, attribute: value}))


@pytest.mark.parametrize(
    ("op", "changes", "message"),
    [
        ("gate", {"inputs": ("nowhere", "nowhere")}, "reads 'nowhere' as gate"),
        ("gate", {"inputs": ("ids", "ids")}, "reads 'ids' as gate"),
        ("embedding", {"inputs": ("positions", "")}, "reads 'positions' as ids"),
        ("rms_norm", {"inputs": ("ids",)}, "has 1 inputs; expected 2 to 2"),
        ("linear", {"outputs": ("logits", "present")}, "makes logits, present"),
        ("linear", {"outputs": ("same", "same")}, "makes same, same; expected one value"),
        ("linear", {"outputs": ("",)}, "makes nothing; expected one value"),
        ("linear", {"outputs": ()}, "makes nothing"),
        ("linear", {"outputs": ("positions",)}, "makes positions"),
        ("gate", {"name": "select_rows"}, "two nodes are called 'select_rows'"),
        ("linear", {"outputs": ("unread",)}, "reads '.*' as"),
    ],
)
def test_values_are_made_once_and_before_they_are_read(lowered, op, changes, message):
    with pytest.raises(BundleError, match=message):
        check(with_node(lowered, op, **changes))


@pytest.mark.parametrize("change", [{"scale": None}, {"beyond": 1}, {"scale": None, "beyond": 1}])
def test_nodes_have_the_attributes_of_their_op_and_no_others(lowered, change):
    attrs = {**next(node.attrs for node in lowered.nodes if node.op == "attention")} | change
    attrs = {name: value for name, value in attrs.items() if value is not None}
    message = rf"\(attention\) has the attributes {', '.join(sorted(attrs))}; expected .*scale"
    with pytest.raises(BundleError, match=message):
        check(with_node(lowered, "attention", attrs=attrs))


@pytest.mark.parametrize("op", ["embedding", "rotary"])
def test_ids_and_positions_are_not_exchanged(lowered, op):
    other = {"ids": "positions", "positions": "ids"}
    node = next(node for node in lowered.nodes if node.op == op)
    exchanged = tuple(other.get(name, name) for name in node.inputs)
    with pytest.raises(BundleError, match=r"as (ids|positions); expected an input of the model"):
        check(with_node(lowered, op, inputs=exchanged))


def test_numbers_are_not_read_as_others(lowered, monkeypatch):
    (out,) = OPS["embedding"].outputs
    changed = replace(OPS["embedding"], outputs=(replace(out, dtype="int32"),))
    monkeypatch.setitem(OPS, "embedding", changed)
    with pytest.raises(BundleError, match="which is int32, as x; expected float32"):
        check(lowered)


def test_only_optional_inputs_may_be_absent(lowered):
    linear = next(node for node in lowered.nodes if node.op == "linear")
    x, weight = linear.inputs[:2]
    check(with_node(lowered, "linear", inputs=(x, weight, "", "")))
    for inputs in (("", weight), (x, ""), (x, weight, "nowhere"), (x, weight, x)):
        with pytest.raises(BundleError, match=f"reads '{inputs[-1] if inputs[0] else ''}' as"):
            check(with_node(lowered, "linear", inputs=inputs))


def test_a_value_made_twice_is_refused(lowered):
    first, second = [node for node in lowered.nodes if node.op == "linear"][:2]
    with pytest.raises(BundleError, match="expected one value that nothing else makes"):
        check(with_node(lowered, "rotary", outputs=first.outputs))
    assert second.outputs != first.outputs


def test_values_in_another_order_are_refused(lowered):
    shuffled = copy.copy(lowered)
    shuffled.nodes = [lowered.nodes[1], lowered.nodes[0], *lowered.nodes[2:]]
    with pytest.raises(BundleError, match="a value that an earlier node makes"):
        check(shuffled)


def test_a_constant_where_a_value_belongs_and_the_reverse_are_refused(lowered):
    norm = next(node for node in lowered.nodes if node.op == "rms_norm")
    with pytest.raises(BundleError, match="expected a value"):
        check(with_node(lowered, "rms_norm", inputs=(norm.inputs[1], norm.inputs[1])))
    with pytest.raises(BundleError, match="expected a constant"):
        check(with_node(lowered, "rms_norm", inputs=(norm.inputs[0], norm.inputs[0])))


def test_selected_rows_and_rows_of_all_tokens_do_not_mix(lowered):
    select = next(node for node in lowered.nodes if node.op == "select_rows")
    early = copy.copy(lowered)
    first = lowered.nodes[0].outputs[0]
    chosen = select.replace(inputs=(first,), outputs=("chosen",))
    norm = lowered.nodes[1].replace(inputs=("chosen", *lowered.nodes[1].inputs[1:]))
    early.nodes = [lowered.nodes[0], chosen, norm, *lowered.nodes[2:]]
    with pytest.raises(BundleError, match="mixes rows"):
        check(early)


def test_logits_must_be_what_comes_out(lowered):
    for outputs in ([], ["logits", "hidden"], ["hidden"]):
        with pytest.raises(BundleError, match="expected logits"):
            check(replace(lowered, outputs=outputs))
    last = lowered.nodes[-1].replace(outputs=("others",))
    with pytest.raises(BundleError, match="the graph gives logits; expected logits, made by"):
        check(replace(lowered, nodes=[*lowered.nodes[:-1], last]))
    with pytest.raises(BundleError, match="reads past, which nothing provides"):
        check(replace(lowered, inputs=["past"]))
    without = [node for node in lowered.nodes if node.op != "select_rows"]
    source = next(node.inputs[0] for node in lowered.nodes if node.op == "select_rows")
    norm = without[-2].replace(inputs=(source, *without[-2].inputs[1:]))
    with pytest.raises(BundleError, match="expected logits"):
        check(replace(lowered, nodes=[*without[:-2], norm, without[-1]]))


def test_layers_without_attention_are_refused(lowered):
    """A graph that remembers nothing has no cache to be given."""
    ends = [node for node in lowered.nodes if node.op in ("embedding", "select_rows")]
    head = [node for node in lowered.nodes if node.outputs == ("logits",)]
    select = ends[1].replace(inputs=ends[0].outputs)
    linear = head[0].replace(inputs=(select.outputs[0], *head[0].inputs[1:]))
    graph = replace(lowered, nodes=[ends[0], select, linear])
    with pytest.raises(BundleError, match="0 layers that keep a state"):
        geometry(replace(graph, shapes=check(graph)))


def test_layers_may_differ_in_their_heads(lowered):
    """All widths of the layer fit; nobody can state one number for both."""
    nodes = list(lowered.nodes)
    place = next(index for index, node in enumerate(nodes) if node.op == "attention")
    attrs = nodes[place].attrs
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 2 * attrs["head_dim"]}
    nodes[place] = nodes[place].replace(attrs={**attrs, **heads})
    unlike = geometry(replace(lowered, nodes=nodes))
    assert {name: unlike[name] for name in heads} == {
        name: (size, attrs[name]) for name, size in heads.items()
    }
    confirm(unlike, dict.fromkeys(heads, 0), "somebody")
    for name in heads:
        with pytest.raises(
            BundleError, match=f"says {name} {heads[name]}, but its graph has .* and"
        ):
            confirm(unlike, {name: heads[name]}, "somebody")


@pytest.mark.parametrize("head_dim", [16, 64])
def test_heads_are_as_long_as_the_angles_that_turn_them(lowered, head_dim):
    attrs = {**next(node.attrs for node in lowered.nodes if node.op == "rotary")}
    with pytest.raises(BundleError, match=rf"head_dim is {head_dim} and 2\*half is 32, not the"):
        check(with_node(lowered, "rotary", attrs={**attrs, "head_dim": head_dim}))


def test_heads_are_divided_evenly(lowered):
    attrs = {**next(node.attrs for node in lowered.nodes if node.op == "attention")}
    with pytest.raises(BundleError, match="num_heads 4 is no multiple of num_kv_heads 3|k '"):
        check(with_node(lowered, "attention", attrs={**attrs, "num_kv_heads": 3}))


@pytest.mark.parametrize("name", [f"{LAYER}.mlp.up_proj.weight.transposed", "lm_head"])
def test_dense_weights_are_looked_at_while_they_are_prepared(name, tmp_path):
    """A file may hold gigabytes of them: nothing is read for the check alone."""
    bundle = AlteredBundle(bundle_of("llama", weights="fp32"), tmp_path / "bundle")
    names = [tensor.name for tensor in bundle.model.graph.initializer]
    poke(next(full_name for full_name in names if full_name.startswith(name)), NAN)(bundle)
    with pytest.raises(BundleError, match=r"float32 \d+ x 64' has elements that are infinite"):
        prepare(bundle.save(), LoadOptions(backend="cpu", threads=1))


def test_a_graph_that_computes_nothing_is_refused(tmp_path):
    bundle = AlteredBundle(bundle_of("llama", weights="int4"), tmp_path / "bundle")
    del bundle.model.graph.node[:]
    del bundle.model.graph.output[1:]
    bundle.initializer("model.norm.weight").name = "logits"
    with pytest.raises(InputError, match="computes nothing"):
        prepare(bundle.save(), LoadOptions(backend="cpu", threads=1))


@pytest.mark.parametrize(
    "name", [f"{LAYER}.mlp.up_proj.weight.scales", "model.embed_tokens.weight.scales"]
)
def test_many_scales_are_looked_at_while_they_are_prepared(name, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "FEW_BYTES", 0)
    folder = write(poke(name, NAN), tmp_path / "bundle")
    open_bundle(folder)
    with pytest.raises(BundleError, match=r"int\d \(\d+, 64\)' has scales that are infinite"):
        prepare(folder, LoadOptions(backend="cpu", threads=1))


def test_scales_of_many_experts_are_looked_at_while_they_are_prepared(tmp_path, monkeypatch):
    """Each has some in a page of its own, so that thousands of pages would be read."""
    monkeypatch.setattr(constants, "FEW_BYTES", 7 * constants.PAGE_BYTES)
    bundle = AlteredBundle(bundle_of("olmoe", weights="int4"), tmp_path / "bundle")
    poke(f"{LAYER}.mlp.experts.3.up_proj.weight.scales", NAN)(bundle)
    folder = bundle.save()
    open_bundle(folder)
    with pytest.raises(BundleError, match=r"int4 \(32, 64\)' has scales that are infinite"):
        prepare(folder, LoadOptions(backend="cpu", threads=1))


def test_scales_of_few_experts_are_looked_at_at_once(tmp_path):
    bundle = AlteredBundle(bundle_of("olmoe", weights="int4"), tmp_path / "bundle")
    poke(f"{LAYER}.mlp.experts.3.up_proj.weight.scales", NAN)(bundle)
    with pytest.raises(BundleError, match=r"up\[3\]' has scales that are infinite"):
        open_bundle(bundle.save())
