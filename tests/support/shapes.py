"""Graphs of the shape of real models, whose weights take no memory."""

from __future__ import annotations

import numpy as np

from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Constant, Graph, Node
from edgerun.graph.shapes import value_shapes

BLOCK = 32


def weight(k: int, n: int) -> PackedWeight:
    """A matrix of 4 bits, all of whose codes are the same byte."""
    codes = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.uint8), (n, k // BLOCK, BLOCK // 2), (0, 0, 0)
    )
    scales = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (n, k // BLOCK), (0, 0))
    return PackedWeight("int4", (n, k), BLOCK, codes, scales)


def llama_graph(layers: int, hidden: int, wide: int, heads: int, kv_heads: int) -> Graph:
    """A llama without norms and rotary embedding, with a vocabulary of 32,000."""
    dim, vocab = hidden // heads, 32_000
    table = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (vocab, hidden), (0, 0))
    constants: dict[str, Constant] = {"table": table}
    nodes = [Node("embedding", "embed", ("ids", "table"), ("x0",))]

    def linear(name: str, source: str, k: int, n: int) -> str:
        constants[f"{name}.w"] = weight(k, n)
        inputs = (source, f"{name}.w")
        nodes.append(Node("linear", name, inputs, (f"{name}.y",), {"activations": "int8_block"}))
        return f"{name}.y"

    value = "x0"
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    for layer in range(layers):
        q = linear(f"q{layer}", value, hidden, hidden)
        k, v = (linear(f"{part}{layer}", value, hidden, kv_heads * dim) for part in "kv")
        scores = {"scale": dim**-0.5, "window": 0, "softcap": 0.0}
        attributes = {"layer": layer, **sizes, **scores}
        nodes.append(Node("attention", f"a{layer}", (q, k, v), (f"a{layer}.y",), attributes))
        value = linear(f"o{layer}", f"a{layer}.y", hidden, hidden)
        value = linear(f"up{layer}", value, hidden, wide)
        value = linear(f"down{layer}", value, wide, hidden)
    nodes.append(Node("select_rows", "select", (value,), ("last",)))
    logits = linear("head", "last", hidden, vocab)
    graph = Graph(nodes, [], [logits], constants)
    graph.shapes = value_shapes(graph)
    return graph
