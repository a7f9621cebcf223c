"""The ``edgerun quality`` command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from edgerun_export.calibrate.text import CalibrationText
    from edgerun_export.checkpoint.base import Checkpoint
    from edgerun_export.quality.measure import Row
    from edgerun_export.quality.settings import Setting
    from edgerun_export.recipe import Recipe
    from edgerun_export.source.weights import SourceWeights

SUMMARY = "Compare weight formats and methods on a checkpoint."
_EXAMPLES = """\
Examples:
  edgerun quality model.gguf --text test.txt --calibrate train.txt
  edgerun quality ./checkpoint --formats int4:32,int2:32 --methods all --text test.txt \\
    --calibrate wiki.txt --calibrate stories.txt --save table.json --plot table.svg"""

_Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="Checkpoint: a Hugging Face folder or hub id, a GGUF file, a llama2.c file.",
    ),
]
_Texts = Annotated[
    list[Path],
    typer.Option(
        "--text", metavar="FILE", help="UTF-8 text to measure on; may be given several times."
    ),
]
_Calibrate = Annotated[
    list[Path] | None,
    typer.Option(
        "--calibrate",
        metavar="FILE",
        help="UTF-8 text that weights are fitted to, never that of --text; may be given several "
        "times.",
    ),
]
_Formats = Annotated[
    str, typer.Option(help="Formats, with commas between: FORMAT or FORMAT:GROUP.")
]
_Methods = Annotated[
    str | None,
    typer.Option(
        help="Methods, with commas between, or all. Default: mse, and with --calibrate gptq and "
        "residual."
    ),
]
_Windows = Annotated[
    int, typer.Option(min=1, help="Pieces of each text that are measured, from all over it.")
]
_Tokens = Annotated[int, typer.Option(min=16, help="Length of pieces, at most the context.")]
_CalibrationWindows = Annotated[
    int, typer.Option("--calibration-windows", min=1, help="Pieces of text to fit to.")
]
_Scales = Annotated[
    str, typer.Option(help="fp32 or fp16: the type of scales in the file, that bytes count.")
]
_Transforms = Annotated[
    list[str] | None,
    typer.Option("--transform", help="As for edgerun export; for all rows of the table."),
]
_Save = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json", help="Keep what is measured; the same command then goes on from there."
    ),
]
_Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Draw bytes against bits per byte.")
]
_Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="Worker threads. Default: one a core.")
]
_Tokenizer = Annotated[Path | None, typer.Option(help="Tokenizer file, for llama2.c checkpoints.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]


def register(app: typer.Typer) -> None:
    """Adds ``quality`` to the command line."""
    app.command("quality", help=SUMMARY, epilog=_EXAMPLES)(quality_command)


def quality_command(
    source: _Source,
    text: _Texts,
    calibrate: _Calibrate = None,
    formats: _Formats = "int4,int2",
    methods: _Methods = None,
    windows: _Windows = 12,
    tokens: _Tokens = 512,
    calibration_windows: _CalibrationWindows = 64,
    transform: _Transforms = None,
    scales: _Scales = "fp32",
    save: _Save = None,
    plot: _Plot = None,
    threads: _Threads = None,
    tokenizer: _Tokenizer = None,
    as_json: _Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun.cli.plan_plot import check_plot
    from edgerun.cli.screen.progress import progress_line
    from edgerun.kernels.host.cores import worker_threads
    from edgerun_export.checkpoint import open_checkpoint
    from edgerun_export.quality.measure import Saved, key_of, measure
    from edgerun_export.quality.settings import settings
    from edgerun_export.source.model import interpret
    from edgerun_export.transforms import transformed

    if plot is not None:
        check_plot(plot)
    _check_names(text)
    compared = settings(formats, methods, scales, calibrates=bool(calibrate))
    name = None if tokenizer is None else str(tokenizer)
    with open_checkpoint(source, tokenizer=name) as checkpoint:
        weights, _ = interpret(checkpoint)
        _check_rounds(weights)
        texts = _texts(
            checkpoint, weights, (text, windows), (calibrate or [], calibration_windows), tokens
        )
        location = " ".join([checkpoint.source.location, *(transform or ())])
        saved = Saved(save, key_of(location, texts))
        if transform:
            recipe = _recipe(compared, transform)
            weights = transformed(transform, weights, recipe, texts if calibrate else None)
        with progress_line() as show:
            rows = list(
                measure(
                    weights,
                    compared,
                    texts,
                    saved,
                    worker_threads(threads),
                    lambda setting, done: show(f"{setting}: {done:.0%} of the layers"),
                )
            )
    if plot is not None:
        from edgerun_export.quality.plot import draw

        draw(rows, source, plot)
    _print(rows, as_json)


def _recipe(compared: list[Setting], transforms: list[str]) -> Recipe:
    """What transforms that round on trial do that for: the first setting."""
    return compared[0].recipe(transforms)


def _check_names(files: list[Path]) -> None:
    from edgerun.errors import InputError

    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--text: two files are called '{twice}', as columns would be; rename one")


def _check_rounds(weights: SourceWeights) -> None:
    from edgerun.errors import UnsupportedError

    if weights.natively_ternary():
        raise UnsupportedError(
            "the projections of this model are ternary already, and kept as they are; there is "
            "nothing to compare"
        )


def _texts(
    checkpoint: Checkpoint,
    weights: SourceWeights,
    measured: tuple[list[Path], int],
    fitted: tuple[list[Path], int],
    tokens: int,
) -> CalibrationText:
    """Windows of the texts to fit to and of those to measure on."""
    import numpy as np

    from edgerun.model.text.tokenizer import Tokenizer
    from edgerun_export.calibrate.text import CalibrationText, read_calibration, read_sample

    files = checkpoint.tokenizer_files()
    tokenizer = Tokenizer.from_json(
        files["tokenizer.json"].decode(), json.loads(files.get("tokenizer_config.json", b"{}"))
    )
    tokens = min(tokens, weights.spec.context_length)
    samples = tuple(read_sample(file, tokenizer, measured[1], tokens) for file in measured[0])
    if not fitted[0]:
        return CalibrationText((), np.zeros((0, tokens), np.int64), samples)
    text = read_calibration(fitted[0], tokenizer, fitted[1], tokens)
    return CalibrationText(text.names, text.windows, samples)


def _print(rows: list[Row], as_json: bool) -> None:
    from edgerun.cli.screen.tables import print_rows

    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    source = rows[0]
    table: list[dict[str, Any]] = []
    for row in rows:
        cells: dict[str, Any] = {"weights": row.setting, "MB": f"{row.bytes / 1e6:.2f}"}
        for name, figures in row.texts.items():
            change = figures.perplexity / source.texts[name].perplexity - 1
            cells[f"{name}: bits/byte"] = f"{figures.bits_per_byte:.4f}"
            cells[f"{name}: perplexity"] = f"{figures.perplexity:.4g}"
            cells[f"{name}: change"] = f"{change:+.1%}"
        table.append(cells)
    print_rows(table)
