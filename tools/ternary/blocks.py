"""First stage: layers become ternary one after the other, each fitted to what the source's gives.

    python -m tools.ternary.blocks MODEL --calibrate TEXT ... --run FOLDER

A projection begins with what ``--method residual`` makes of it, from the inputs that the layers
before give that are ternary already. Then all of a layer learn together, gradients passing straight
through, to give what the source's layer gives from the source's inputs. What they learnt stays if
it is better on windows that they did not see. A file a layer is written: a run that was stopped
goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgerun_export.calibrate.fitted import digest
from edgerun_export.calibrate.moments import Moments, Tokens
from edgerun_export.calibrate.workers import single_threaded
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.quantize import quantise_rows
from edgerun_export.quantize.method import Inputs, Needs
from edgerun_export.source.model import interpret
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.numpy_ends import embedded
from tools.ternary.codes import FORMAT, GROUP, Trained, begin
from tools.ternary.matrix import Matrix, Optimiser
from tools.ternary.run import begin_run, model_digest
from tools.torch_llama.layer import (
    INPUT_NORM,
    MLP_NORM,
    PARTS,
    Layer,
    Weights,
    norms,
    paths,
    plain_product,
    source_layer,
)
from tools.torch_llama.plain import check
from tools.torch_llama.text import read_windows

AT_ONCE = 4  # windows
ADDING = (1, 3)  # parts whose output is added to the residual stream
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Settings:
    """How a layer learns.

    Attributes:
        dtype: of products.
        epochs: how often it sees all windows.
        rate: of units, in codes a step at first, ten times that of scales; falls to nothing.
        batch: windows a step.
    """

    dtype: torch.dtype
    epochs: int
    rate: float
    batch: int


@dataclass
class Streams:
    """What comes to a layer ``[windows, tokens, hidden_size]``.

    Attributes:
        here: from layers that are ternary already.
        there: from the source's.
        seen: how many windows are fitted to; the others are watched.
    """

    here: Tensor
    there: Tensor
    seen: int

    def parts(self, stop: int) -> Iterator[slice]:
        for start in range(0, stop, AT_ONCE):
            yield slice(start, min(start + AT_ONCE, stop))


class Stage:
    """What comes out of a piece of a layer on both sides, a few windows at a time."""

    def __init__(self, run: Layer, layer: dict[str, Tensor], own: dict[str, Tensor]) -> None:
        self.run, self.layer, self.own = run, layer, own

    def inputs(self, part: int, x: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
        """Inputs of a part's projections, and what their output is added to."""
        mixed = self.run.normed(x, weights[INPUT_NORM])
        if part == 0:
            return mixed, x
        mixed = self.run.mixed(mixed, weights)
        if part == 1:
            return mixed, x
        x = x + plain_product(mixed, weights["o_proj"])
        inner = self.run.normed(x, weights[MLP_NORM])
        return (inner, x) if part == 2 else (self.run.gated(inner, weights), x)

    @torch.no_grad()
    def moments(self, part: int, streams: Streams) -> Inputs:
        """Means over tokens of products of inputs, as ``residual`` needs them."""
        sums = None
        for few in streams.parts(streams.seen):
            here, at = self.inputs(part, streams.here[few], self.own)
            there, beside = self.inputs(part, streams.there[few], self.layer)
            away, change = there - here, None
            if part in ADDING:
                change = plain_product(away, self.layer[PARTS[part][0]]) + beside - at
                change = change.flatten(0, 1).numpy()
            here, away = (each.flatten(0, 1).numpy() for each in (here, away))
            sums = sums or Moments(Needs.RESIDUAL, here.shape[1])
            sums.add([Tokens(here, None if part in ADDING else away, change)])
        assert sums is not None, "windows to fit to"
        return sums.means()

    @torch.no_grad()
    def outputs(self, x: Tensor, weights: Weights) -> Tensor:
        """What the layer gives of all windows."""
        return torch.cat([self.run.run(few, weights) for few in x.split(AT_ONCE)])


def relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean over tokens of the squared error, relative to the square of the target."""
    square = (output - target).square().sum(-1)
    return (square / target.square().sum(-1)).mean()


def rounded(
    stage: Stage, streams: Streams, source: SourceWeights, layer: int
) -> dict[str, Trained]:
    """Fits the projections of a layer in order, each to inputs from those before."""
    begun: dict[str, Trained] = {}
    names = paths(source.spec, layer)
    dtype = stage.layer["q_proj"].dtype
    for number, part in enumerate(PARTS):
        inputs = stage.moments(number, streams)
        for name in part:
            rows = source.matrix(names[name])
            packed = quantise_rows(rows, FORMAT, GROUP, "residual", inputs)
            begun[name] = begin(packed, rows)
            stage.own[name] = torch.from_numpy(begun[name].values()).to(dtype)
    return begun


def learnt(
    stage: Stage, streams: Streams, target: Tensor, begun: dict[str, Trained], settings: Settings
) -> tuple[dict[str, Trained], dict[str, float]]:
    """Trains all projections of a layer; what they began with, if that is better."""
    matrices = {name: Matrix(each, settings.dtype) for name, each in begun.items()}
    optimiser = Optimiser(list(matrices.values()), [], settings.rate, settings.rate / 10)
    fixed = {name: stage.own[name] for name in (INPUT_NORM, MLP_NORM)}

    def now() -> dict[str, Tensor]:
        return {**fixed, **{name: each.weight for name, each in matrices.items()}}

    def watched() -> float:
        rest = slice(streams.seen, None)
        return float(relative_error(stage.outputs(streams.here[rest], now()), target[rest]))

    before = watched()
    steps = settings.epochs * -(-streams.seen // settings.batch)
    done = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(settings.epochs):
        for few in torch.randperm(streams.seen, generator=generator).split(settings.batch):
            relative_error(stage.run.run(streams.here[few], now()), target[few]).backward()
            for each in matrices.values():
                each.spread()
            optimiser.step(1 - done / steps)
            for each in matrices.values():
                each.refresh()
            done += 1
    after = watched()
    errors = {"rounded": before, "learnt": after}
    if not after < before:
        return begun, errors
    return {name: each.trained() for name, each in matrices.items()}, errors


def file_of(run: Path, layer: int) -> Path:
    """Where a layer's matrices are kept."""
    return run / f"layer-{layer:04d}.npz"


def write_layer(path: Path, matrices: dict[str, Trained]) -> None:
    """Writes matrices, all or nothing."""
    draft = path.with_suffix(".part")
    arrays = {}
    for name, each in matrices.items():
        arrays[f"{name}.units"], arrays[f"{name}.scales"] = each.units, each.scales
        arrays[f"{name}.columns"] = np.array(each.columns)
    with draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    draft.replace(path)


def read_layer(path: Path) -> dict[str, Trained]:
    """Reads what ``write_layer`` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {
            name: Trained(
                file[f"{name}.units"], file[f"{name}.scales"], int(file[f"{name}.columns"])
            )
            for part in PARTS
            for name in part
        }


def fit(source: SourceWeights, streams: Streams, settings: Settings, run: Path) -> None:
    """Takes both streams through all layers, fitting those of which there is no file."""
    for layer in range(source.spec.num_layers):
        began = time.perf_counter()
        functions = Layer(source.spec, layer, streams.here.shape[1])
        stage = Stage(functions, source_layer(source, layer, settings.dtype), norms(source, layer))
        target = stage.outputs(streams.there, stage.layer)
        path = file_of(run, layer)
        errors: dict[str, float] = {}
        if path.exists():
            matrices = read_layer(path)
        else:
            matrices = rounded(stage, streams, source, layer)
            rounding = time.perf_counter() - began
            matrices, errors = learnt(stage, streams, target, matrices, settings)
            write_layer(path, matrices)
            line = {"layer": layer, "rounding_s": rounding, "s": time.perf_counter() - began}
            with (run / "blocks.log").open("a") as log:
                log.write(json.dumps({**line, **errors}) + "\n")
        for name, each in matrices.items():
            stage.own[name] = torch.from_numpy(each.values()).to(settings.dtype)
        streams.here = stage.outputs(streams.here, stage.own)
        streams.there = target


def main() -> None:
    """Reads the command line and fits all layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--calibrate", type=Path, action="append", required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder of what is learnt")
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--products", choices=TYPES, default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = Settings(TYPES[args.products], args.epochs, args.rate, args.batch)
    with open_checkpoint(args.model) as checkpoint, single_threaded():
        source, _ = interpret(checkpoint)
        check(source.spec)
        windows = read_windows(checkpoint, args.calibrate, args.windows, args.tokens)
        ids = np.concatenate([windows.fitted, windows.held_out])
        chosen = {name: str(value) for name, value in asdict(settings).items()}
        begin_run(args.run, model_digest(source), {**chosen, "text": digest([("ids", ids)])})
        used, where = np.unique(ids, return_inverse=True)
        rows = torch.from_numpy(embedded(source.spec, source, used))
        hidden = rows[torch.from_numpy(where.reshape(ids.shape))]
        fit(source, Streams(hidden, hidden, len(windows.fitted)), settings, args.run)


if __name__ == "__main__":
    main()
