"""How well the routers of later layers foresee, on what a layer gets, where tokens will go.

    python -m tools.bench.offload.gates BUNDLE FILE [FILE ...] [--ahead 3] [--json]

A router is run on the input of the router one layer before its own, two layers before, and so on,
as prefetching does: the factors of the norm before it are exchanged, all else is left. A figure is
the share of the experts that tokens went to which are among as many that it would have chosen. The
texts of the files go through the model as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import buckets
from edgerun.errors import EdgerunError, InputError
from edgerun.graph.ir import Graph, Node
from edgerun.llm.tracing import layer_numbers, route_nodes
from edgerun.model.bundle import Bundle, open_bundle
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.ops.route import Groups, ranking
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Router:
    """A router of a lowered graph.

    Attributes:
        layer: its number.
        x: name of its input.
        routes: name of what it chooses.
        weight: float32 ``[experts, width]``.
        norm: what its input was multiplied by, float32 ``[width]``.
        top_k: how many experts a row goes to.
        scoring: what makes scores of logits.
        bias: what is added for the choice to what ``biased`` says, float32 ``[experts]``, or None.
        biased: scores or logits.
        groups: of experts, of which some are chosen first.
    """

    layer: int
    x: str
    routes: str
    weight: F32
    norm: F32
    top_k: int
    scoring: str
    bias: F32 | None
    biased: str
    groups: Groups

    def chosen(self, x: F32) -> NDArray[np.int64]:
        """Numbers of the experts that rows would go to, ``[rows, top_k]``."""
        logits = x @ self.weight.T
        scoring = {"scoring": self.scoring, "biased": self.biased}
        ranks = ranking(logits, self.bias, **scoring, groups=self.groups)
        return np.argsort(-ranks, axis=1, kind="stable")[:, : self.top_k]


def main(arguments: list[str] | None = None) -> int:
    """Prints the table that the command line asks for."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("bundle", type=Path)
    command_line.add_argument("texts", type=Path, nargs="+", metavar="FILE")
    command_line.add_argument("--ahead", type=int, default=3)
    command_line.add_argument("--json", action="store_true")
    options = command_line.parse_args(arguments)
    try:
        shares = recall(open_bundle(options.bundle), texts(options.texts), options.ahead)
    except EdgerunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps(shares) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in table(shares))
    return 0


def texts(paths: list[Path]) -> Iterator[str]:
    """The texts of files.

    Raises:
        InputError: one cannot be read.
    """
    for path in paths:
        try:
            yield path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}") from error


def recall(bundle: Bundle, said: Iterator[str], ahead: int) -> dict[int, dict[int, float]]:
    """By distance in layers and by layer, the share of experts that were foreseen.

    Raises:
        InputError: the model has fewer than two layers of experts.
    """
    routers = routers_of(bundle.graph)
    if len(routers) < 2:
        raise InputError("this model has fewer than two layers with experts: nothing to foresee")
    names = [name for router in routers for name in (router.x, router.routes)]
    counts: dict[int, dict[int, NDArray[np.int64]]] = {}
    for values in computed(bundle, names, said):
        for place, router in enumerate(routers):
            needed = values[router.routes] != 0
            for distance in range(1, min(ahead, place) + 1):
                before = routers[place - distance]
                guessed = router.chosen(values[before.x] * (router.norm / before.norm))
                hits = np.take_along_axis(needed, guessed, axis=1)
                layers = counts.setdefault(distance, {})
                layers.setdefault(router.layer, np.zeros(2, np.int64))
                layers[router.layer] += hits.sum(), needed.sum()
    return {
        distance: {layer: float(hits / uses) for layer, (hits, uses) in layers.items()}
        for distance, layers in counts.items()
    }


def computed(bundle: Bundle, names: list[str], said: Iterator[str]) -> Iterator[dict[str, F32]]:
    """Values of a graph for the tokens of each text, as far as a context goes."""
    graph, backend = bundle.graph, make_backend("cpu", given={"threads": 1})
    states, most = states_of(graph, bundle.config, "fp32"), bundle.config.context_length
    whole = replace(graph, outputs=[*graph.outputs, *names])
    plan, options = make_plan(whole, [backend]), CompileOptions(states)
    tokenizer = Tokenizer.from_json(bundle.read_text("tokenizer.json"))
    with closing(compile_plan(plan, [backend], buckets(most), options)) as programs:
        for text in said:
            ids = tokenizer.encode(text)[:most]
            store = SequenceStore(states, len(ids), 1)
            slot = store.open()
            store.reserve(slot, len(ids))
            values = programs.run(Batch.of(np.asarray(ids, np.int32), 0, slot), store)
            yield {name: np.array(values[name]) for name in names}


def routers_of(graph: Graph) -> list[Router]:
    """The routers of a graph, whose logits have no biases, in its order.

    Raises:
        InputError: one is no product with what a norm makes.
    """
    producers, nodes = graph.producers(), route_nodes(graph)
    return [
        _router(graph, producers, node, layer)
        for node, layer in zip(nodes, layer_numbers(nodes), strict=True)
    ]


def _router(graph: Graph, producers: dict[str, Node], node: Node, layer: int) -> Router:
    linear = producers[node.inputs[0]]
    norm = producers.get(linear.inputs[0])
    if linear.op != "linear" or any(linear.inputs[2:]) or norm is None or norm.op != "rms_norm":
        raise InputError(f"'{node.name}' is no router that this tool knows")
    weight, factors = graph.array(linear.inputs[1]), graph.array(norm.inputs[1])
    bias = graph.array(node.inputs[1]) if len(node.inputs) > 1 else None
    names, choice = (
        (linear.inputs[0], node.outputs[0]),
        (node.attrs["top_k"], node.attrs["scoring"]),
    )
    biased, groups = node.attrs["biased"], Groups.of(node.attrs)
    return Router(layer, *names, weight, factors, *choice, bias, biased, groups)


def table(shares: dict[int, dict[int, float]]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    layers = sorted({layer for each in shares.values() for layer in each})
    yield f"| layers ahead | {' | '.join(f'layer {layer}' for layer in layers)} | mean |"
    yield "|---" * (2 + len(layers)) + "|"
    for distance, each in shares.items():
        figures = " | ".join(f"{each[layer]:.3f}" if layer in each else "" for layer in layers)
        yield f"| {distance} | {figures} | {np.mean(list(each.values())):.3f} |"


if __name__ == "__main__":
    sys.exit(main())
