"""How much faster several texts are together than one after the other.

    python -m tools.bench.together [MODEL] [--texts 1 4 8 16] [--tokens 16] [--rounds 3]

Greedy; every text has a beginning of its own. The table has the new tokens of all texts a second,
beginnings included, divided by those of one text, which is measured before and after: the median of
the rounds, the least and the most.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np

import edgerun


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--texts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=16, help="new ones of each text")
    parser.add_argument("--beginning", type=int, default=4, help="tokens of each text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    with edgerun.load(given.model, threads=given.threads, max_sessions=max(given.texts)) as llm:
        beginnings = fresh_beginnings(llm.model.vocab_size, given.beginning)

        def speed(texts: int) -> float:
            """New tokens a second of so many texts."""
            prompts = list(itertools.islice(beginnings, texts))
            start = time.perf_counter()
            replies = llm.generate_many(
                prompts, max_tokens=given.tokens, temperature=0, dry_multiplier=0, ignore_eos=True
            )
            count = sum(len(reply.ids) for reply in replies)
            return count / (time.perf_counter() - start)

        speed(max(given.texts))  # brings kernels and weights into memory
        sys.stdout.write("| texts | tokens/s | times one text |\n| --- | --- | --- |\n")
        for texts in given.texts:
            speeds, ratios = [], []
            for _ in range(given.rounds):
                before, together, after = speed(1), speed(texts), speed(1)
                speeds.append(together)
                ratios.append(2 * together / (before + after))
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
            sys.stdout.write(f"| {texts} | {statistics.median(speeds):.1f} | {ratio} |\n")
            sys.stdout.flush()


def fresh_beginnings(vocab_size: int, length: int) -> Iterator[list[int]]:
    """Random ids, so that no text finds what another has computed."""
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, vocab_size, length).tolist()


if __name__ == "__main__":
    main()
