"""From samples to figures: medians, ratios pair by pair, and whether targets are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

PHASES = ("decode", "prefill")
OURS = "edgerun"
DECODE_GOAL = 1.3
BANDWIDTH_GOAL = 0.6
MEMORY_GOAL = 1.25
# The goal names this one and onnxruntime; the other pairs are for information.
GOAL_RIVAL = "llamacpp:tq2_0"

Samples = Mapping[str, Sequence[float]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {
        "median": _short(median(values)),
        "min": _short(min(values)),
        "max": _short(max(values)),
    }


def pair_ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ratios of samples taken in the same round, summed up."""
    return spread([mine / other for mine, other in zip(ours, theirs, strict=True)])


def all_ratios(samples: Mapping[str, Samples]) -> dict[str, dict[str, dict[str, float]]]:
    """Every edgerun variant over every other runtime, by phase.

    Args:
        samples: tokens a second by peer and phase, one for each round.
    """
    return {
        f"{mine} / {other}": {
            phase: pair_ratios(samples[mine][phase], samples[other][phase]) for phase in PHASES
        }
        for mine in samples
        if mine.startswith(OURS)
        for other in samples
        if not other.startswith(OURS)
    }


def peer_figures(
    samples: Samples, step_bytes: int, file_bytes: int, bandwidth: float, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Sums up one peer.

    Args:
        samples: tokens a second by phase.
        step_bytes: weights that a decode step reads.
        file_bytes: size of the weights on disk.
        bandwidth: measured bytes a second.
        state: resident memory, as ``usage.memory`` reports it.
    """
    used = median(samples["decode"]) * step_bytes
    return {
        **{phase: spread(samples[phase]) for phase in PHASES},
        "weight_gb_per_step": _short(step_bytes / 1e9),
        "weight_gb_per_s": _short(used / 1e9),
        "bandwidth_share": _short(used / bandwidth),
        "memory_over_weights": _short(state["rss_bytes"] / file_bytes),
        **state,
    }


def goals(
    peers: Mapping[str, Mapping[str, Any]], ratios: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Compares with what the project asks of itself."""
    rows = [
        _goal(f"decode {pair}", ratio["decode"]["median"], DECODE_GOAL, at_least=True)
        for pair, ratio in ratios.items()
        if _counts(*pair.split(" / "))
    ]
    for name, figures in peers.items():
        if name.startswith(OURS) and "error" not in figures:
            share, memory = figures["bandwidth_share"], figures["memory_over_weights"]
            rows.append(_goal(f"bandwidth share {name}", share, BANDWIDTH_GOAL, at_least=True))
            rows.append(_goal(f"memory / weights {name}", memory, MEMORY_GOAL, at_least=False))
    return rows


def table(result: Mapping[str, Any]) -> str:
    """Renders a result as Markdown tables."""
    lines = [
        "| peer | decode tok/s | prefill tok/s | GB/step | GB/s | share | resident GB | of file |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in result["peers"].items():
        lines.append(_peer_row(name, figures))
    lines += ["", "| pair (median of rounds) | decode | prefill |", "|---|---|---|"]
    for pair, ratio in result["ratios"].items():
        lines.append(f"| {pair} | {_range(ratio['decode'])} | {_range(ratio['prefill'])} |")
    lines += ["", "| goal | measured | wanted | met |", "|---|---|---|---|"]
    for row in result["goals"]:
        met = "yes" if row["met"] else "no"
        lines.append(f"| {row['name']} | {row['value']} | {row['wanted']} | {met} |")
    return "\n".join(lines)


def _peer_row(name: str, figures: Mapping[str, Any]) -> str:
    if "error" in figures:
        reason = figures["error"].replace("|", "/")
        return f"| {name} | failed: {reason} | | | | | | |"
    cells = [
        name,
        _range(figures["decode"]),
        _range(figures["prefill"]),
        f"{figures['weight_gb_per_step']:.3f}",
        f"{figures['weight_gb_per_s']:.2f}",
        f"{figures['bandwidth_share']:.2f}",
        f"{figures['rss_bytes'] / 1e9:.2f}",
        f"{figures['memory_over_weights']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _range(values: Mapping[str, float]) -> str:
    return f"{values['median']:.2f} ({values['min']:.2f}–{values['max']:.2f})"


def _counts(mine: str, other: str) -> bool:
    """Whether the decode goal speaks of this pair: onnxruntime on the same bundle only."""
    kind, variant = other.split(":")
    if kind == "onnxruntime":
        return mine.split(":")[1] == variant
    return other == GOAL_RIVAL


def _goal(name: str, value: float, wanted: float, *, at_least: bool) -> dict[str, Any]:
    met = value >= wanted if at_least else value <= wanted
    sign = "≥" if at_least else "≤"
    return {"name": name, "value": value, "wanted": f"{sign} {wanted}", "met": met}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
