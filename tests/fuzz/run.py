"""Runs many cases of all kinds, or of some.

Run as::

    python -m tests.fuzz.run --cases 50000 [--first 0] [--kinds onnx gguf]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.client import Servers
from tests.fuzz.kinds import KINDS


def main(arguments: Sequence[str]) -> int:
    """Runs the cases, in proportion to the shares of their kinds; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    given = parser.parse_args(arguments)
    total = sum(KINDS[kind].share for kind in given.kinds)
    failures = 0
    with Servers() as servers:
        for kind in given.kinds:
            start = time.perf_counter()
            count = -(-given.cases * KINDS[kind].share // total)
            summary = servers.run(kind, range(given.first, given.first + count))
            seconds = time.perf_counter() - start
            sys.stdout.write(f"{kind}: {summary}, {seconds:.1f} s\n")
            for detail, times in Counter(
                outcome.detail[:90] for outcome in summary.failures
            ).most_common():
                example = next(
                    outcome for outcome in summary.failures if outcome.detail[:90] == detail
                )
                sys.stdout.write(f"  {times} x {example}\n")
            for kernel, times in Counter(
                outcome.detail for outcome in summary.uncompiled
            ).most_common(5):
                sys.stdout.write(f"  {times} x without {kernel}\n")
            sys.stdout.flush()
            failures += len(summary.failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
