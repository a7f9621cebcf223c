"""The ``edgerun quality`` command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from edgerun_export.calibrate.rounding import Rounding
    from edgerun_export.checkpoint.base import Checkpoint
    from edgerun_export.quality.measure import Row, Saved, Texts
    from edgerun_export.quality.settings import Setting
    from edgerun_export.source.weights import SourceWeights

_FACTOR_FROM = 10.0  # of perplexities; below it percents are easier to read
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
        help="Methods, with commas between, or all. Default: a format's usual one (mse for most), "
        "and with --calibrate gptq and residual."
    ),
]
_Windows = Annotated[
    int, typer.Option(min=1, help="Pieces of each text that are measured, from all over it.")
]
_Tokens = Annotated[int, typer.Option(min=16, help="Length of pieces, at most the context.")]
_CalibrationWindows = Annotated[
    int | None,
    typer.Option("--calibration-windows", min=1, help="Pieces of text to fit to. Default: 64."),
]
_Scales = Annotated[
    str, typer.Option(help="fp32 or fp16: the type of scales in the file, which sizes include.")
]
_Budget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Sizes of all weights, such as 60MB,70MB: a row each, formats chosen per tensor.",
    ),
]
_Activations = Annotated[
    str,
    typer.Option(
        help="fp32, int8 (a scale for as many as share one among the weights), int8_row (one a "
        "token), with commas between: texts are measured with inputs of projections rounded so."
    ),
]
_KVCache = Annotated[
    str,
    typer.Option(
        "--kv-cache",
        "--kv",
        help="fp32, fp16, int8, int4, with commas between: texts are measured with keys and "
        "values stored so.",
    ),
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
    calibration_windows: _CalibrationWindows = None,
    transform: _Transforms = None,
    scales: _Scales = "fp32",
    budget: _Budget = None,
    activations: _Activations = "fp32",
    kv_cache: _KVCache = "fp32",
    save: _Save = None,
    plot: _Plot = None,
    threads: _Threads = None,
    tokenizer: _Tokenizer = None,
    as_json: _Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun_export.calibrate.rounding import roundings
    from edgerun_export.calibrate.text import WINDOWS
    from edgerun_export.checkpoint import open_checkpoint
    from edgerun_export.quality.measure import Saved, key_of
    from edgerun_export.quality.settings import settings, split
    from edgerun_export.source.model import interpret
    from edgerun_export.transforms import transformed

    _check_outputs(save, plot)
    _check_texts(text, calibrate or [], calibration_windows)
    compared = settings(formats, methods, scales, budget, calibrates=bool(calibrate))
    variants = roundings(split(activations), split(kv_cache))
    name = None if tokenizer is None else str(tokenizer)
    with open_checkpoint(source, tokenizer=name) as checkpoint:
        weights, _ = interpret(checkpoint)
        _check_source(weights)
        texts = _texts(
            checkpoint,
            min(tokens, weights.spec.context_length),
            (text, windows),
            (calibrate or [], calibration_windows or WINDOWS),
            variants,
        )
        # Transforms that round on trial do that for the first setting.
        transforms = [*transform, compared[0].name] if transform else []
        saved = Saved(save, {} if save is None else key_of(checkpoint, transforms, texts))
        if transform:
            recipe = compared[0].recipe(weights.spec.hidden_size, transform)
            fitted = texts.calibration if calibrate else None
            weights = transformed(transform, weights, recipe, fitted)
        rows = _measured(weights, texts, compared, saved, threads)
    _print(rows, as_json)  # before anything else can go wrong
    if plot is not None:
        from edgerun_export.quality.plot import draw

        draw(rows, Path(source).name, plot)  # a hub id's last part, as well


def _measured(
    weights: SourceWeights,
    texts: Texts,
    compared: list[Setting],
    saved: Saved,
    threads: int | None,
) -> list[Row]:
    from edgerun.cli.screen.progress import progress_line
    from edgerun.kernels.host.cores import worker_threads
    from edgerun_export.quality.measure import Measurement

    with progress_line() as show:
        measurement = Measurement(
            weights,
            texts,
            worker_threads(threads),
            lambda what, done: show(f"{what}: {done:.0%} of the layers"),
        )
        return list(measurement.run(compared, saved))


def _check_outputs(save: Path | None, plot: Path | None) -> None:
    from edgerun.cli.screen.plan_plot import check_plot
    from edgerun.files.output import check_output

    if plot is not None:
        check_plot(plot)
    if save is not None:
        check_output(save, replace=True)


def _check_texts(measured: list[Path], fitted: list[Path], windows: int | None) -> None:
    from edgerun.errors import InputError
    from edgerun_export.calibrate.text import check_has_text, check_unseen

    check_has_text(fitted, calibration_windows=windows)
    check_unseen(measured, fitted)
    names = [file.name for file in measured]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"--text: two files are called '{twice}', as texts of the table would be; rename one"
        )


def _check_source(weights: SourceWeights) -> None:
    """Checks that there is something to compare, and says if the source was rounded before."""
    from edgerun.errors import UnsupportedError
    from edgerun_export.rules import rounded_source

    if weights.natively_ternary():
        raise UnsupportedError(
            "the projections of this model are ternary already, and kept as they are; there is "
            "nothing to compare"
        )
    rounded = rounded_source(weights)
    if rounded is not None:
        typer.echo(f"note: {rounded}", err=True)


def _texts(
    checkpoint: Checkpoint,
    tokens: int,
    measured: tuple[list[Path], int],
    fitted: tuple[list[Path], int],
    variants: list[Rounding],
) -> Texts:
    """Windows of the texts to fit to and of those to measure on, the latter in each variant."""
    import numpy as np

    from edgerun_export.calibrate.text import (
        CalibrationText,
        read_calibration,
        read_sample,
        tokenizer_of,
    )
    from edgerun_export.quality.measure import Texts

    tokenizer = tokenizer_of(checkpoint.tokenizer_files())
    samples = tuple(read_sample(file, tokenizer, measured[1], tokens) for file in measured[0])
    rounded = tuple(
        replace(
            sample,
            name=", ".join(filter(None, (sample.name, rounding.name))),
            rounding=rounding,
        )
        for sample in samples
        for rounding in variants
    )
    if not fitted[0]:
        return Texts(CalibrationText((), np.zeros((0, tokens), np.int64)), rounded)
    return Texts(read_calibration(fitted[0], tokenizer, fitted[1], tokens), rounded)


def _print(rows: list[Row], as_json: bool) -> None:
    from edgerun.cli.screen.tables import print_rows

    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    source = rows[0]
    print_rows(
        [
            {
                "text": name,
                "weights": row.setting,
                "MB": f"{row.bytes / 1e6:.2f}",
                "bits/byte": f"{row.texts[name].bits_per_byte:.4f}",
                "perplexity": f"{row.texts[name].perplexity:.4g}",
                "change": _change(row.texts[name].perplexity / unrounded.perplexity),
            }
            for name, unrounded in source.texts.items()
            for row in rows
        ]
    )


def _change(ratio: float) -> str:
    """How much larger a perplexity is: in percent, or as a factor where that is thousands."""
    return f"{ratio - 1:+.1%}" if ratio < _FACTOR_FROM else f"x {ratio:.3g}"
