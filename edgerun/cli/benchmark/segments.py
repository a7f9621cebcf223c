"""What ``edgerun bench`` says of each segment of the plan: predicted, measured, and their ratio."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM
    from edgerun.plan.metering import Meter


def segment_figures(llm: LLM, meters: Sequence[Meter]) -> list[dict[str, Any]]:
    """The segments that ran, numbered in the order in which they were compiled.

    ``predicted_ms`` is what the plan's estimates come to for the very calls that were made; None
    where a back-end's estimates do not stand on measurements, and where experts are read meanwhile,
    which no estimate of a segment knows of.
    """
    from edgerun.plan.requests.forecast import metered_seconds

    has_reads = llm.expert_reads() is not None
    backends = {backend.name: backend for backend in llm.model.everyone}
    figures = []
    for number, meter in enumerate(meters, 1):
        if not meter.calls:
            continue
        predicted = None
        if not (has_reads and any(node.op == "experts" for node in meter.segment.graph.nodes)):
            predicted = metered_seconds(meter, backends[meter.segment.backend])
        figures.append(
            {
                "segment": number,
                "part": meter.part,
                "backend": meter.title,
                "ops": len(meter.segment.graph.nodes),
                "calls": len(meter.calls),
                "rows": sum(call.rows for call in meter.calls),
                "predicted_ms": None if predicted is None else 1e3 * predicted,
                "measured_ms": 1e3 * meter.measured_s,
            }
        )
    return figures


def median_figures(rounds: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The same of several runs: medians, and how predictions compare with them.

    Segments are those of the last run: in an earlier one a network may not have been ready.
    """
    times: dict[int, list[float]] = {}
    for each in (each for figures in rounds for each in figures):
        times.setdefault(each["segment"], []).append(each["measured_ms"])
    compared = []
    for each in rounds[-1]:
        measured = median(times[each["segment"]])
        predicted = each["predicted_ms"]
        compared.append(
            {
                **each,
                "predicted_ms": None if predicted is None else round(predicted, 4),
                "measured_ms": round(measured, 4),
                "ratio": None if predicted is None else round(predicted / measured, 3),
            }
        )
    return compared


def segment_lines(figures: Sequence[dict[str, Any]]) -> list[str]:
    """A table for people; no column of predictions stands where nothing was predicted."""
    from edgerun.cli.screen.tables import aligned, without_empty_columns

    rows = []
    for each in figures:
        is_predicted = each["predicted_ms"] is not None
        rows.append(
            {
                "segment": f"{each['part']}, {each['ops']} ops",
                "back-end": each["backend"],
                "calls": each["calls"],
                "rows": each["rows"],
                "predicted ms": f"{each['predicted_ms']:.3f}" if is_predicted else "",
                "measured ms": f"{each['measured_ms']:.3f}",
                "ratio": f"{each['ratio']:.2f}" if is_predicted else "",
            }
        )
    return aligned(without_empty_columns(rows))
