"""The networks of a layer of experts, written out one after the other, become ``experts``.

In the file each expert gathers its rows, computes them, and adds them to the sum of those before
it (docs/bundle.md). The nodes of a large model are nearly all of them such networks, so they are
taken out before any other pass looks at them: the first one is lowered and matched, the others
are compared with it, node by node, and have to be the same but for their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.errors import BundleError, UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.attributes import Read, Rules, is_unread
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.gates import fuse_gates
from edgerun.graph.passes.linear import fuse_linear, stored_matrix
from edgerun.graph.shapes import ALTERED
from edgerun.graph.template import Part, Template, part_of

_ROUTE = Op("Gather", Var("routes"), Const("expert"), axis=0)
_PLACES = Op("Transpose", Op("NonZero", _ROUTE), perm=(1, 0))
_TAKEN = Op("GatherND", Var("rows"), _PLACES, batch_dims=0)
_WEIGHT = Op("Unsqueeze", Op("GatherND", _ROUTE, _PLACES, batch_dims=0), Num(-1))
STACKS = ("gate", "up", "down")
BIASES = tuple(f"{name}_bias" for name in STACKS)


def _expert(*biases: Const) -> Op:
    """A network, whose projections have biases or none."""
    added: list[tuple[Const, ...]] = [(bias,) for bias in biases] or [()] * len(STACKS)
    gate, up = (
        Op("linear", _TAKEN, Const(name), *bias)
        for name, bias in zip(STACKS[:2], added[:2], strict=True)
    )
    down = Op("linear", Op("gate", gate, up), Const("down"), *added[2])
    return Op("ScatterND", Var("sum"), _PLACES, Op("Mul", down, _WEIGHT), reduction="add")


_EXPERTS = (_expert(), _expert(*map(Const, BIASES)))
_NOTHING = Op("ConstantOfShape", Op("Shape", Var("rows"), start=0, end=None))
_ROUTES = Op("Transpose", Op("Reshape", Var("routes"), Const("shape")), perm=(1, 0))
_FLAT = Op("Reshape", Var("x"), Const("shape"))
_RESULT = Op("Reshape", Var("sum"), Op("Shape", Var("x"), start=0, end=None))


def fuse_experts(graph: Graph) -> Graph:
    """Rewrites every chain of experts that begins with nothing and is read as a whole.

    Raises:
        BundleError: the weights of an expert contradict what the file says of them.
        UnsupportedError: an expert is not like the first of its chain.
    """
    matcher, sums = Matcher(graph), _sums(graph)
    gone: set[str] = set()
    rewritten: dict[str, Node] = {}
    for node in graph.nodes:
        added = sums.get(node.inputs[0]) if node.op == "Reshape" else None
        if added is not None and len(node.inputs) == 2:
            layer = _Layer(matcher, node, *added)
            if layer.is_whole():
                rewritten[node.name] = layer.fused()
                gone.update(layer.names)
    if not rewritten:
        return graph
    return graph.with_nodes(
        rewritten.get(node.name, node) for node in graph.nodes if node.name not in gone
    )


def _sums(graph: Graph) -> dict[str, tuple[Node, int]]:
    """By the name of a sum, the node that adds the first expert of its chain, and how many do."""
    sums: dict[str, tuple[Node, int]] = {}
    for node in graph.nodes:
        if node.op == "ScatterND" and len(node.inputs) == 3:
            first, count = sums.get(node.inputs[0], (node, 0))
            sums[node.outputs[0]] = first, count + 1
    return sums


class _Layer:
    """A layer of experts as the file has it."""

    def __init__(self, matcher: Matcher, result: Node, first: Node, count: int) -> None:
        """Takes the Reshape at its end, the first node that adds an expert, and how many do."""
        self._matcher, self._result, self._first, self._count = matcher, result, first, count
        self._start = first.inputs[0]
        self.names: set[str] = set()

    def is_whole(self) -> bool:
        """Whether what is around the experts has the exporter's form."""
        matcher = self._matcher
        places = matcher.match(self._first.inputs[1], _PLACES)
        start = matcher.match(self._start, _NOTHING)
        if places is None or start is None:
            return False
        self._number, self._routes, self._rows = places["expert"], places["routes"], start["rows"]
        x, routes = matcher.match(self._rows, _FLAT), matcher.match(self._routes, _ROUTES)
        result = matcher.match(self._result.outputs[0], _RESULT)
        if x is None or routes is None or result is None or result["x"] != x["x"]:
            return False
        self._inputs = x["x"], routes["routes"]
        shapes = [matcher.graph.array(each["shape"]).reshape(-1) for each in (x, routes)]
        if any(len(shape) != 2 for shape in shapes):
            return False
        self._width = shapes[0][1].item()
        return [shape.tolist() for shape in shapes] == [[-1, self._width], [-1, self._count]]

    def _chain(self) -> list[Node]:
        """The nodes that add an expert each to what the Reshape reads, in their order."""
        chain, value = [], self._result.inputs[0]
        for _ in range(self._count):
            chain.append(self._matcher.producers[value])
            value = chain[-1].inputs[0]
        return chain[::-1]

    def fused(self) -> Node:
        """The node that computes the layer; adds its stacks of weights to the graph.

        Raises:
            BundleError: the weights of an expert contradict what the file says of them.
            UnsupportedError: an expert is not like the first one.
        """
        graph, chain = self._matcher.graph, self._chain()
        last = chain[-1].name
        outside = {self._rows, self._routes, self._start}
        first = part_of(self._first, self._matcher.producers, outside)
        attributes, makers, biases = self._lowered(first)
        own = self._own_constants(first, makers) | {self._number, *biases.values()}
        template = Template(self._matcher, first, own)
        stacks: dict[str, list[Matrix]] = {name: [] for name in (*STACKS, *biases)}
        for index, end in enumerate(chain):
            part = self._compared(index, end, template)
            for name, place in makers.items():
                stacks[name].append(stored_matrix(part.nodes[place], graph))
            for name, bias in biases.items():
                stacks[name].append(graph.array(part.values[template.place(bias)]))
            self.names.update(node.name for node in part.nodes)
            if stacks["gate"][-1].shape[1] != self._width:
                raise BundleError(
                    f"rows of {self._width} go into expert {index} that '{last}' adds, whose "
                    f"matrices have shape {stacks['gate'][-1].shape}: {ALTERED}"
                )
        # What is multiplied by itself is one stack, which gate and up projection have in common.
        names = {name: f"{last}/{name}" for name in stacks}
        if makers["gate"] == makers["up"]:
            names["gate"] = names["up"]
        for name, stack in {names[name]: stack for name, stack in stacks.items()}.items():
            graph.add_constant(name, ExpertStack(tuple(stack)))
        return Node(
            "experts",
            self._result.name,
            (*self._inputs, *names.values()),
            self._result.outputs,
            attributes,
        )

    def _own_constants(self, first: Part, makers: Mapping[str, int]) -> set[str]:
        """The constants that the first expert multiplies by."""
        weights = {name for place in makers.values() for name in first.nodes[place].inputs[1:]}
        return weights & self._matcher.graph.constants.keys()

    def _compared(self, index: int, last: Node, template: Template) -> Part:
        """An expert that is like the first one, and whose number is its place.

        Raises:
            UnsupportedError: it is not.
        """
        part = template.compare(last, {self._start: last.inputs[0]})
        if isinstance(part, Node):
            raise UnsupportedError(
                f"node '{part.name}' ({part.op}) of expert {index} that '{last.name}' adds is not "
                "what the first expert has there; expected experts that differ in weights alone"
            )
        number = self._matcher.number(part.values[template.place(self._number)])
        if number != index:
            raise UnsupportedError(
                f"node '{last.name}' adds what expert {number} computes where that of expert "
                f"{index} belongs; expected every expert once, in ascending order"
            )
        return part

    def _lowered(self, network: Part) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
        """What the experts of a layer have in common, found in the first one.

        Returns:
            attributes of the layer, the place of the node that multiplies by each matrix, and
            the names of the biases.
        """
        whole, last = self._matcher.graph, network.nodes[-1]
        constants = {x: whole.constants[x] for x in network.values if x in whole.constants}
        inputs = [self._rows, self._routes, last.inputs[0]]
        single = Graph(network.nodes, inputs, [last.outputs[0]], constants)
        for node in filter(is_unread, network.nodes):
            raise UnsupportedError(f"node '{node.name}' is '{node.op}', which no known expert has")
        matcher = Matcher(fuse_gates(fuse_linear(single)))
        match = next(filter(None, (matcher.match(last.outputs[0], e) for e in _EXPERTS)), None)
        if match is None or (match["rows"], match["routes"]) != (self._rows, self._routes):
            raise UnsupportedError(
                f"the experts that '{last.name}' begins to add up are none that edgerun knows; "
                "expected gate, up and down projection of the rows that the router sends there"
            )
        stored = (matcher.graph.constants[match[name]] for name in STACKS)
        if any(isinstance(each, PackedWeight) and each.offsets is not None for each in stored):
            raise UnsupportedError(
                f"the experts that '{last.name}' begins to add up have weights with offsets; "
                "expected none, or zero points"
            )
        makers, activations = self._roles(matcher, match)
        if len(activations) != 1:
            raise UnsupportedError(
                f"the projections of the experts of '{last.name}' round their inputs in different "
                f"ways ({', '.join(sorted(activations))}); expected one"
            )
        gates = [node for node in matcher.graph.nodes if node.op == "gate"]
        attributes = {
            "top_k": self._top_k(),
            "activation": gates[0].attrs["activation"],
            "activations": activations.pop(),
        }
        places = {node.outputs[0]: place for place, node in enumerate(network.nodes)}
        biases = {name: match[name] for name in BIASES if name in match.values}
        return attributes, {name: places[value] for name, value in makers.items()}, biases

    def _roles(self, matcher: Matcher, match: Match) -> tuple[dict[str, str], set[str]]:
        """Products with each matrix, as the file names them, and how they see their inputs."""
        products = [node for node in matcher.graph.nodes if node.op == "linear"]
        by_weight = {node.inputs[1]: node.outputs[0] for node in products}
        makers = {}
        for name in STACKS:
            node = self._matcher.producers[by_weight[match[name]]]
            makers[name] = node.inputs[0] if node.op == "Add" else node.outputs[0]
        return makers, {str(node.attrs["activations"]) for node in products}

    def _top_k(self) -> int:
        """How many experts the router chooses; all, where something else made the routes."""
        route = self._matcher.producers.get(self._inputs[1])
        if route is None or route.op != "route":
            return self._count
        return int(route.attrs["top_k"])


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Gather": {"axis": Read(int, 0)},
    "GatherND": {"batch_dims": Read(int, 0)},
    "Reshape": {"allowzero": 0},
    "ScatterND": {"reduction": Read(str, "none")},
    "Shape": {"start": Read(int, 0), "end": Read(int)},
    "Transpose": {"perm": Read(tuple)},
}
PASS = Pass(7, fuse_experts, READS)
