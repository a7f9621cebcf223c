"""What a graph says of its model, and what others state about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgerun.errors import BundleError
from edgerun.graph.geometry import confirm, geometry
from edgerun.llm.loading import resolve
from edgerun.model.bundle import open_bundle
from tests.support.bundles import NAMES, bundle_of


@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_exporter_writes_is_confirmed(name, weights):
    bundle = open_bundle(bundle_of(name, weights=weights))
    config = bundle.config
    sizes = geometry(bundle.graph)
    stated = {name: getattr(config, name) for name in sizes}
    assert stated == {name: values[0] if len(values) == 1 else 0 for name, values in sizes.items()}
    has_experts = any(node.op == "experts" for node in bundle.graph.nodes)
    assert len(sizes) == (9 if has_experts else 7)


def test_experts_are_stated():
    config = open_bundle(bundle_of("qwen3_moe", weights="int4")).config
    assert (config.num_experts, config.experts_per_token, config.intermediate_size) == (5, 2, 0)
    config = open_bundle(bundle_of("qwen2_moe", weights="int4")).config
    assert (config.num_experts, config.experts_per_token) == (0, 0)  # the shared one is a layer


def test_a_model_without_gates_has_no_size_of_them():
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    nodes = [node for node in graph.nodes if node.op != "gate"]
    assert geometry(replace(graph, nodes=nodes))["intermediate_size"] == ()


@pytest.mark.parametrize(("layers", "wrong"), [((1, 2), 1), ((0, 2), 2)])
def test_layers_have_numbers_from_0_on(layers, wrong):
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    nodes = [
        node.replace(attrs={**node.attrs, "layer": layers[node.attrs["layer"]]})
        if "layer" in node.attrs
        else node
        for node in graph.nodes
    ]
    with pytest.raises(BundleError, match=f"has 2 layers .* and calls one of them {wrong}; expect"):
        geometry(replace(graph, nodes=nodes))


def test_sizes_that_are_not_stated_are_not_compared():
    sizes = geometry(open_bundle(resolve(None)).graph)
    confirm(sizes, {"hidden_size": 0}, "somebody")
    with pytest.raises(BundleError, match="somebody says hidden_size 1"):
        confirm(sizes, {"hidden_size": 1}, "somebody")
