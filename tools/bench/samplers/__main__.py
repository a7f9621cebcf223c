"""Measures samplers: a token drawn from the logits of a vocabulary, by kernels and by NumPy.

    python -m tools.bench.samplers [--vocab 6144 32000 128256 151936]

Each sampler is measured in turns, by kernels, by NumPy, and so on, and compared with what it takes
to order the vocabulary by likelihood and normalise it, with which a plain NumPy filter begins.
Medians of the process's own time. A table goes to standard error, a line of JSON for each
vocabulary to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from tools.bench.samplers.ways import WAYS, choosing_by

NO_BREAKERS: dict[str, Any] = {"dry_sequence_breakers": []}  # which would need a tokenizer
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "and top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k, top-p, min-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "top-p, penalties": {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1},
    "greedy, penalties": {"temperature": 0, "repetition_penalty": 1.1},
    "top-p, DRY": {"temperature": 0.8, "top_p": 0.95, "dry_multiplier": 0.8, **NO_BREAKERS},
    "greedy, DRY": {"temperature": 0, "dry_multiplier": 0.8, **NO_BREAKERS},
    "top-k 40": {"top_k": 40},
    "min-p 0.05": {"min_p": 0.05},
    "typical 0.9": {"typical_p": 0.9},
}
VOCABULARIES = (6_144, 32_000, 128_256, 151_936)
LEADERS = 40
PROMPT = list(range(0, 2048, 4))
ROUNDS, DRAWS = 9, 30


def model_like(vocab: int, seed: int = 0) -> NDArray[np.float32]:
    """Logits, float32 ``[vocab]``, of which some stand out as a trained model's do."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(vocab).astype(np.float32) * 2
    logits[rng.integers(0, vocab, LEADERS)] += np.linspace(4, 16, LEADERS, dtype=np.float32)
    return logits


def order_and_normalise(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities in falling order."""
    order = np.argsort(-logits)
    weights = np.exp(logits[order] - logits[order[0]])
    return weights / weights.sum()


def microseconds(function: Callable[[NDArray[np.float32]], Any], rows: Any) -> float:
    """Time of one call, over some rows."""
    start = time.process_time()
    for index in range(DRAWS):
        function(rows[index % len(rows)])
    return (time.process_time() - start) / DRAWS * 1e6


def measure(vocab: int) -> dict[str, dict[str, float]]:
    """Microseconds by sampler and way."""
    rows = [model_like(vocab, seed) for seed in range(4)]
    figures: dict[str, dict[str, float]] = {}
    for name, params in PARAMS.items():
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        chooser = Chooser(SamplingParams(seed=0, **params), PROMPT, vocab)
        for _ in range(ROUNDS):
            for way in WAYS:
                with choosing_by(way):
                    times[way].append(microseconds(chooser.draw, rows))
        figures[name] = {way: statistics.median(each) for way, each in times.items()}
    ordering = [microseconds(order_and_normalise, rows) for _ in range(ROUNDS)]
    return {"argsort": dict.fromkeys(WAYS, statistics.median(ordering)), **figures}


def main() -> None:
    """Prints microseconds a token, and how many times faster kernels are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=VOCABULARIES)
    for vocab in parser.parse_args().vocab:
        figures = measure(vocab)
        for name, row in figures.items():
            numpy, kernels = (row[way] for way in WAYS)
            sys.stderr.write(
                f"{vocab:7} {name:20} {numpy:8.1f} us {kernels:8.1f} us {numpy / kernels:5.1f} x\n"
            )
        print(json.dumps({"vocab": vocab, "microseconds": figures}))


if __name__ == "__main__":
    main()
