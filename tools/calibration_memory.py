"""The memory that fitting a layer takes, with random weights.

    python -m tools.calibration_memory [--hidden 512] [--intermediate 2560] [--threads 1]

Run by itself: what it prints is the largest amount that the process ever took, beyond its imports.
The digest is of the codes and scales of the down projection; it is the same with any number of
threads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from edgerun_export.architectures import describe
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.recipe import make_recipe
from edgerun_export.source.model import interpret

VOCABULARY = 512
DOWN = "model.layers.0.mlp.down_proj.weight"


def write_checkpoint(folder: Path, hidden: int, intermediate: int) -> None:
    """Writes a Llama of one layer with heads of 64 into a folder."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": max(1, hidden // 128),
        "head_dim": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    shapes = describe(config).tensors()
    save_file(
        {
            name: (0.05 * random.standard_normal(shape)).astype(np.float32)
            for name, shape in shapes.items()
        },
        folder / "model.safetensors",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--intermediate", type=int, default=2560, help="a multiple of 32")
    parser.add_argument("--method", default="residual")
    parser.add_argument("--windows", type=int, default=16, help="of 256 tokens")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder, options.hidden, options.intermediate)
        ids = np.random.default_rng(1).integers(0, VOCABULARY, (options.windows, 256))
        text = CalibrationText(("",), ids, ())
        store = FittedLayers(folder / "fitted", {})
        recipe = make_recipe("int4", 32, method=options.method)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open_checkpoint(str(folder)) as checkpoint:
            weights, _ = interpret(checkpoint)
            LayerFitter(weights, recipe, text, store, options.threads).run()
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        down = store.packed(DOWN)
        assert down is not None
        digest = hashlib.sha256(down.codes.tobytes() + down.scales.tobytes()).hexdigest()[:12]
    matrices = kilobytes * 1024 / (8 * options.intermediate**2)
    print(
        f"{kilobytes / 1024:.0f} MB: {matrices:.1f} matrices of float64, {options.intermediate} "
        f"wide ({options.method}, {options.threads} threads; down projection {digest})"
    )


if __name__ == "__main__":
    main()
