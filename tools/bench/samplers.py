"""Measures samplers: a token drawn from the logits of a large vocabulary.

    python -m tools.bench.samplers [--vocab 128256]

Each sampler is compared, in the same run, with what it takes to order the vocabulary by likelihood
and normalise it, with which a plain NumPy filter begins. A table goes to standard error, one line
of JSON to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.machine.timing import median_time

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "typical 0.9": {"typical_p": 0.9},
    "penalties": {"repetition_penalty": 1.1},
    "DRY": {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
    "a model's": {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.05},
}
LEADERS = 40
PROMPT = list(range(0, 8192, 4))


def model_like(vocab: int) -> NDArray[np.float32]:
    """Logits, float32 ``[vocab]``, of which some stand out as a trained model's do."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(vocab).astype(np.float32) * 2
    logits[rng.integers(0, vocab, LEADERS)] += np.linspace(4, 16, LEADERS, dtype=np.float32)
    return logits


def order_and_normalise(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities in falling order."""
    order = np.argsort(-logits)
    weights = np.exp(logits[order] - logits[order[0]])
    return weights / weights.sum()


def main() -> None:
    """Prints milliseconds a token, and how many times faster than ordering."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vocab", type=int, default=128_256)
    logits = model_like(parser.parse_args().vocab)
    ordering = median_time(lambda: order_and_normalise(logits))
    figures = {"argsort": {"ms": ordering * 1e3, "ratio": 1.0}}
    for name, params in PARAMS.items():
        chooser = Chooser(SamplingParams(seed=0, **params), PROMPT, len(logits))
        chooser.draw(logits)
        seconds = median_time(lambda chooser=chooser: chooser.draw(logits))
        figures[name] = {"ms": seconds * 1e3, "ratio": ordering / seconds}
    for name, row in figures.items():
        print(f"{name:12} {row['ms']:7.3f} ms  {row['ratio']:6.1f} x", file=sys.stderr)
    print(json.dumps({"vocab": len(logits), "samplers": figures}))


if __name__ == "__main__":
    main()
