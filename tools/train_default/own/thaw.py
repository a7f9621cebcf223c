"""Make a bundle trainable again, where the checkpoint that it came from is lost.

    python -m tools.train_default.own.thaw --bundle models/default/bundle --out hf/

A bundle has the codes and the scale of every ternary matrix, and not the masters that training
moves. Masters are drawn here that round to the same codes and the same scale, so that the model
says what the bundle says, and are spread as trained ones are: those of zeros evenly up to half the
scale, where rounding changes, and the others from there on as half of a normal distribution. So
some are near a change from the first step on. `train.py --initial hf/` goes on from there; what the
optimisers had is gone. An embedding in int8 is taken as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgerun.formats.base import PackedWeight
from edgerun.formats.registry import dense
from edgerun.model.bundle import open_bundle
from tools.train_default.batches import Array

HALF = 0.4999  # of the scale; masters of zeros are below it, all others above 1 - HALF


def masters(weight: Array, rng: np.random.Generator) -> Array:
    """Drawn masters of a ternary matrix: their mean absolute value is its scale.

    Args:
        weight: `[out, in]` of -s, 0 and s.
        rng: draws.

    Returns:
        float32 `[out, in]` that `rounding.ternary` makes `weight` of again.

    Raises:
        ValueError: it has other values, or nothing but zeros.
    """
    scale = float(np.abs(weight).max())
    codes = np.sign(weight)
    if scale == 0 or not np.allclose(codes * scale, weight, rtol=1e-6, atol=0):
        raise ValueError(f"a matrix {weight.shape} is not -s, 0 and s of one s: nothing to draw")
    small = rng.uniform(-HALF, HALF, weight.shape)
    large = np.abs(rng.standard_normal(weight.shape))
    is_zero = codes == 0
    # The mean of all is 1: that is left to those that are no zeros, above 1 - HALF.
    mean = (weight.size - np.abs(small[is_zero]).sum()) / (~is_zero).sum() - (1 - HALF)
    large = 1 - HALF + large * (mean / large[~is_zero].mean())
    return (np.where(is_zero, small, codes * large) * scale).astype(np.float32)


def thawed(bundle: Path, seed: int) -> Iterator[tuple[str, Array]]:
    """Tensors of a bundle by their Hugging Face names, ternary ones as drawn masters."""
    rng = np.random.default_rng(seed)
    for name, constant in open_bundle(bundle).graph.constants.items():
        ternary = isinstance(constant, PackedWeight) and constant.format == "ternary"
        tensor = dense(constant)
        yield name.partition(".codes")[0], masters(tensor, rng) if ternary else tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    import torch

    from tools.train_default.model import TernaryLM
    from tools.train_default.save import model_config, save_hf

    model = TernaryLM(model_config(json.loads((args.bundle / "config.json").read_text())))
    tensors = dict(thawed(args.bundle, args.seed))
    with torch.no_grad():
        for name, tensor in model.tensors():
            tensor.copy_(torch.from_numpy(tensors[f"model.{name}"]))
    save_hf(model, args.bundle, args.out)


if __name__ == "__main__":
    main()
