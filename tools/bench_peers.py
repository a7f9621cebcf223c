"""Compares edgerun with other runtimes on the same model shape, in one run.

    python tools/bench_peers.py [bitnet-2b-4t|tiny] --work FOLDER [--llama-python PYTHON]

Random models are made in FOLDER, which needs about 6 GB for bitnet-2b-4t, and kept there. Every
peer gets a process of its own that loads once; then rounds follow in which each of them in turn
decodes and prefills, while the others sleep. A peer that is not installed or dies is a result,
with its reason. Standard error tells what happens; standard output is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from peers import figures, models
from peers.bandwidth import BandwidthMeter
from peers.process import Peer, PeerError, PeerSpec

DEFAULT_PEERS = (
    "edgerun:int8",
    "edgerun:int4",
    "onnxruntime:int8",
    "onnxruntime:int4",
    "llamacpp:tq2_0",
    "llamacpp:q4_0",
)
LOAD_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 120.0
RETRIES = 3
GOALS_PRESET = "bitnet-2b-4t"
MAKERS: dict[str, Callable[[str, str, Path], Path]] = {
    "edgerun": models.bundle,
    "onnxruntime": models.bundle,
    "llamacpp": models.gguf_file,
}


@dataclass(slots=True)
class Entry:
    """What is known of one peer.

    Attributes:
        process: None once it has failed.
        error: why it failed.
        ready: what it said after loading.
        samples: replies by phase.
        state: its memory at the end.
    """

    spec: PeerSpec
    process: Peer | None = None
    error: str = ""
    ready: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {phase: [] for phase in figures.PHASES}
    )
    state: dict[str, Any] = field(default_factory=dict)

    def attempt(self, action: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Runs an action; a failure is noted and ends the peer."""
        try:
            return action()
        except PeerError as error:
            self.error = str(error)
            say(f"{self.spec.name}: {error}")
            self.close()
            return None

    def ask(self, **command: Any) -> dict[str, Any] | None:
        """Sends a command unless the peer has failed."""
        process = self.process
        if process is None:
            return None
        return self.attempt(lambda: process.ask(ANSWER_TIMEOUT_S, **command))

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def speeds(self) -> dict[str, list[float]]:
        """Tokens a second by phase."""
        return {
            phase: [reply["tokens_per_s"] for reply in replies]
            for phase, replies in self.samples.items()
        }


def main() -> None:
    """Runs the comparison."""
    arguments = parse_arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    entries = [start(name, arguments) for name in arguments.peers]
    meter = BandwidthMeter(arguments.threads)
    bandwidth: list[float] = []
    try:
        for number in range(arguments.rounds):
            say(f"round {number + 1}")
            bandwidth.append(meter.measure())
            say(f"  memory: {bandwidth[-1] / 1e9:.1f} GB/s")
            for entry in entries:
                measure(entry, arguments)
        for entry in entries:
            entry.state = entry.ask(do="state") or {}
    finally:
        meter.close()
        for entry in entries:
            entry.close()
    result = summarise(arguments, entries, bandwidth)
    say(figures.table(result))
    print(json.dumps(result))
    if all(entry.error for entry in entries):
        sys.exit("no peer ran")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("preset", nargs="?", default=models.PRESETS[0], choices=models.PRESETS)
    parser.add_argument("--work", type=Path, required=True, help="folder for the models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=16, help="tokens before the decode steps")
    parser.add_argument("--decode", type=int, default=64, help="decode steps a round")
    parser.add_argument("--prefill", type=int, default=128, help="tokens of the prefill")
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.15,
        metavar="CORES",
        help="repeat a sample (three times at most) during which other processes used more",
    )
    parser.add_argument(
        "--llama-python",
        default=sys.executable,
        help="interpreter that has llama-cpp-python; this one by default",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        default=list(DEFAULT_PEERS),
        metavar="KIND:VARIANT",
        help="edgerun or onnxruntime with int8, int4 (the head); llamacpp with tq2_0, tq1_0, q4_0",
    )
    return parser.parse_args()


def start(name: str, arguments: argparse.Namespace) -> Entry:
    """Makes a peer's model if need be, and loads it."""
    kind, _, variant = name.partition(":")
    if kind not in MAKERS or not variant:
        sys.exit(f"there is no peer {name!r}; expected one like {', '.join(DEFAULT_PEERS)}")
    say(f"{name}: model")
    path = MAKERS[kind](arguments.preset, variant, arguments.work)
    python = arguments.llama_python if kind == "llamacpp" else sys.executable
    entry = Entry(PeerSpec(kind, variant, path, python))
    context = max(arguments.prompt + arguments.decode, arguments.prefill)

    def load() -> dict[str, Any]:
        entry.process = Peer(entry.spec, arguments.threads, context)
        return entry.process.ready(LOAD_TIMEOUT_S)

    entry.ready = entry.attempt(load) or {}
    warm_up = {"do": "decode", "prompt": arguments.prefill // 2, "tokens": 2}
    entry.ask(**warm_up)
    if not entry.error:
        say(f"{name}: loaded in {entry.ready['load_s']:.1f} s")
    return entry


def measure(entry: Entry, arguments: argparse.Namespace) -> None:
    """Takes one sample of each phase; of several disturbed ones the least disturbed."""
    commands: dict[str, dict[str, Any]] = {
        "decode": {"prompt": arguments.prompt, "tokens": arguments.decode},
        "prefill": {"tokens": arguments.prefill},
    }
    for phase, command in commands.items():
        tries: list[dict[str, Any]] = []
        while len(tries) <= RETRIES:
            reply = entry.ask(do=phase, **command)
            if reply is None:
                return
            tries.append(reply)
            say(
                f"  {entry.spec.name} {phase}: {reply['tokens_per_s']:.2f} tokens/s on "
                f"{reply['own_cores']:.2f} cores, others on {reply['other_cores']:.2f}"
            )
            if reply["other_cores"] <= arguments.quiet:
                break
        entry.samples[phase].append(min(tries, key=lambda one: one["other_cores"]))


def summarise(
    arguments: argparse.Namespace, entries: list[Entry], bandwidth: list[float]
) -> dict[str, Any]:
    """Puts everything into one JSON value."""
    alive = {entry.spec.name: entry.speeds() for entry in entries if not entry.error}
    peers = {entry.spec.name: summary(entry, max(bandwidth)) for entry in entries}
    ratios = figures.all_ratios(alive)
    return {
        "preset": arguments.preset,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        **{name: getattr(arguments, name) for name in ("threads", "rounds")},
        **{f"{name}_tokens": getattr(arguments, name) for name in ("prompt", "decode", "prefill")},
        "bandwidth_gb_per_s": figures.spread([value / 1e9 for value in bandwidth]),
        "peers": peers,
        "ratios": ratios,
        "goals": figures.goals(peers, ratios) if arguments.preset == GOALS_PRESET else [],
    }


def summary(entry: Entry, bandwidth: float) -> dict[str, Any]:
    """Sums up one peer, or says why there is nothing to sum up."""
    if entry.error:
        return {"error": entry.error}
    file_bytes = models.weight_bytes(entry.spec.path)
    step_bytes = models.step_bytes(entry.spec.kind, entry.spec.path)
    made = figures.peer_figures(entry.speeds(), step_bytes, file_bytes, bandwidth, entry.state)
    others = [reply["other_cores"] for replies in entry.samples.values() for reply in replies]
    extra = {"version": entry.ready["version"], "load_s": round(entry.ready["load_s"], 2)}
    return made | extra | {"weight_bytes": file_bytes, "other_cores": figures.spread(others)}


def say(text: str) -> None:
    """Tells the person who waits."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    started = time.monotonic()
    main()
    say(f"took {time.monotonic() - started:.0f} s")
