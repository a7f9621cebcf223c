"""What ``edgerun quality --plot`` draws: bytes against bits per byte."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun.files.output import write_output
from edgerun_export.quality.measure import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE, DPI = (7.5, 4.5), 120
_ONE_COLUMN = 3  # as many texts stand below each other
# Safe for the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


MARKERS = "os^Dv*P"
_LINEAR = 0.01  # of a bit; losses below it are drawn to scale, larger ones by their logarithms


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draws a plot for each text: a colour for each method, a marker for each format.

    Heights are bits per byte above the source's, since good methods differ by hundredths and bad
    ones by whole bits. A line joins a method's best formats of each size.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter

    source, *measured = rows
    across = 1 if len(source.texts) <= _ONE_COLUMN else 2
    down = -(-len(source.texts) // across)
    figure = Figure(figsize=(SIZE[0] * across, SIZE[1] * down), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    for at, (name, unrounded) in enumerate(source.texts.items()):
        axes = figure.add_subplot(down, across, at + 1)
        axes.axhline(0, color="grey")
        _draw_methods(axes, measured, name, unrounded.bits_per_byte)
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.set(
            title=name,
            xlabel="MB of weights",
            ylabel=f"bits per byte above the source's {unrounded.bits_per_byte:.3f}",
        )
        axes.yaxis.set_major_formatter(FormatStrFormatter("%.3g"))
        axes.legend(fontsize="small")
    out = io.BytesIO()
    figure.savefig(out, format=path.suffix[1:].lower())
    write_output(path, out.getvalue())


def _draw_methods(axes: Axes, measured: Sequence[Row], text: str, source_bits: float) -> None:
    """Draws what all methods lose on a text."""
    parts = [row.setting.rpartition(":") for row in measured]
    methods = list(dict.fromkeys(method for _, _, method in parts))
    formats = list(dict.fromkeys(kind for kind, _, _ in parts))
    best: dict[str, dict[int, float]] = {method: {} for method in methods}
    for row, (kind, _, method) in zip(measured, parts, strict=True):
        lost = row.texts[text].bits_per_byte - source_bits
        best[method][row.bytes] = min(lost, best[method].get(row.bytes, lost))
        marker, colour = _of(MARKERS, formats, kind), _of(COLOURS, methods, method)
        axes.plot([row.bytes / 1e6], [lost], linestyle="", marker=marker, color=colour)
    for method, points in best.items():
        sizes = sorted(points)
        losses = [points[size] for size in sizes]
        colour = _of(COLOURS, methods, method)
        axes.plot([size / 1e6 for size in sizes], losses, color=colour, label=method)
    for kind in formats:  # for the legend
        axes.plot(
            [], [], linestyle="", color="black", marker=_of(MARKERS, formats, kind), label=kind
        )


def _of(styles: Sequence[str], names: Sequence[str], name: str) -> str:
    return styles[names.index(name) % len(styles)]
