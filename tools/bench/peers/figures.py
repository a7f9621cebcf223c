"""From samples to figures: medians, ratios pair by pair, and whether targets are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "edgerun"
DECODE = "decode"
OTHER_MEMORY_BYTES = 150e6  # beside weights and cache
# Rivals that read the same bundle, so that the ratio says something about the runtime alone.
SAME_BUNDLE = "onnxruntime"

Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio that edgerun is to reach; the rival is a name, or a kind on the same bundle."""

    preset: str
    rival: str
    what: str
    least: float


GOALS = (
    Goal("bitnet-2b-4t", "llamacpp:tq2_0", DECODE, 2.4),
    Goal("bitnet-2b-4t", "llamacpp:q4_0", DECODE, 2.2),
    Goal("bitnet-2b-4t", SAME_BUNDLE, DECODE, 2.5),
    Goal("bitnet-2b-4t", "llamacpp:tq2_0", "prefill-128", 8.0),
    Goal("bitnet-2b-4t", "llamacpp:q4_0", "prefill-128", 3.0),
    Goal("bitnet-2b-4t", SAME_BUNDLE, "prefill-128", 5.0),
    Goal("bitnet-2b-4t", "llamacpp:tq2_0", "prefill-512", 10.0),
    Goal("bitnet-2b-4t", "llamacpp:q4_0", "prefill-512", 4.0),
    Goal("bitnet-2b-4t", SAME_BUNDLE, "prefill-512", 5.0),
    Goal("olmoe-1b-7b", "llamacpp:q4_0", DECODE, 1.3),
    Goal("olmoe-1b-7b", "llamacpp:q4_0", "prefill-512", 2.0),
    Goal("olmoe-1b-7b", SAME_BUNDLE, DECODE, 4.0),
    Goal("qwen3-30b-a3b-8", "llamacpp:q4_0", DECODE, 1.3),
    Goal("qwen3-30b-a3b-8", "llamacpp:q4_0", "prefill-512", 2.0),
    Goal("qwen3-30b-a3b-8", SAME_BUNDLE, DECODE, 4.0),
)
# Elsewhere edgerun is to be ahead of everyone.
AHEAD_AT = ("llama-3.2-1b", "default")

MET = {True: "yes", False: "no", None: "cannot be told"}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {
        "median": _short(median(values)),
        "min": _short(min(values)),
        "max": _short(max(values)),
    }


def pair_ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ratios of samples taken in the same round, summed up."""
    return spread([mine / other for mine, other in zip(ours, theirs, strict=False)])


def all_ratios(samples: Mapping[str, Samples]) -> dict[str, dict[str, dict[str, float]]]:
    """Every edgerun variant over every other runtime, by what was measured.

    Args:
        samples: tokens a second by peer and phase, one for each round.
    """
    return {
        f"{mine} / {other}": {
            what: pair_ratios(samples[mine][what], samples[other][what])
            for what in samples[mine]
            if samples[other].get(what)
        }
        for mine in samples
        if mine.startswith(OURS)
        for other in samples
        if not other.startswith(OURS)
    }


def summary(run: Mapping[str, Any]) -> dict[str, Any]:
    """Sums up a run for tables and for the line of JSON."""
    alive = {name: peer for name, peer in run["peers"].items() if "error" not in peer}
    ratios = all_ratios({name: peer["samples"] for name, peer in alive.items()})
    peers = {
        name: peer_figures(peer, run["bandwidth"]) if name in alive else dict(peer)
        for name, peer in run["peers"].items()
    }
    fields = ("kind", "preset", "threads", "rounds", "prompt", "decode", "date", "machine")
    return {
        **{name: run[name] for name in (*fields, "processor", "isa", "complete")},
        "bandwidth_gb_per_s": spread([value / 1e9 for value in run["bandwidth"] or [0.0]]),
        "int8_peak_tops": _short(2e-12 * run["int8_peak"]),
        "peers": peers,
        "ratios": ratios,
        "goals": goals(run["preset"], peers, ratios) if run["kind"] == "compare" else [],
    }


def bandwidth_shares(used: Sequence[float], bandwidth: Sequence[float]) -> list[float]:
    """Shares of the speed of memory, round by round, as ratios are.

    Args:
        used: bytes a second in each round.
        bandwidth: bytes a second before the first round and after every round; of the two
            beside a round the better counts, so that a disturbed one cannot flatter the share.
    """
    beside = (bandwidth[index : index + 2] or bandwidth for index in range(len(used)))
    return [value / max(around) for value, around in zip(used, beside, strict=True)]


def peer_figures(peer: Mapping[str, Any], bandwidth: Sequence[float]) -> dict[str, Any]:
    """Sums up one peer.

    Args:
        peer: as ``Entry.described`` returns it.
        bandwidth: measured bytes a second, see ``bandwidth_shares``.
    """
    figures: dict[str, Any] = {
        what: spread(values) for what, values in peer["samples"].items() if values
    }
    if figures.get(DECODE):
        used = [rate * peer["step_bytes"] for rate in peer["samples"][DECODE]]
        figures["weight_gb_per_step"] = _short(peer["step_bytes"] / 1e9)
        figures["weight_gb_per_s"] = _short(median(used) / 1e9)
        shares = bandwidth_shares(used, bandwidth) if bandwidth else [0.0]
        figures["bandwidth_share"] = _short(median(shares))
    if "peak_bytes" in peer:
        figures["memory_over_weights"] = _short(peer["rss_bytes"] / peer["weight_bytes"])
        figures["other_memory_mb"] = _short(
            (peer["peak_bytes"] - peer["weight_bytes"] - (peer["cache_bytes"] or 0)) / 1e6
        )
    fields = ("version", "load_s", "weight_bytes", "other_cores", "peak_bytes", "rss_bytes")
    return figures | {name: peer[name] for name in (*fields, "idle_cores") if name in peer}


def goals(
    preset: str, peers: Mapping[str, Mapping[str, Any]], ratios: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Compares with what the project asks of itself."""
    rows = []
    for pair, by_what in ratios.items():
        for what, ratio in by_what.items():
            least = least_ratio(preset, *pair.split(" / "), what)
            if least is not None:
                rows.append(_goal(f"{what} {pair}", ratio["median"], least, at_least=True))
    for name, figures in peers.items():
        if name.startswith(OURS) and "other_memory_mb" in figures:
            used, name = figures["other_memory_mb"], f"MB beside weights and cache {name}"
            goal = _goal(name, used, OTHER_MEMORY_BYTES / 1e6, at_least=False)
            # Less than nothing: parts of the weights were not resident, which are not known.
            rows.append(goal if used >= 0 else {**goal, "met": None})
    return rows


def least_ratio(preset: str, mine: str, other: str, what: str) -> float | None:
    """The ratio that a pair is to reach; None where nothing is asked of it."""
    kind, variant = other.split(":")
    for goal in GOALS:
        named = goal.rival == other or (goal.rival == kind and variant == mine.split(":")[1])
        if goal.preset == preset and goal.what == what and named:
            return goal.least
    return 1.0 if preset in AHEAD_AT and not _other_bundle(mine, other) else None


def _other_bundle(mine: str, other: str) -> bool:
    """Whether a pair reads two different bundles, so that their ratio compares formats."""
    kind, variant = other.split(":")
    return kind != "llamacpp" and variant != mine.split(":")[1]


def table(summed: Mapping[str, Any]) -> str:
    """Renders a summary as Markdown tables, but for the goals."""
    whats = list(dict.fromkeys(what for by in summed["ratios"].values() for what in by))
    whats = whats or _whats(summed["peers"])
    parts = [_peer_table(summed["peers"], whats), _ratio_table(summed["ratios"], whats)]
    return "\n\n".join(part for part in parts if part)


def _whats(peers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    whats = [what for peer in peers.values() for what, value in peer.items() if _is_spread(value)]
    return list(dict.fromkeys(whats))


def _is_spread(value: object) -> bool:
    return isinstance(value, Mapping) and "median" in value


def _peer_table(peers: Mapping[str, Mapping[str, Any]], whats: Sequence[str]) -> str:
    extra = ("GB/step", "GB/s", "share", "peak GB", "resident / file")
    head = ["peer", *(f"{what} tok/s" for what in whats), *extra]
    rows = [head, ["---"] * len(head)]
    for name, figures in peers.items():
        if "error" in figures:
            reason = " ".join(figures["error"].replace("|", "/").split())
            rows.append([name, f"failed: {reason}", *[""] * (len(head) - 2)])
            continue
        cells = [_range(figures.get(what)) for what in whats]
        numbers = [
            _number(figures.get("weight_gb_per_step"), 3),
            _number(figures.get("weight_gb_per_s"), 1),
            _number(figures.get("bandwidth_share"), 2),
            _number(figures["peak_bytes"] / 1e9 if "peak_bytes" in figures else None, 2),
            _number(figures.get("memory_over_weights"), 2),
        ]
        rows.append([name, *cells, *numbers])
    return _markdown(rows)


def _ratio_table(ratios: Mapping[str, Mapping[str, Any]], whats: Sequence[str]) -> str:
    head = ["pair (median of rounds)", *whats]
    rows = [head, ["---"] * len(head)]
    rows += [[pair, *(_range(by.get(what)) for what in whats)] for pair, by in ratios.items()]
    return _markdown(rows) if ratios else ""


def goal_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Renders goals as a Markdown table; empty where there are none."""
    lines = [["goal", "measured", "wanted", "met"], ["---"] * 4]
    for row in rows:
        value = "below 0" if row["met"] is None else f"{row['value']:.4g}"
        lines.append([row["name"], value, row["wanted"], MET[row["met"]]])
    return _markdown(lines) if rows else ""


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _range(values: Mapping[str, float] | None) -> str:
    if not values:
        return ""
    places = 2 if values["median"] < 100 else 0
    middle, low, high = (f"{values[name]:.{places}f}" for name in ("median", "min", "max"))
    return f"{middle} ({low}–{high})"


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def _goal(name: str, value: float, target: float, *, at_least: bool) -> dict[str, Any]:
    met = value >= target if at_least else value <= target
    sign = "≥" if at_least else "≤"
    return {"name": name, "value": value, "wanted": f"{sign} {target:g}", "met": met}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
