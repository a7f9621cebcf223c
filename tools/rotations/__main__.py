"""Learns rotations and scales under which a model bears few bits best (OSTQuant).

    python -m tools.rotations MODEL --calibrate TEXT --weights int4:32 --activations 8 --out FOLDER

Rotations begin with random ones (QuaRot's) and take Cayley steps, scales begin with 1; what is left
is the Kullback-Leibler divergence of the rounded model from the source on its 1,000 likeliest
tokens (Hu et al. 2025). Written is a checkpoint of floats that computes what the source computes;
with ``--steps 0`` that of the random rotations alone.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgerun.errors import UnsupportedError
from edgerun.formats.base import BlockFormat
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.source.model import interpret
from edgerun_export.source.weights import SourceWeights
from tools.rotations.fold import LayerPairs, fold_ends, fold_layer
from tools.rotations.rounding import cayley, random_rotation, rounded_inputs, rounded_weights
from tools.torch_llama.layer import INPUT_NORM, MLP_NORM, paths, plain_product, source_layer
from tools.torch_llama.model import Model, divergence
from tools.torch_llama.plain import check
from tools.torch_llama.save import save_checkpoint
from tools.torch_llama.text import read_test, read_windows

LIKELIEST = 1000
MEASURED = 24  # windows
NORMS = (INPUT_NORM, MLP_NORM)


class Pairs:
    """What learns: a rotation of the residual stream; of each layer one of values, and scales.

    Rotations are float64 and stay orthogonal; a step is ``R cayley(A)`` with A skew.
    """

    def __init__(self, source: SourceWeights, seed: int) -> None:
        spec = source.spec
        sizes = [spec.hidden_size, *[spec.head_dim] * spec.num_layers]
        self.rotations = [random_rotation(size, seed + at) for at, size in enumerate(sizes)]
        self.skews = [torch.zeros(size, size, requires_grad=True) for size in sizes]
        places = {
            "attention": (spec.hidden_size,),
            "values": (spec.num_kv_heads, spec.head_dim),
            "mlp": (spec.hidden_size,),
            "up": (spec.intermediate_size,),
        }
        self.logs = [
            {name: torch.zeros(shape, requires_grad=True) for name, shape in places.items()}
            for _ in range(spec.num_layers)
        ]
        scales = [each for layer in self.logs for each in layer.values()]
        self._adam = torch.optim.Adam(
            [{"params": self.skews, "share": 1.0}, {"params": scales, "share": 1.0}]
        )

    def now(self, dtype: torch.dtype) -> tuple[Tensor, list[LayerPairs]]:
        """The rotation of the stream, and the pairs of all layers."""
        turns = [
            (rotation.to(dtype) @ cayley(skew.to(dtype)))
            for rotation, skew in zip(self.rotations, self.skews, strict=True)
        ]
        layers = [
            LayerPairs(turn, {name: log.to(dtype).exp() for name, log in logs.items()})
            for turn, logs in zip(turns[1:], self.logs, strict=True)
        ]
        return turns[0], layers

    def step(self, rate: float) -> None:
        """A step of Adam; skew matrices become part of the rotations."""
        for group in self._adam.param_groups:
            group["lr"] = rate * group["share"]
        self._adam.step()
        self._adam.zero_grad()
        with torch.no_grad():
            for rotation, skew in zip(self.rotations, self.skews, strict=True):
                rotation.copy_(rotation @ cayley(skew.double()))
                skew.zero_()


class Folded:
    """The source's weights, and what becomes of them."""

    def __init__(self, source: SourceWeights, dtype: torch.dtype) -> None:
        self._source, self._dtype = source, dtype
        spec = source.spec
        self._layers = [
            {name: each.to(dtype) for name, each in source_layer(source, at, dtype).items()}
            for at in range(spec.num_layers)
        ]

    def layers(self, pairs: Pairs) -> list[dict[str, Tensor]]:
        """Weights of all layers by short names."""
        rotation, own = pairs.now(self._dtype)
        spec = self._source.spec
        return [
            fold_layer(spec, weights, rotation, each)
            for weights, each in zip(self._layers, own, strict=True)
        ]

    def ends(self, pairs: Pairs) -> dict[str, Tensor]:
        """Embedding, head and last norm by their names."""
        source, dtype = self._source, self._dtype
        rotation, _ = pairs.now(dtype)
        names = (source.spec.embedding_weight, source.head_name())
        embedding, head = (torch.from_numpy(source.matrix(name)).to(dtype) for name in names)
        norm = torch.from_numpy(source.vector(source.spec.final_norm_weight).copy()).to(dtype)
        return fold_ends(source.spec, embedding, head, norm, rotation)


def changed(source: SourceWeights, pairs: Pairs) -> dict[str, np.ndarray]:
    """All weights with the pairs folded in, in double precision, by a checkpoint's names."""
    folded = Folded(source, torch.float64)
    with torch.no_grad():
        tensors = folded.ends(pairs)
        for at, weights in enumerate(folded.layers(pairs)):
            names = {name: f"model.layers.{at}.{name}.weight" for name in NORMS}
            for name, path in {**names, **paths(source.spec, at)}.items():
                tensors[path] = weights[name]
    return {name: each.float().numpy() for name, each in tensors.items()}


def learn(
    source: SourceWeights,
    windows: np.ndarray,
    pairs: Pairs,
    kind: tuple[BlockFormat, int, int],
    steps: int,
    batch: int,
    rate: float,
) -> list[float]:
    """Takes steps; returns the loss of each.

    Args:
        source: the model.
        windows: token ids ``[windows, tokens]``.
        pairs: what learns.
        kind: format of weights, how many of them share a scale, bits of activations.
        steps: how many.
        batch: windows of a step.
        rate: of Adam at first; falls to nothing.
    """
    layout, block, bits = kind
    ids = torch.from_numpy(windows)
    plain = Model(source, ids.shape[1])
    teacher = [source_layer(source, at, torch.float32) for at in range(source.spec.num_layers)]
    folded = Folded(source, torch.float32)
    model = Model(
        source, ids.shape[1], product=lambda x, w: plain_product(rounded_inputs(x, bits), w)
    )
    losses = []
    for step in range(steps):
        few = ids[torch.arange(step * batch, (step + 1) * batch) % len(ids)]
        with torch.no_grad():
            target = plain.logits(few, teacher, plain.final_norm)
        best = target.topk(min(LIKELIEST, target.shape[-1]), dim=-1)
        layers = [
            {
                name: each if name in NORMS else rounded_weights(each, layout, block)
                for name, each in weights.items()
            }
            for weights in folded.layers(pairs)
        ]
        ends = folded.ends(pairs)
        model.embedding, model.head = ends[source.spec.embedding_weight], ends["lm_head.weight"]
        logits = model.logits(few, layers, ends[source.spec.final_norm_weight])
        loss = divergence(logits.gather(-1, best.indices), best.values)
        loss.backward()
        pairs.step(rate * (1 - step / steps))
        losses.append(loss.item())
    return losses


@torch.no_grad()
def perplexity(
    source: SourceWeights, windows: np.ndarray, kind: tuple[BlockFormat, int, int] | None
) -> float:
    """Of windows, the projections being rounded as ``--method mse`` does, and their inputs.

    ``None`` rounds nothing.
    """
    ids = torch.from_numpy(windows)
    layers = [source_layer(source, at, torch.float32) for at in range(source.spec.num_layers)]
    model = Model(source, ids.shape[1])
    if kind is not None:
        layout, block, bits = kind
        for weights in layers:
            for name in set(weights) - {*NORMS}:
                packed = quantise_rows(weights[name].numpy(), layout.name, block, "mse")
                weights[name] = torch.from_numpy(layout.unpack(packed))
        model = Model(
            source, ids.shape[1], product=lambda x, w: plain_product(rounded_inputs(x, bits), w)
        )
    nats = 0.0
    for few in ids.split(4):
        logits = model.logits(few, layers, model.final_norm)[:, :-1]
        nats += cross_entropy(logits.flatten(0, 1), few[:, 1:].flatten(), reduction="sum").item()
    return math.exp(nats / (ids.shape[0] * (ids.shape[1] - 1)))


def parse_kind(weights: str, bits: int) -> tuple[BlockFormat, int, int]:
    """``int4:32`` and bits of activations."""
    name, _, block = weights.partition(":")
    layout = block_layout(name)
    if not block.isdecimal() or layout.has_zeros or layout.has_offsets:
        raise UnsupportedError(f"--weights {weights}: expected FORMAT:GROUP without zero points")
    return layout, int(block), bits


def main() -> None:
    """Reads the command line, learns, writes, and prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--calibrate", type=Path, action="append", required=True)
    parser.add_argument("--text", type=Path, help="is measured on")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--weights", default="int4:32")
    parser.add_argument("--activations", type=int, default=8, choices=(4, 8, 16), help="bits")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--windows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kind = parse_kind(args.weights, args.activations)
    began = time.process_time()
    with open_checkpoint(args.model) as checkpoint:
        source, _ = interpret(checkpoint)
        check(source.spec)
        windows = read_windows(checkpoint, args.calibrate, args.windows, args.tokens)
        pairs = Pairs(source, args.seed)
        losses = learn(source, windows.fitted, pairs, kind, args.steps, args.batch, args.rate)
        save_checkpoint(checkpoint, source, changed(source, pairs), args.out)
        line = {"weights": args.weights, "activations": args.activations, "steps": args.steps}
        if losses:
            fifth = -(-len(losses) // 5)
            ends = (losses[:fifth], losses[-fifth:])
            line["loss"] = [round(float(np.mean(part)), 4) for part in ends]
        line["cpu_s"] = round(time.process_time() - began, 1)
        if args.text:
            measured = read_test(checkpoint, args.text, MEASURED, args.tokens)
            line["source"] = perplexity(source, measured, None)
            line["rounded"] = perplexity(source, measured, kind)
            with open_checkpoint(str(args.out)) as written:
                own, _ = interpret(written)
                line["folded"] = perplexity(own, measured, None)
                line["folded, rounded"] = perplexity(own, measured, kind)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
