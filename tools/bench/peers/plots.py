"""Plots of a results file; matplotlib is needed by developers only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tools.bench.peers.figures import OURS

Run = Mapping[str, Any]

# A colour for each runtime, safe for the colour-blind (Okabe and Ito); ours are drawn thicker.
# Variants of one runtime differ by marker and dashes.
COLOURS = {
    "edgerun": "#0072B2",
    "llamacpp": "#D55E00",
    "onnxruntime": "#E69F00",
    "openvino": "#009E73",
    "genai": "#CC79A7",
}
MARKERS, DASHES = "osD^v", ("-", "--", ":", "-.", (0, (1, 3)))
SIZE, DPI = (7.0, 4.2), 110
KINDS = {"llamacpp": "llama.cpp", "genai": "onnxruntime-genai", "openvino": "OpenVINO"}


def context_plot(runs: Sequence[Run], path: Path, title: str) -> None:
    """Decoding against the length of the context."""
    _lines(runs, "decode@", path, f"{title}: decoding", "tokens in the context")


def prompt_plot(runs: Sequence[Run], path: Path, title: str) -> None:
    """Prefill against the length of the prompt."""
    _lines(runs, "prefill-", path, f"{title}: prefill", "tokens of the prompt")


def threads_plot(runs: Sequence[Run], path: Path, title: str) -> None:
    """Both phases against the number of threads; one run for each."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.8), dpi=DPI)
    names = _names(runs)
    counts = sorted({run["threads"] for run in runs})
    for axis, what in zip(axes, ("decode", "prefill-128"), strict=True):
        for name in names:
            values = {
                run["threads"]: median(run["peers"][name]["samples"][what])
                for run in runs
                if run["peers"].get(name, {}).get("samples", {}).get(what)
            }
            if values:
                axis.plot(list(values), list(values.values()), **_style(name, names))
        axis.set_title("decode" if what == "decode" else "prefill, 128 tokens")
        axis.set_xlabel("threads")
        axis.set_xticks(counts)
        _finish_axis(axis)
    axes[0].set_ylabel("tokens/s")
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(title, y=1.03)
    _save(figure, path)


def roofline_plot(runs: Sequence[Run], path: Path, title: str) -> None:
    """Operations a second over operations a byte, below what the machine can do."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7.4, 4.6), dpi=DPI)
    bandwidth = max(value for run in runs for value in run["bandwidth"])
    peak = 2 * max(run["int8_peak"] for run in runs)
    points = _roofline_points(runs)
    low = min((x for x, _, _, _ in points), default=1.0) / 2
    high = max((x for x, _, _, _ in points), default=100.0) * 2
    ridge = peak / bandwidth
    xs = [low, min(max(ridge, low), high), high]
    axis.plot(xs, [min(x * bandwidth, peak) / 1e12 for x in xs], color="black", lw=1.5)
    names = _sorted(dict.fromkeys(name for _, _, name, _ in points))
    for name in names:
        own = sorted((x, y) for x, y, other, _ in points if other == name)
        style = _style(name, names) | {"lw": 0.6, "ms": 6}
        axis.plot([x for x, _ in own], [y for _, y in own], **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations per byte of weights (left: one token, right: prompts)")
    axis.set_ylabel("TOPS (two for a multiply-add)")
    limits = f"memory {bandwidth / 1e9:.0f} GB/s, int8 peak {peak / 1e12:.2f} TOPS"
    axis.set_title(f"{title}: roofline\n{limits}", fontsize=10)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _finish_axis(axis, from_zero=False)
    _save(figure, path)


def _roofline_points(runs: Sequence[Run]) -> list[tuple[float, float, str, str]]:
    """Operations a byte, operations a second / 1e12, peer and what was measured."""
    points = {}
    for run in runs:
        macs = run["macs"]
        for name, peer in run["peers"].items():
            for what, values in peer.get("samples", {}).items():
                rows = 1 if what == "decode" else int(what.partition("-")[2])
                work = 2 * (macs["row_macs"] * rows + macs["logit_macs"])
                speed = work * median(values) / rows / 1e12
                points[name, what] = (work / peer["step_bytes"], speed, name, what)
    return list(points.values())


def _lines(runs: Sequence[Run], prefix: str, path: Path, title: str, label: str) -> None:
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=SIZE, dpi=DPI)
    lengths: set[int] = set()
    names = _names(runs)
    for name in names:
        points = _points(runs, name, prefix)
        lengths |= set(points)
        xs = sorted(points)
        style = _style(name, names)
        axis.plot(xs, [median(points[x]) for x in xs], **style)
        low, high = [min(points[x]) for x in xs], [max(points[x]) for x in xs]
        axis.fill_between(xs, low, high, color=style["color"], alpha=0.15, lw=0)
    axis.set_xscale("log", base=2)
    ticks = sorted(lengths)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(label)
    axis.set_ylabel("tokens/s")
    axis.set_title(title)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _finish_axis(axis)
    _save(figure, path)


def _points(runs: Sequence[Run], name: str, prefix: str) -> dict[int, list[float]]:
    """Samples by length; later runs replace earlier ones."""
    points: dict[int, list[float]] = {}
    for run in runs:
        for what, values in run["peers"].get(name, {}).get("samples", {}).items():
            if what.startswith(prefix) and values:
                points[int(what[len(prefix) :])] = values
    return points


def _names(runs: Sequence[Run]) -> list[str]:
    """Peers with samples, ours first."""
    names = dict.fromkeys(
        name for run in runs for name, peer in run["peers"].items() if peer.get("samples")
    )
    return _sorted(names)


def _sorted(names: Iterable[str]) -> list[str]:
    """Ours first, then runtime by runtime."""
    order = list(COLOURS)

    def place(name: str) -> int:
        kind = name.split(":")[0]
        return order.index(kind) if kind in order else len(order)

    return sorted(names, key=place)


def _style(name: str, names: Sequence[str]) -> dict[str, Any]:
    """How a peer is drawn, among all that are drawn."""
    kind, variant = name.split(":")
    place = [other for other in names if other.split(":")[0] == kind].index(name)
    return {
        "color": COLOURS.get(kind, "#666666"),
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "ms": 5,
        "lw": 2.2 if kind == OURS else 1.2,
        "label": f"{KINDS.get(kind, kind)} {variant}",
    }


def _finish_axis(axis: Any, *, from_zero: bool = True) -> None:
    axis.grid(alpha=0.3, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    if from_zero:
        axis.set_ylim(bottom=0)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date in the file, the same results make the same bytes.
    figure.savefig(path, bbox_inches="tight", metadata={"Software": None})
    _pyplot().close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
