"""Memory and time that fitting layers takes, with random weights.

    python -m tools.calibration_memory [--hidden 512] [--intermediate 2560] [--threads 1]

Run by itself: what it prints is the largest amount that the process ever had in memory, imports
and all. The digest is of the codes and scales of the first down projection; it is the same with
any number of threads. Of Llama 3.2 1B one layer, with the text that an export has:

    python -m tools.calibration_memory --hidden 2048 --intermediate 8192 --vocabulary 128256 \\
        --windows 64 --tokens 512 --threads 2
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.text import CalibrationText, Sample
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.recipe import make_recipe
from edgerun_export.source.model import interpret
from tools.bench import random_model

_DOWN = "model.layers.0.mlp.down_proj.weight"
_SAMPLES = 4  # windows that are not fitted to


def _config(options: argparse.Namespace) -> dict[str, object]:
    """A Llama with heads of 64, one of keys for four of queries."""
    return {
        "model_type": "llama",
        "hidden_size": options.hidden,
        "intermediate_size": options.intermediate,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // 64,
        "num_key_value_heads": max(1, options.hidden // 256),
        "head_dim": 64,
        "vocab_size": options.vocabulary,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }


def _peak_bytes() -> int:
    """The most that this process ever had in memory."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss counts what the parent had when it forked
        lines = status.read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 256")
    parser.add_argument("--intermediate", type=int, default=2560, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--method", default="residual")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of each window")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_model.write(_config(options), folder / "model")
        shape = options.windows + _SAMPLES, options.tokens
        ids = np.random.default_rng(1).integers(0, options.vocabulary, shape)
        samples = (Sample("", ids[:_SAMPLES], 1),)
        text = CalibrationText(("",), ids[_SAMPLES:], samples)
        store = FittedLayers(folder / "fitted", {})
        recipe = make_recipe(options.weights, 32, method=options.method)
        began, worked = time.perf_counter(), time.process_time()
        with open_checkpoint(str(folder / "model")) as checkpoint:
            weights, _ = interpret(checkpoint)
            LayerFitter(weights, recipe, text, store, options.threads).run()
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        down = store.packed(_DOWN)
        assert down is not None
        digest = hashlib.sha256(down.codes.tobytes() + down.scales.tobytes()).hexdigest()[:12]
    print(
        f"{_peak_bytes() / 1e6:.0f} MB, {seconds:.1f} s, of processors {worked:.1f} s "
        f"({options.method}, {options.threads} threads; one matrix of products "
        f"{8 * options.intermediate**2 / 1e6:.0f} MB; down projection {digest})"
    )


if __name__ == "__main__":
    main()
