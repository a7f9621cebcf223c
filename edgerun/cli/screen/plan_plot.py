"""What ``edgerun plan --plot`` draws: time against prompt tokens, and where another place pays."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import InputError, MissingDependencyError
from edgerun.files.output import check_output, write_output

if TYPE_CHECKING:
    from edgerun.plan.plans import Plan
    from edgerun.plan.requests.breakeven import Split

SUFFIXES = (".svg", ".png", ".pdf")
MOST_TOKENS, POINTS = 2048, 160
SIZE, DPI = (7.5, 4.5), 120
# Safe for the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def check_plot(path: Path) -> None:
    """Refuses what could not be drawn, before anything is computed.

    Raises:
        InputError: the name says no format that is drawn, or no file of it can be written.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--plot {path}: a plot is written as {', '.join(SUFFIXES)}; expected a name such as "
            "plan.svg"
        )
    check_output(path, replace=True)
    if find_spec("matplotlib") is None:
        raise MissingDependencyError(
            "--plot draws with matplotlib, which is not installed: pip install matplotlib"
        )


def draw(planned: Plan, title: str, longest: int, path: Path) -> None:
    """Draws what prompts of up to ``longest`` tokens take in each place that was weighed.

    Raises:
        InputError: no places were weighed.
        StorageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    splits = [split for split in planned.splits if split.forecast is not None]
    if not splits:
        raise InputError(
            "there is nothing to plot: no device was weighed against the processor; measure those "
            "that are here with `edgerun doctor --calibrate`, or name one that is not with "
            "--device virtual:FILE, and no --place"
        )
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axis = figure.add_subplot()
    simulated = any("simulated" in split.basis for split in splits)
    _curves(axis, splits, min(longest, MOST_TOKENS))
    if planned.prompts is not None:
        _mark(axis, planned.prompts.from_rows + 1)
    axis.set_title(f"{title}: prompts by place, {'simulated' if simulated else 'as predicted'}")
    axis.set_xlabel("prompt tokens")
    axis.set_ylabel("milliseconds to the first token")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.grid(visible=True, alpha=0.3)
    axis.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.lower().removeprefix("."))
    write_output(path, content.getvalue())


def _curves(axis: Any, splits: list[Split], longest: int) -> None:
    """One line for each placement: all here, and prompts in each other place."""
    first = splits[0].forecast
    assert first is not None
    tokens = list(_lengths(longest))
    lines = [(" and ".join(splits[0].here.names), first.seconds_here)]
    for split in splits:
        assert split.forecast is not None
        there, here = (" and ".join(side.names) for side in (split.there, split.here))
        lines.append((f"{there}, last tokens {here}", split.forecast.seconds_there))
    for number, (name, seconds) in enumerate(lines):
        times = [1e3 * seconds(count) for count in tokens]
        axis.plot(tokens, times, label=name, color=COLOURS[number % len(COLOURS)])


def _lengths(longest: int) -> Iterator[int]:
    """From 2 tokens on, each some percent more than the one before."""
    first = 2
    ratio = max(longest / first, 1.0) ** (1 / POINTS)
    counts = (round(first * ratio**number) for number in range(POINTS + 1))
    yield from dict.fromkeys(counts)


def _mark(axis: Any, tokens: int) -> None:
    """Where prompts begin to go elsewhere."""
    axis.axvline(tokens, color="black", linestyle="--", linewidth=1)
    axis.annotate(
        f"from {tokens} tokens on",
        (tokens, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -4),
        textcoords="offset points",
        verticalalignment="top",
        fontsize=9,
    )
