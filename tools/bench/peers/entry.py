"""One peer of a run: its process, what it said, and why it failed if it did."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.bench.peers import models
from tools.bench.peers.process import Peer, PeerError, PeerSpec

LOAD_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 240.0
RETRIES = 2
OURS = "edgerun"
KINDS = ("edgerun", "onnxruntime", "openvino", "genai", "llamacpp")


@dataclass(slots=True)
class Entry:
    """What is known of one peer.

    Attributes:
        process: None once it has failed.
        error: why it failed.
        ready: what it said after loading.
        samples: tokens a second by what was measured.
        others: cores that other processes used during the samples that count.
        state: its memory at the end.
    """

    spec: PeerSpec
    process: Peer | None = None
    error: str = ""
    ready: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How results call it."""
        return self.spec.name

    def attempt(self, action: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Runs an action; a failure is noted and ends the peer."""
        try:
            return action()
        except PeerError as error:
            self.error = str(error)
            say(f"{self.name}: {error}")
            self.close()
            return None

    def ask(self, **command: Any) -> dict[str, Any] | None:
        """Sends a command unless the peer has failed."""
        process = self.process
        if process is None:
            return None
        return self.attempt(lambda: process.ask(ANSWER_TIMEOUT_S, **command))

    def sample(self, what: str, quiet: float, **command: Any) -> None:
        """Takes a sample; of several disturbed ones the least disturbed counts."""
        tries: list[dict[str, Any]] = []
        while len(tries) <= RETRIES:
            reply = self.ask(**command)
            if reply is None:
                return
            tries.append(reply)
            say(
                f"  {self.name} {what}: {reply['tokens_per_s']:.2f} tokens/s on "
                f"{reply['own_cores']:.2f} cores, others on {reply['other_cores']:.2f}"
            )
            if reply["other_cores"] <= quiet:
                break
        best = min(tries, key=lambda attempt: attempt["other_cores"])
        self.samples.setdefault(what, []).append(best["tokens_per_s"])
        self.others.append(best["other_cores"])

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def described(self) -> dict[str, Any]:
        """What the results file keeps of it."""
        if self.error or not self.ready:
            return {"error": self.error or "it was not started"}
        path, kind = self.spec.path, self.spec.kind
        return {
            "samples": self.samples,
            "version": self.ready["version"],
            "load_s": round(self.ready["load_s"], 2),
            "weight_bytes": models.weight_bytes(path),
            "step_bytes": models.step_bytes(kind, path),
            "cache_bytes": self.ready.get("cache_bytes"),
            "other_cores": statistics.median(self.others) if self.others else 0.0,
            **self.state,
        }


def start(name: str, preset: str, context: int, arguments: argparse.Namespace) -> Entry:
    """Makes a peer's model if need be, loads it and warms it up."""
    kind, _, variant = name.partition(":")
    say(f"{name}: model")
    maker = models.gguf_file if kind == "llamacpp" else models.bundle
    python = arguments.llama_python if kind == "llamacpp" else sys.executable
    entry = Entry(PeerSpec(kind, variant, arguments.work, python))
    try:
        path = maker(preset, variant, arguments.work)
    except Exception as error:  # a model that cannot be made is a peer less, with its reason
        entry.error = f"no model: {type(error).__name__}: {error}"
        say(f"{name}: {entry.error}")
        return entry
    entry.spec = PeerSpec(kind, variant, path, python)

    def load() -> dict[str, Any]:
        entry.process = Peer(entry.spec, arguments.threads, context)
        return entry.process.ready(LOAD_TIMEOUT_S)

    entry.ready = entry.attempt(load) or {}
    entry.ask(do="decode", prompt=min(64, context // 2), tokens=2)
    if not entry.error:
        say(f"{name}: loaded in {entry.ready['load_s']:.1f} s")
    return entry


def check_names(names: Sequence[str], preset: str) -> None:
    """Ends the program when a name can be no peer."""
    choice = models.PRESETS[preset]
    for name in names:
        kind, _, variant = name.partition(":")
        if kind not in KINDS or not variant:
            examples = ", ".join([*(f"{OURS}:{bundle}" for bundle in choice.ours), *choice.rivals])
            sys.exit(f"there is no peer {name!r}; for {preset} there are {examples}")
        if kind != "llamacpp" and variant not in models.BUNDLES:
            sys.exit(f"there is no bundle {variant!r}; there are {', '.join(models.BUNDLES)}")


def say(text: str) -> None:
    """Tells the person who waits."""
    print(text, file=sys.stderr, flush=True)
