"""What ``edgerun quality --plot`` draws: bytes against bits per byte."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from edgerun.files.private import write_atomically
from edgerun_export.quality.measure import Row

SIZE, DPI = (7.5, 4.5), 120
_ONE_COLUMN = 3  # as many texts stand below each other
# Safe for the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draws a plot for each text, a line for each method; the source is a level.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter

    source, *measured = rows
    methods = list(dict.fromkeys(row.setting.rpartition(":")[2] for row in measured))
    across = 1 if len(source.texts) <= _ONE_COLUMN else 2
    down = -(-len(source.texts) // across)
    figure = Figure(figsize=(SIZE[0] * across, SIZE[1] * down), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    for at, name in enumerate(source.texts):
        axes = figure.add_subplot(down, across, at + 1)
        axes.axhline(source.texts[name].bits_per_byte, color="grey", label="source")
        for which, method in enumerate(methods):
            points = sorted(
                (row.bytes / 1e6, row.texts[name].bits_per_byte)
                for row in measured
                if row.setting.endswith(f":{method}")
            )
            axes.plot(*zip(*points, strict=True), "o-", label=method, color=COLOURS[which % 7])
        axes.set(title=name, xlabel="MB of weights", ylabel="bits per byte", yscale="log")
        axes.yaxis.set_major_formatter(FormatStrFormatter("%.3g"))
        axes.yaxis.set_minor_formatter(FormatStrFormatter("%.3g"))
        axes.legend()
    out = io.BytesIO()
    figure.savefig(out, format=path.suffix[1:].lower())
    write_atomically(path, out.getvalue())
