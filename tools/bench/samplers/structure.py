"""Measures structured output: what a schema costs once, and what it costs every token.

    python -m tools.bench.samplers.structure [--vocab 6144 151936] [--tokens 400]

For each size of a vocabulary: the tree of its tokens (once a model), a schema in the sandbox (once
a process) and here (once a reply), and a token's mask, by the clock. Larger vocabularies than the
default model's are made of pairs of its tokens. Then replies of the default model with a schema and
without, in turns; medians. A table goes to standard error, lines of JSON to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import edgerun
from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.vocabulary import Vocabulary
from edgerun.engine.constraints import matcher, trial
from edgerun.llm.llm import LLM

VOCABULARIES = (6_144, 151_936)
ROUNDS = 7
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 40},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "email", "tags", "address"],
    "additionalProperties": False,
}
REPLY = (
    '{"name":"Ada Lovelace, the first to write programs for a machine","age":36,'
    '"email":"ada@example.org","tags":["red","blue"],'
    '"address":{"street":"12 St James Square","zip":"12345"}}'
)
ENDLESS = {"type": "array", "items": {"type": "string"}, "minItems": 10_000}


class Paired:
    """A vocabulary with pairs of another one's tokens behind them."""

    def __init__(self, base: Vocabulary, size: int) -> None:
        self.vocab_size, self.eos_ids = size, base.eos_ids
        self.control_ids, self.hidden_ids = base.control_ids, base.hidden_ids
        random = np.random.default_rng(0)
        pairs = random.integers(5, base.vocab_size, (max(0, size - base.vocab_size), 2))
        self._tokens = [base.token_bytes(id_) for id_ in range(base.vocab_size)]
        self._tokens += [self._tokens[left] + self._tokens[right] for left, right in pairs]

    def token_bytes(self, id_: int) -> bytes:
        return self._tokens[id_]


def seconds(function: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def costs(vocabulary: Any, ids: list[int]) -> dict[str, float]:
    """What a schema costs, beside the size of the vocabulary."""
    size = vocabulary.vocab_size
    tree_s = seconds(lambda: matcher.token_tree(vocabulary, size))
    trial_s = []
    for _ in range(ROUNDS):
        trial.grammar_of.cache_clear()
        trial_s.append(seconds(lambda: SamplingParams(json_schema=SCHEMA)))
    params = SamplingParams(json_schema=SCHEMA).with_vocabulary(vocabulary)
    (structure,) = (each for each in params.processors if each.is_active and each.shapes_text)
    begin_s = [seconds(lambda: structure.begin([], size)) for _ in range(ROUNDS)]
    masks, accepts = [], []
    logits = np.zeros(size, np.float32)
    for _ in range(ROUNDS):
        filter_ = structure.begin([], size)
        for id_ in ids:
            logits[:] = 0
            masks.append(seconds(partial(filter_.apply, Candidates(logits))))
            accepts.append(seconds(partial(filter_.accept, id_)))
    return {
        "vocab": size,
        "tree_s": tree_s,
        "trial_ms": 1e3 * statistics.median(trial_s),
        "begin_ms": 1e3 * statistics.median(begin_s),
        "mask_us_median": 1e6 * statistics.median(masks),
        "mask_us_mean": 1e6 * statistics.mean(masks),
        "mask_us_most": 1e6 * max(masks),
        "accept_us_mean": 1e6 * statistics.mean(accepts),
    }


def speeds(llm: LLM, tokens: int) -> dict[str, float]:
    """Tokens a second of replies, with a schema and without."""
    options: Any = {"max_tokens": tokens, "ignore_eos": True, "seed": 1, "dry_multiplier": 0}
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "schema": {"json_schema": ENDLESS},
        "plain_greedy": {"temperature": 0},
        "schema_greedy": {"temperature": 0, "json_schema": ENDLESS},
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, more in ways.items():
            reply = llm.generate("Once upon a time", **options, **more)
            rates[way].append(reply.stats.decode_tokens_per_s)
    return {f"{way}_tokens_s": statistics.median(each) for way, each in rates.items()}


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    with edgerun.load(draft="none") as llm:
        ids = llm.tokenizer.encode(REPLY, bos=False)
        rows = [costs(Paired(llm.tokenizer, size), ids) for size in arguments.vocab]
        rows.append(speeds(llm, arguments.tokens))
    for row in rows:
        sys.stderr.write("  ".join(f"{name} {value:,.4g}" for name, value in row.items()) + "\n")
        print(json.dumps(row))


if __name__ == "__main__":
    main()
