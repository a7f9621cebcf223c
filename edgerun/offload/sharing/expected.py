"""The table of what is expected of layers that are shared with a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Phase, Report, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.weights import stacks_of
from edgerun.graph.ir import Graph, Node
from edgerun.offload.sharing.outlook import Call, Outlook, outlook

if TYPE_CHECKING:
    from edgerun.offload.sharing.backend import SharingBackend

ALONE = "CPU alone"


@dataclass(frozen=True)
class _Kind:
    """What layers have in common that are alike.

    Attributes:
        experts: of a layer.
        nbytes: of one.
        shape: width of a row, and of an expert.
        attributes: of the node.
    """

    experts: int
    nbytes: int
    shape: tuple[int, int]
    attributes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, cpu: CpuBackend, graph: Graph, node: Node) -> _Kind:
        """Of a layer."""
        experts, width, hidden = stacks_of(graph, node)[0].shape
        attributes = tuple(sorted(node.attrs.items()))
        return cls(experts, cpu.expert_bytes(graph, node), (hidden, width), attributes)

    def is_like(self, other: _Kind) -> bool:
        """Whether slots for the other take its experts, as ``Session.takes`` says."""
        mine, others = ({**dict(each.attributes), "top_k": 1} for each in (self, other))
        return (self.nbytes, self.shape, mine) == (other.nbytes, other.shape, others)


def expected_report(
    backend: SharingBackend, cpu: CpuBackend, segments: Sequence[tuple[Graph, Shape]]
) -> Report:
    """What each layer is expected to take, layers that are alike in one row.

    Args:
        backend: whose device shares them.
        cpu: says what the processor takes.
        segments: of the plan, with the layers.

    Raises:
        BackendError: the device has no room for an expert.
    """
    layers = [
        (shape, _Kind.of(cpu, graph, node), cpu.cost(graph, node, shape))
        for graph, shape in segments
        for node in graph.nodes
    ]
    phase, first = layers[0][0].phase, layers[0][1]
    slots = backend.slots(first.nbytes)
    experts = sum(
        kind.experts for shape, kind, _ in layers if shape.phase is phase and kind.is_like(first)
    )
    share = min(1.0, slots / experts)
    rows: list[dict[str, Any]] = []
    for (shape, kind, cpu_s), alike in groupby(layers):
        there = share if kind.is_like(first) else 0.0
        call = Call.of(kind.experts, dict(kind.attributes)["top_k"], shape.rows, cpu_s)
        layer = outlook(call, there, slots, backend.assumed_costs(kind.shape, kind.nbytes))
        rows.append(_row(shape, len(list(alike)), call, there, layer))
    return Report(
        f"layers shared with {backend.title}: expected, from costs that are assumed until it runs",
        rows,
        [
            f"turned down: {ALONE}; what is there and no uploads; all uploaded",
            *_verdict(rows),
            f"room on the device for {min(slots, experts)} of {experts} experts, "
            f"{first.nbytes / 1e6:.3g} MB each; memory has all of them",
            "tokens are taken to go to all experts alike",
            f"the processor as estimated above; {backend.assumptions()}",
        ],
    )


def _row(shape: Shape, layers: int, call: Call, share: float, layer: Outlook) -> dict[str, Any]:
    there = call.experts * share
    return {
        "phase": shape.phase.value,
        "rows": shape.rows,
        "layers": layers,
        "experts": call.experts,
        "there": round(there, 1),
        "in memory": round(call.experts - there, 1),
        "on disk": 0,
        "ms a layer": _ms(layer.shared_s),
        "bound": _ms(layer.bound_s),
        ALONE: _ms(layer.alone_s),
        "no uploads": _ms(layer.fixed_s),
        "all uploaded": _ms(layer.moved_s),
    }


def _ms(seconds: float) -> float:
    """Milliseconds, in as many digits as a forecast may have."""
    return float(f"{1e3 * seconds:.3g}")


def _verdict(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What it comes to for a token of a reply."""
    decode = [row for row in rows if row["phase"] == Phase.DECODE.value]
    if decode:
        shared, alone = (
            sum(row["layers"] * row[name] for row in decode) for name in ("ms a layer", ALONE)
        )
        yield f"layers of experts at a token: {shared:.3g} ms, the processor alone {alone:.3g}"
