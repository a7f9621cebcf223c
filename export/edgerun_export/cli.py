"""The ``edgerun export`` command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli.screen.visible import visible
from edgerun.errors import InputError
from edgerun_export.recipe import (
    ACTIVATIONS,
    EMBEDDING_WEIGHTS,
    GROUP_SIZES,
    HEAD_WEIGHTS,
    SCALES,
    method_names,
    transform_names,
    weight_names,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from edgerun_export.calibrate.step import CalibrationOptions
    from edgerun_export.options import ExportOptions
    from edgerun_export.pipeline import ExportResult

SUMMARY = "Make a bundle of a checkpoint."
_TITLES = {
    "read": "reading the checkpoint",
    "transform": "transforming weights",
    "calibrate": "fitting weights",
    "weights": "writing weights",
    "files": "writing configuration",
    "verify": "comparing with the source",
    "finish": "finishing",
}
_EXAMPLES = """\
Examples:
  edgerun export ./checkpoint -o ./my-model
  edgerun export model.gguf -o ./my-model --weights int8 --verify
  edgerun export HUB_USER/NAME -o ./my-model --weights int4"""


def _folder(name: str) -> Path:
    """The folder of a name; that of nothing would be the current one."""
    if not name:
        raise InputError("--out is empty; give the folder that the bundle is to be written to")
    return Path(name)


_Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="Checkpoint: a Hugging Face folder or hub id, a GGUF file, a llama2.c file.",
    ),
]
_Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="PATH", parser=_folder, help="Folder to write the bundle to."
    ),
]
_Weights = Annotated[
    str | None,
    typer.Option(
        help=f"Weight format: {', '.join(weight_names())}, or source, which keeps the integers and "
        "floats of the checkpoint (GGUF, GPTQ, AWQ, compressed-tensors). Default: ternary if the "
        "model was trained for it, source if it has integers and all of them can stay, otherwise "
        "int4."
    ),
]
_GroupSize = Annotated[
    int | None,
    typer.Option(
        help=f"Weights that share a scale: {', '.join(map(str, GROUP_SIZES))}. "
        "Default: 128 for ternary, otherwise 32."
    ),
]
_Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="PATTERN=FORMAT[:GROUP[:METHOD]]",
        help="Another format for some projections, such as '*.down_proj=int8' or "
        "'layers.0.*=int4:64'; may be given several times, the last that matches one counts.",
    ),
]
_Scales = Annotated[
    str,
    typer.Option(
        help=f"{' or '.join(SCALES)}: fp16 halves what scales take in the file, which with groups "
        "of 32 is half a bit a weight, and reads as much less. In the file experts keep float32."
    ),
]
_HeadWeights = Annotated[
    str | None,
    typer.Option(
        help=f"Format of the output head: {', '.join(HEAD_WEIGHTS)}. Default: int8, or fp32 with "
        "--weights fp32."
    ),
]
_EmbeddingWeights = Annotated[
    str | None,
    typer.Option(
        help=f"Format of the embedding: {', '.join(EMBEDDING_WEIGHTS)}. Where the model has one "
        "table for embedding and head, it is stored once if both have the same format. Default: "
        "int8, or fp32 if the head is."
    ),
]
_Method = Annotated[
    str | None,
    typer.Option(
        help=f"How weights are quantised: {', '.join(method_names())}. Default: what suits the "
        "format best, or residual with --calibrate. auto chooses formats for a --budget."
    ),
]
_Transforms = Annotated[
    list[str] | None,
    typer.Option(
        "--transform",
        help=f"Other weights of the same function, to lose less by rounding: "
        f"{', '.join(transform_names())}. May be given several times.",
    ),
]
_Calibrate = Annotated[
    list[Path] | None,
    typer.Option(
        "--calibrate",
        metavar="FILE",
        help="UTF-8 text that weights are fitted to; may be given several times, and should be "
        "of the kinds that the model is for.",
    ),
]
_Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="SIZE",
        help="Largest size of the bundle, e.g. 60MB: every projection gets the format, of those no "
        "smaller than --weights, in which its bytes do most for the calibration text.",
    ),
]
_Windows = Annotated[
    int | None,
    typer.Option(
        "--calibration-windows",
        min=1,
        help="Pieces of text to fit to, of all files together. Default: 64.",
    ),
]
_WindowTokens = Annotated[
    int | None,
    typer.Option(
        "--calibration-tokens",
        min=16,
        help="Length of each, at most the context. Default: 512.",
    ),
]
_Activations = Annotated[
    str | None,
    typer.Option(
        help=f"{' or '.join(ACTIVATIONS)}: whether runtimes may round activations to 8 bits "
        "in their kernels. fp32 is exact, but onnxruntime is then about 200 times slower "
        "with 2-bit and 8-bit weights. Default: int8."
    ),
]
_Profile = Annotated[
    str,
    typer.Option(
        help="portable runs in every runtime but openvino-genai; openvino adds the files that it "
        "wants; genai uses a fused attention operator that makes onnxruntime-genai faster and "
        "that others may not run."
    ),
]
_Pack = Annotated[
    str,
    typer.Option(
        help="How edgerun keeps ternary weights in memory: two_bits, or trits (1.6 bits), which "
        "are smaller and slower. Results and files are the same."
    ),
]
_Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Before the bundle appears, run it in onnxruntime and compare its logits with those "
        "of a plain NumPy pass over the source's weights, all of which must have been read; and "
        "parse its chat template.",
    ),
]
_Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an existing bundle; other files in its folder stay."),
]
_Tokenizer = Annotated[Path | None, typer.Option(help="Tokenizer file, for llama2.c checkpoints.")]
_Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub checkpoint.")]
_Licence = Annotated[
    str | None,
    typer.Option(help="Licence to state in the manifest. Default: what the checkpoint says."),
]
_Location = Annotated[
    str | None,
    typer.Option(
        help="Where the checkpoint comes from, a URL or a few words, to state in the manifest. "
        "Default: its name or hub id, and the URL that a GGUF file says."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the manifest to stdout when done.")]


def register(app: typer.Typer) -> None:
    """Adds ``export`` to the command line."""
    app.command("export", help=SUMMARY, epilog=_EXAMPLES)(export_command)


def export_command(
    source: _Source,
    out: _Out,
    weights: _Weights = None,
    group_size: _GroupSize = None,
    method: _Method = None,
    rule: _Rules = None,
    transform: _Transforms = None,
    scales: _Scales = "fp32",
    calibrate: _Calibrate = None,
    budget: _Budget = None,
    calibration_windows: _Windows = None,
    calibration_tokens: _WindowTokens = None,
    head_weights: _HeadWeights = None,
    embedding_weights: _EmbeddingWeights = None,
    activations: _Activations = None,
    profile: _Profile = "portable",
    pack: _Pack = "two_bits",
    verify: _Verify = False,
    force: _Force = False,
    tokenizer: _Tokenizer = None,
    revision: _Revision = None,
    licence: _Licence = None,
    location: _Location = None,
    as_json: _Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    # The exporter's modules need onnx and others, which `edgerun --help` should not wait for.
    from edgerun_export.checkpoint.base import Provenance
    from edgerun_export.options import ExportOptions

    options = ExportOptions(
        weights=weights,
        group_size=group_size,
        method=method,
        rules=tuple(rule or ()),
        scales=scales,
        head_weights=head_weights,
        embedding_weights=embedding_weights,
        activations=activations,
        profile=profile,
        pack=pack,
        tokenizer=tokenizer,
        revision=revision,
        provenance=Provenance(licence, location),
        verify=verify,
        force=force,
        transforms=tuple(transform or ()),
        calibration=_calibration(calibrate or [], calibration_windows, calibration_tokens, budget),
    )
    _run(source, out, options, as_json=as_json)


def _calibration(
    texts: list[Path], windows: int | None, tokens: int | None, budget: str | None
) -> CalibrationOptions:
    """What the options about calibration say."""
    from edgerun_export.calibrate.step import CalibrationOptions
    from edgerun_export.calibrate.text import WINDOW_TOKENS, WINDOWS, check_has_text
    from edgerun_export.sizes import parse_size

    check_has_text(texts, calibration_windows=windows, calibration_tokens=tokens)
    return CalibrationOptions(
        tuple(texts),
        windows or WINDOWS,
        tokens or WINDOW_TOKENS,
        budget=None if budget is None else parse_size("--budget", budget),
    )


def _run(source: str, out: Path, options: ExportOptions, *, as_json: bool) -> None:
    """Exports, and says what became of it."""
    from rich.console import Console

    console = Console(stderr=True)
    result = _export(source, out, options, console)
    _report(out, result, console, as_json=as_json)


def _report(out: Path, result: ExportResult, console: Console, *, as_json: bool) -> None:
    """Prints warnings, and the manifest or a summary."""
    for warning in result.warnings:
        console.print(visible(f"warning: {warning}"), style="yellow", soft_wrap=True, markup=False)
    if as_json:
        typer.echo(json.dumps({"path": str(out), "warnings": result.warnings, **result.manifest}))
    else:
        summary = "\n".join([_summary(out, result.manifest), *_choices(result.manifest)])
        console.print(visible(summary), soft_wrap=True, markup=False, highlight=False)


def _export(source: str, out: Path, options: ExportOptions, console: Console) -> ExportResult:
    """Exports with a progress bar on the console."""
    from edgerun_export.pipeline import export

    with _progress_bar(console) as bar:
        task = bar.add_task("", total=1.0)

        def show(step: str, fraction: float) -> None:
            bar.update(task, description=_TITLES[step], completed=fraction)

        return export(source, out, options, show)


def _progress_bar(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _summary(out: Path, manifest: dict[str, Any]) -> str:
    recipe, quality = manifest["recipe"], manifest["quality"]
    size = sum(entry["size"] for entry in manifest["files"].values())
    groups = "" if recipe["weights"] == "fp32" else f" in groups of {recipe['group_size']}"
    if recipe["tensors"]:
        groups += f" ({len(recipe['tensors'])} projections otherwise)"
    text = (
        f"{out}: {manifest['model']['architecture']}, {recipe['weights']} weights{groups}, "
        f"{recipe['head_weights']} head, {size / 1e6:.1f} MB"
    )
    if "max_error" in quality:
        text += (
            f"; verified: all {quality['source_tensors']} tensors read, onnxruntime within "
            f"{quality['max_error']:g} of the logit range of NumPy on the same weights, same next "
            f"token as with the source's at {quality['top1_agreement']:.0%} of positions"
        )
    held_out = quality.get("calibration", {}).get("held_out")
    if held_out:
        text += (
            f"; text that was held out costs {held_out['bits_per_byte']:.4f} bits per byte, with "
            f"the source's weights {held_out['source_bits_per_byte']:.4f}"
        )
    return text


def _choices(manifest: dict[str, Any]) -> list[str]:
    """What a budget came to, a line for each kind of projection."""
    budget = manifest["quality"].get("budget")
    if budget is None:
        return []
    kinds: dict[str, list[dict[str, Any]]] = {}
    for module, choice in budget["tensors"].items():
        kinds.setdefault(module.rpartition(".")[2], []).append(choice)
    lines = [
        f"  estimated to cost {budget['estimated_bits_per_byte']:.4f} bits per byte; of each "
        "projection manifest.json says why:"
    ]
    for name, choices in kinds.items():
        stored = Counter(choice["stored"] for choice in choices)
        cost = sum(choice["bits_per_byte"] for choice in choices)
        formats = ", ".join(f"{count} {kind}" for kind, count in sorted(stored.items()))
        lines.append(f"  {name}: {formats}; {cost:.4f} bits per byte")
    return lines
