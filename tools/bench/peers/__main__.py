"""Compares edgerun with other runtimes on the same model shape, in one run.

    python -m tools.bench.peers [PRESET] --work FOLDER [--what WHAT] [--only PEER ...]
        [--resume RESULTS.json] [--docs DOCS] [--llama-python PYTHON]

``--what`` is ``compare`` (decoding and prompts of 128 and 512 tokens, the tables), ``context``
(decoding against the length of the context), ``prompt`` (prompts of many lengths), ``threads``
(with 1, 2, ... threads) or ``report`` (measures nothing, writes the pages of a results file).

Random models are made in FOLDER, which needs about 45 GB for all presets, and kept there. Every
peer gets a process of its own that loads once; then rounds follow in which each of them takes its
turn while the others sleep. A peer that is not installed or dies is a result, with its reason.
``--only`` leaves out other rivals; with ``--resume`` a comparison can be made in parts, each of
which measures edgerun again, because ratios are taken within a round. Standard error tells what
happens; standard output is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench.peers import figures, measure, models
from tools.bench.peers.entry import OURS, Entry, check_names, say, start
from tools.bench.peers.results import Results, Run, new_run
from tools.bench.peers.supervise import FLAG, supervised

POINTS = {
    "context": (128, 512, 1024, 2048, 3500),
    "prompt": (16, 32, 64, 128, 256, 512, 1024),
}


def main() -> None:
    """Runs the comparison."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("ended by SIGTERM"))
    results = Results(arguments.resume)
    if arguments.what == "report":
        write_pages(results, arguments.docs)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    runs = []
    counts = range(1, arguments.threads + 1) if arguments.what == "threads" else [arguments.threads]
    for threads in counts:
        arguments.threads = threads
        names = chosen_peers(arguments, results)
        if len(names) > 0:
            runs.append(one_run(names, arguments, results))
    summaries = [figures.summary(run) for run in runs]
    for summary in summaries:
        say(f"{figures.table(summary)}\n\n{figures.goal_table(summary['goals'])}")
    if arguments.docs:
        write_pages(results, arguments.docs)
    print(json.dumps(summaries[0] if len(summaries) == 1 else summaries))
    if runs and all("error" in peer for run in runs for peer in run["peers"].values()):
        sys.exit("no peer ran")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("preset", nargs="?", default="bitnet-2b-4t", choices=models.PRESETS)
    parser.add_argument("--what", default="compare", choices=[*measure.WAYS, "report"])
    parser.add_argument("--work", type=Path, help="folder for the models")
    parser.add_argument("--threads", type=int, default=2, help="the most, for --what threads")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=16, help="tokens before the decode steps")
    parser.add_argument("--decode", type=int, help="decode steps of a sample")
    parser.add_argument("--prefill", type=int, nargs="+", help="lengths of the prompts")
    parser.add_argument("--points", type=int, nargs="+", help="lengths for context and prompt")
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.15,
        metavar="CORES",
        help="repeat a sample (twice at most) during which other processes used more",
    )
    parser.add_argument(
        "--llama-python",
        default=sys.executable,
        help="interpreter that has llama-cpp-python; this one by default",
    )
    parser.add_argument(
        "--peers", nargs="+", metavar="KIND:VARIANT", help="all that take part, edgerun's too"
    )
    parser.add_argument("--only", nargs="+", metavar="PEER", help="edgerun and these rivals")
    parser.add_argument("--resume", type=Path, metavar="JSON", help="results to go on with")
    parser.add_argument("--docs", type=Path, help="folder whose benchmarks.md and plots to write")
    parser.add_argument(FLAG, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "report" and not (arguments.resume and arguments.docs):
        parser.error("--what report needs --resume and --docs")
    if arguments.what != "report" and arguments.work is None:
        parser.error("--work is missing: a folder for the models")
    if arguments.threads < 1 or arguments.rounds < 1:
        parser.error("--threads and --rounds start at 1")
    preset = models.PRESETS[arguments.preset]
    arguments.decode = arguments.decode or preset.decode_tokens
    arguments.prefill = arguments.prefill or list(preset.prefill_tokens)
    arguments.points = sorted(arguments.points or POINTS.get(arguments.what, (1,)))
    check_names([*(arguments.peers or []), *(arguments.only or [])], arguments.preset)
    return arguments


def chosen_peers(arguments: argparse.Namespace, results: Results) -> list[str]:
    """Names of the peers to run: without ``--only``, rivals that the results hold are left out."""
    if arguments.peers:
        return list(arguments.peers)
    preset = models.PRESETS[arguments.preset]
    ours = [f"{OURS}:{variant}" for variant in preset.ours]
    if arguments.only:
        return [*dict.fromkeys([*ours, *arguments.only])]
    measured = results.measured(arguments.what, arguments.preset, arguments.threads)
    rivals = [name for name in preset.rivals if name not in measured]
    left_out = sorted(set(preset.rivals) & measured)
    if left_out:
        say(f"in the results already: {', '.join(left_out)}")
    return [*ours, *rivals] if rivals else []


def one_run(names: Sequence[str], arguments: argparse.Namespace, results: Results) -> Run:
    """Measures all peers and keeps what was measured, after every round."""
    from tools.bench.peers.limits import Limits

    run = new_run(arguments.what, arguments.preset, arguments.threads)
    run |= {name: getattr(arguments, name) for name in ("rounds", "prompt", "decode")}
    run |= {"macs": models.step_macs(arguments.preset, arguments.work)}
    run["context"] = measure.room(arguments)
    limits = Limits(arguments.threads)
    run["int8_peak"] = limits.int8_peak()
    entries = [start(name, arguments.preset, run["context"], arguments) for name in names]
    results.add(run)
    began = time.monotonic()

    def tick() -> None:
        run["bandwidth"].append(limits.bandwidth())
        say(f"  memory: {run['bandwidth'][-1] / 1e9:.1f} GB/s, {time.monotonic() - began:.0f} s")
        note(run, entries)
        results.save()

    try:
        tick()
        measure.WAYS[arguments.what](entries, arguments, tick)
        for entry in entries:
            entry.state = entry.ask(do="state") or {}
        run["complete"] = True
    finally:
        limits.close()
        note(run, entries)
        results.save()
        for entry in entries:
            entry.close()
    return run


def note(run: dict[str, Any], entries: Sequence[Entry]) -> None:
    """Puts what is known of the peers into the run."""
    run["peers"] = {entry.name: entry.described() for entry in entries}


def write_pages(results: Results, docs: Path) -> None:
    """Writes tables and plots."""
    from tools.bench.peers import pages

    for path in pages.write(results.runs, docs):
        say(f"wrote {path}")


if __name__ == "__main__":
    if FLAG not in sys.argv:
        sys.exit(supervised(["-m", "tools.bench.peers", *sys.argv[1:]]))
    started = time.monotonic()
    main()
    say(f"took {time.monotonic() - started:.0f} s")
