"""Measures what log-probabilities of a reply cost.

    python -m tools.bench.samplers.logprobs [--vocab 6144 151936] [--tokens 400]

For each size of a vocabulary: one token's, with no and with 20 alternatives, from made-up logits,
medians of the process's own time. Then replies of the default model without and with them, in
turns, medians. A table goes to standard error, lines of JSON to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from typing import Any

import edgerun
from edgerun.engine.chooser.logprobs import token_logprob
from edgerun.llm.llm import LLM
from tools.bench.samplers.__main__ import VOCABULARIES, microseconds, model_like

ROUNDS = 9
COUNTS = (0, 20)


def costs(vocab: int) -> dict[str, float]:
    """Microseconds a token."""
    rows = [model_like(vocab, seed) for seed in range(4)]
    figures: dict[str, float] = {"vocab": vocab}
    for count in COUNTS:
        look = partial(token_logprob, id_=5, count=count)
        times = [microseconds(look, rows) for _ in range(ROUNDS)]
        figures[f"top_{count}_us"] = statistics.median(times)
    return figures


def speeds(llm: LLM, tokens: int) -> dict[str, float]:
    """Tokens a second of replies."""
    options: Any = {"max_tokens": tokens, "ignore_eos": True, "seed": 1, "dry_multiplier": 0}
    ways = {"off": None, **{f"top_{count}": count for count in COUNTS}}
    rates: dict[str, list[float]] = {f"{way}{name}": [] for way in ways for name in ("", "_greedy")}
    for _ in range(ROUNDS):
        for way, count in ways.items():
            for name, more in (("", {}), ("_greedy", {"temperature": 0})):
                reply = llm.generate("Once upon a time", logprobs=count, **options, **more)
                rates[f"{way}{name}"].append(reply.stats.decode_tokens_per_s)
    return {f"{way}_tokens_s": statistics.median(each) for way, each in rates.items()}


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    rows = [costs(vocab) for vocab in arguments.vocab]
    with edgerun.load(draft="none") as llm:
        rows.append(speeds(llm, arguments.tokens))
    for row in rows:
        sys.stderr.write("  ".join(f"{name} {value:,.4g}" for name, value in row.items()) + "\n")
        print(json.dumps(row))


if __name__ == "__main__":
    main()
