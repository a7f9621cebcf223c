"""Second stage: all layers learn together to give the source's distributions of the next token.

    python -m tools.ternary.logits MODEL --calibrate TEXT ... --run FOLDER --minutes 20 --out FOLDER

Begins with what the first stage left in the folder of the run. What is left is the Kullback-Leibler
divergence from the source; units, scales and norms learn, embedding and head stay. The state is
kept every few minutes, and a run that was stopped goes on; minutes are those in which it ran.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from edgerun_export.source.weights import SourceWeights
from tools.ternary.blocks import TYPES, file_of, read_layer
from tools.ternary.matrix import Matrix, Optimiser
from tools.ternary.run import STATE, check_model, model_digest
from tools.torch_llama.layer import Weights, norms, paths, source_layer
from tools.torch_llama.model import Model, divergence
from tools.torch_llama.plain import check
from tools.torch_llama.save import save_checkpoint
from tools.torch_llama.text import Windows, read_windows

KEPT_EVERY = 240.0  # seconds
WATCHED_EVERY = 20  # steps


class Student:
    """What learns.

    Attributes:
        matrices: of each layer by short names.
        norms: of each layer.
        final_norm: float32 ``[hidden_size]``.
    """

    def __init__(
        self,
        source: SourceWeights,
        model: Model,
        run: Path,
        dtype: torch.dtype,
        rates: tuple[float, float],
    ) -> None:
        layers = range(source.spec.num_layers)
        self._spec, self.step, self.seconds = source.spec, 0, 0.0
        self.matrices = [
            {name: Matrix(each, dtype) for name, each in read_layer(file_of(run, layer)).items()}
            for layer in layers
        ]
        self.norms = [norms(source, layer) for layer in layers]
        self.final_norm = model.final_norm.clone()
        self._plain = [*(each for pair in self.norms for each in pair.values()), self.final_norm]
        for each in self._plain:
            each.requires_grad_()
        self._optimiser = Optimiser(list(self._all()), self._plain, *rates)

    def _all(self) -> Iterator[Matrix]:
        return (each for layer in self.matrices for each in layer.values())

    def layers(self) -> list[Weights]:
        """Weights of all layers, for ``Model.logits``."""
        return [
            {**norms, **{name: each.weight for name, each in matrices.items()}}
            for matrices, norms in zip(self.matrices, self.norms, strict=True)
        ]

    def learn(self, factor: float) -> None:
        """A step by the gradients that are there, rates times a factor."""
        for each in self._all():
            each.spread()
        torch.nn.utils.clip_grad_norm_(self._plain, 1.0)
        self._optimiser.step(factor)
        self._optimiser.adam.zero_grad(set_to_none=True)
        for each in self._all():
            each.refresh()
        self.step += 1

    def _tensors(self) -> list[Tensor]:
        return [*(t for each in self._all() for t in (each.units, each.log_scales)), *self._plain]

    def keep(self, path: Path) -> None:
        """Writes the state, all or nothing."""
        draft = path.with_suffix(".part")
        tensors = [each.detach() for each in self._tensors()]
        state: dict[str, Any] = {"tensors": tensors, "adam": self._optimiser.adam.state_dict()}
        torch.save({**state, "step": self.step, "seconds": self.seconds}, draft)
        draft.replace(path)

    @torch.no_grad()
    def restore(self, path: Path) -> None:
        """Takes up the state of ``keep``."""
        state = torch.load(path, weights_only=True)
        for own, saved in zip(self._tensors(), state["tensors"], strict=True):
            own.copy_(saved)
        self._optimiser.adam.load_state_dict(state["adam"])
        self.step, self.seconds = state["step"], state["seconds"]
        for each in self._all():
            each.refresh()

    def changed(self) -> dict[str, np.ndarray[Any, Any]]:
        """All that learnt, by the names of a checkpoint."""
        out = {self._spec.final_norm_weight: self.final_norm.detach().numpy()}
        for layer, matrices in enumerate(self.matrices):
            for name, path in paths(self._spec, layer).items():
                out[path] = matrices[name].trained().values()
            for name, norm in self.norms[layer].items():
                out[f"model.layers.{layer}.{name}.weight"] = norm.detach().numpy()
        return out


@torch.no_grad()
def watched(
    model: Model, student: Student, teacher: list[Weights], windows: Tensor
) -> dict[str, float]:
    """What held-out windows cost: divergence, and perplexity beside the source's."""
    sums = np.zeros(3)
    for ids in windows.split(1):
        own = model.logits(ids, student.layers(), student.final_norm)
        there = model.logits(ids, teacher, model.final_norm)
        nats = [float(cross_entropy(each[0, :-1], ids[0, 1:])) for each in (own, there)]
        sums += [float(divergence(own, there)), *nats]
    kl, own_nats, source_nats = (sums / len(windows)).tolist()
    return {"kl": kl, "perplexity": math.exp(own_nats), "source": math.exp(source_nats)}


def train(
    model: Model,
    student: Student,
    teacher: list[Weights],
    windows: Windows,
    end: tuple[float, int],
    batch: int,
    run: Path,
) -> None:
    """Steps until the seconds or the steps of ``end`` are over, whichever comes first."""
    fitted, rest = (torch.from_numpy(each) for each in (windows.fitted, windows.held_out))
    last = saved = time.perf_counter()

    def log(**values: float) -> None:
        line = {"step": student.step, "seconds": round(student.seconds, 1), **values}
        with (run / "logits.log").open("a") as file:
            file.write(json.dumps(line) + "\n")

    if student.step == 0:
        log(**watched(model, student, teacher, rest))
        last = time.perf_counter()
    while (progress := max(student.seconds / end[0], student.step / end[1])) < 1:
        total = 0.0
        for at in range(student.step * batch, (student.step + 1) * batch):
            ids = fitted[at % len(fitted), None]
            with torch.no_grad():
                there = model.logits(ids, teacher, model.final_norm)
            loss = divergence(model.logits(ids, student.layers(), student.final_norm), there)
            (loss / batch).backward()
            total += loss.item() / batch
        student.learn(min(1.0, (student.step + 1) / 10) * (1 - progress))
        now = time.perf_counter()
        student.seconds, last = student.seconds + now - last, now
        log(loss=total)
        if student.step % WATCHED_EVERY == 0:
            log(**watched(model, student, teacher, rest))
            last = time.perf_counter()
        if now - saved > KEPT_EVERY:
            student.keep(run / STATE)
            saved = last = time.perf_counter()
    student.keep(run / STATE)
    log(**watched(model, student, teacher, rest))


def main() -> None:
    """Reads the command line, trains, and writes a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--calibrate", type=Path, action="append", required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder of the first stage")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--windows", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rate", type=float, default=7e-4, help="codes a step, of units")
    parser.add_argument("--scale-rate", type=float, default=7e-4, help="of scales and norms")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--products", choices=TYPES, default="bfloat16")
    args = parser.parse_args()
    if args.minutes <= 0 or args.steps <= 0:
        parser.error("--minutes and --steps must be above 0")
    torch.set_num_threads(args.threads)
    with open_checkpoint(args.model) as checkpoint:
        source, _ = interpret(checkpoint)
        check(source.spec)
        check_model(args.run, model_digest(source))
        windows = read_windows(checkpoint, args.calibrate, args.windows, args.tokens)
        dtype = TYPES[args.products]
        model = Model(source, args.tokens, dtype)
        teacher = [source_layer(source, at, dtype) for at in range(source.spec.num_layers)]
        rates = args.rate, args.scale_rate
        student = Student(source, model, args.run, dtype, rates)
        if (args.run / STATE).exists():
            student.restore(args.run / STATE)
        end = (args.minutes * 60, args.steps)
        train(model, student, teacher, windows, end, args.batch, args.run)
        save_checkpoint(checkpoint, source, student.changed(), args.out)


if __name__ == "__main__":
    main()
