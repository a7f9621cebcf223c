"""How often experts are in a cache when they are needed: all policies, beside what could be.

    edgerun trace MODEL TEXT -o FILE
    python -m tools.bench.policies [FILE ...] [--share 0.125 0.25 0.5] [--json]
    python -m tools.bench.policies --zipf 0 1 --reuse 0 0.5 [--tokens 1000 --experts 64 --top-k 8]

Each layer has a cache of its own, with room for a share of its experts, empty at first, and needs
the experts of one token after the other, as in decoding, the tokens of a prompt too. A figure is
the share of these experts that are there, over all layers. ``belady`` knows the future: no policy
has more. Without files, traces are made up with each of the exponents and each of the
probabilities of reuse (``synthetic_trace.py``). Several files must be of one model, and caches
begin anew with each. Of several there is also ``tuned``: LRFU with the decay that had most hits on
one half of the files, counted on the other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from edgerun.errors import EdgerunError, InputError
from edgerun.offload.belady import Belady
from edgerun.offload.cache import Step
from edgerun.offload.policies.lrfu import LeastRecentlyFrequentlyUsed as Tunable
from edgerun.offload.policies.registry import policies
from edgerun.offload.replay import count_hits, steps_of
from edgerun.offload.trace_file import Trace, read_trace
from tools.bench.synthetic_trace import Synthetic

TUNED, YARDSTICK = "tuned", "belady"
DECAYS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)  # of uses, by the token: what is tuned
LISTED = 3  # files whose names a table has room for
Replayed: TypeAlias = list[list[Step]]  # the layers of a trace


@dataclass(frozen=True)
class Row:
    """What caches of one size come to.

    Attributes:
        trace: what was replayed.
        share: of a layer's experts that there is room for.
        slots: the same as a number of experts.
        tokens: replayed.
        rates: hits per use, by policy.
    """

    trace: str
    share: float
    slots: int
    tokens: int
    rates: dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    """Replays what the command line names and prints a table, or JSON."""
    options = parser().parse_args(arguments)
    try:
        rows = [
            row(name, traces, share)
            for name, traces in replayed(options)
            for share in options.share
        ]
    except EdgerunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps([asdict(each) for each in rows], indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in table(rows))
    return 0


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("traces", type=Path, nargs="*", metavar="FILE")
    command_line.add_argument("--share", type=float, nargs="+", default=[0.125, 0.25, 0.5])
    command_line.add_argument("--json", action="store_true")
    command_line.add_argument("--zipf", type=float, nargs="+", default=[0.0, 1.0])
    command_line.add_argument("--reuse", type=float, nargs="+", default=[0.0, 0.5])
    for name in ("tokens", "layers", "experts", "top_k", "seed"):
        option = f"--{name.replace('_', '-')}"
        command_line.add_argument(option, type=int, default=getattr(Synthetic, name))
    return command_line


def replayed(options: argparse.Namespace) -> Iterator[tuple[str, list[Trace]]]:
    """Traces that are replayed together, with their names."""
    if options.traces:
        first = read_trace(options.traces[0])
        others = [read_trace(path, first.model) for path in options.traces[1:]]
        names = [path.name for path in options.traces]
        listed = ", ".join(names) if len(names) <= LISTED else f"{names[0]} to {names[-1]}"
        yield listed, [first, *others]
        return
    sizes = {name: getattr(options, name) for name in ("tokens", "layers", "experts", "top_k")}
    for zipf, reuse in itertools.product(options.zipf, options.reuse):
        synthetic = Synthetic(**sizes, zipf=zipf, reuse=reuse, seed=options.seed)
        yield synthetic.name, [synthetic.trace()]


def row(name: str, traces: list[Trace], share: float) -> Row:
    """Replays traces in caches that have room for a share of each layer's experts.

    Raises:
        InputError: that is more than all, or less than a token needs.
    """
    slots = round(share * traces[0].experts) if math.isfinite(share) else 0
    if not 0 < share <= 1 or slots < traces[0].top_k:
        raise InputError(
            f"a share of {share:g} is room for {slots} of {traces[0].experts} experts; expected "
            f"a share up to 1 with room for {traces[0].top_k}, which a token needs at once"
        )
    replays = [[steps_of(trace, place) for place in range(len(trace.layers))] for trace in traces]
    tokens = sum(trace.tokens for trace in traces)
    return Row(name, share, slots, tokens, rates(replays, slots))


def rates(traces: list[Replayed], slots: int) -> dict[str, float]:
    """Hits per use of each policy, and of the yardstick, which comes last."""
    layers = [steps for trace in traces for steps in trace]
    uses = sum(len(step.experts) for steps in layers for step in steps)
    hits = {
        name: sum(count_hits(steps, slots, policy()) for steps in layers)
        for name, policy in policies().items()
    }
    if len(traces) > 1:
        hits[TUNED] = tuned_hits(traces, slots)
    hits[YARDSTICK] = sum(count_hits(steps, slots, Belady(steps)) for steps in layers)
    return {name: count / uses for name, count in hits.items()}


def tuned_hits(traces: list[Replayed], slots: int) -> int:
    """Hits on each half of the traces with the decay that is best on the other."""
    halves = traces[::2], traces[1::2]
    hits = {
        decay: [
            sum(count_hits(steps, slots, Tunable(decay)) for trace in half for steps in trace)
            for half in halves
        ]
        for decay in DECAYS
    }
    first, second = (max(DECAYS, key=lambda decay, half=half: hits[decay][half]) for half in (1, 0))
    return hits[first][0] + hits[second][1]


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    names = list(rows[0].rates)
    yield f"| trace | tokens | room | {' | '.join(names)} |"
    yield "|---" * (3 + len(names)) + "|"
    for each in rows:
        figures = " | ".join(f"{each.rates[name]:.3f}" for name in names)
        yield f"| {each.trace} | {each.tokens:,} | {each.share:.1%}, {each.slots} | {figures} |"


if __name__ == "__main__":
    sys.exit(main())
