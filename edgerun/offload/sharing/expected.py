"""The table of what is expected of layers that are shared with a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Phase, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.figures import Report
from edgerun.graph.ir import Graph
from edgerun.offload.sharing.choice import Kind, Room, layer_outlook, shaped
from edgerun.offload.sharing.outlook import Call, Outlook

if TYPE_CHECKING:
    from edgerun.offload.sharing.backend import SharingBackend

ALONE = "CPU alone"


def expected_report(
    backend: SharingBackend, cpu: CpuBackend, segments: Sequence[tuple[Graph, Shape]]
) -> Report | None:
    """What each layer is expected to take, layers that are alike in one row.

    Args:
        backend: whose device shares them.
        cpu: says what the processor takes.
        segments: of the plan; layers of experts count, whoever computes them.

    Returns:
        nothing where none can be shared.

    Raises:
        BackendError: the device has no room for an expert.
    """
    layers = [
        (shape, Kind.of(cpu, graph, node), cpu.cost(graph, node, shape))
        for graph, whole in segments
        for node, shape in shaped(graph, whole)
        if backend.can_share(graph, node, shape)
    ]
    if not layers:
        return None
    phase = layers[0][0].phase
    room = Room.of(backend, [kind for shape, kind, _ in layers if shape.phase is phase])
    _, basis = backend.costs(room.first.shape, room.first.nbytes, Phase.DECODE)
    rows: list[dict[str, Any]] = []
    for (shape, kind, cpu_s), alike in groupby(layers):
        layer = layer_outlook(backend, kind, room, shape, cpu_s)
        call = kind.call(shape.rows, cpu_s)
        rows.append(_row(shape, len(list(alike)), call, room.share(kind), layer))
    return Report(
        f"layers shared with {backend.title}: expected",
        rows,
        [
            f"turned down: {ALONE}; what is there and no uploads; all uploaded",
            *_verdict(rows),
            f"room on the device for {min(room.slots, room.experts)} of {room.experts} experts, "
            f"{room.first.nbytes / 1e6:.3g} MB each; memory has all of them",
            "tokens are taken to go to all experts alike",
            f"the processor as estimated above; {basis}",
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
        "pays": "no" if layer.divided_s >= layer.alone_s else "yes",
        "ms a layer": _ms(layer.divided_s),
        "around it": _ms(layer.around_s),
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
